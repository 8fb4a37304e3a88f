"""Starts commands on a Kubernetes cluster: each launch is a job of its own, made and deleted with kubectl.

Not tested on a cluster; tested with a stand-in for kubectl that runs the containers' commands as processes.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import UsageError
from ncclt.launch.kubernetes.driver import LOST, NOT_STARTED, TIMED_OUT
from ncclt.launch.kubernetes.manifests import FILES_PATH, LAUNCH_LABEL, NAME, PENDING_S, LaunchedJob, Site, manifests
from ncclt.launch.launcher import (
    FILES,
    NO_OPTIONS,
    JobShape,
    LauncherOption,
    LaunchPlan,
    LaunchResult,
    ProcessOptions,
)
from ncclt.launch.process.launcher import ProcessLauncher
from ncclt.launch.ranks import read_mpi_ending, read_torchrun_ending, wrap_rank_command

_POLL_S = 2.0
_MANIFEST = "job.json"
_DELETE_S = 20
"""Max time of the last attempt to delete a job; a clean-up command gets 30 s."""

_MARGIN_S = 300.0
"""Added to the times that the driver itself enforces: for applying, logs, deleting."""

_SAID = re.compile(rf"(?m)^ncclt: kubernetes: (?P<what>{LOST}|{NOT_STARTED}|{TIMED_OUT}): (?P<reason>.*)$")


_KINDS = {"mpijob": ("launcher", 1, read_mpi_ending), "trainjob": ("node", 0, read_torchrun_ending)}
"""Of each kind of job the container that is followed, the pods besides the nodes, and the reader of its end."""


# Qualified names and values of Kubernetes: an optional DNS prefix, then 63 characters at most.
_QUALIFIED_NAME = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_AMOUNT = re.compile(r"\d{1,9}(?:\.\d{1,3})?(?:m|[kMGTPE]i?)?")
_OBJECT = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


def _parse_object(text: str) -> str:
    if not _OBJECT.fullmatch(text):
        raise ValueError("not a name for an object of Kubernetes")
    return text


def _parse_pair(text: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not _QUALIFIED_NAME.fullmatch(name) or not pattern.fullmatch(value):
        raise ValueError("Kubernetes does not accept this name or value")
    return name, value


def _parse_count(text: str, limit: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= limit):
        raise ValueError(f"not a number from 1 to {limit}")
    return int(text)


class KubernetesLauncher(ProcessLauncher):
    """Starts each command as one job of a cluster.

    Args:
        site: image, namespace and other requirements of the cluster; None = unknown, so `plan` fails.
        kubectl: name of or path to kubectl.
        poll_s: polling interval, s.
        process: `shape` names no hosts, use a node selector; `extra` are options for every call of kubectl,
            for example `--context=lab`; inherited NCCL_* variables reach the containers only where they are kept.
    """

    name = "kubernetes"
    chooses_nodes = True
    reaches_back = False
    options = (
        LauncherOption(key="container", metavar="IMAGE", help="Container image of the trials"),
        LauncherOption(key="namespace", metavar="NAME", help="Namespace of the jobs", parse=_parse_object),
        LauncherOption(
            key="resource.",
            metavar="AMOUNT",
            help="Further resource of each pod, such as resource.rdma/hca=8",
            parse=partial(_parse_pair, pattern=_AMOUNT),
        ),
        LauncherOption(
            key="node.",
            metavar="VALUE",
            help="Label that nodes must have, such as node.pool=h100",
            parse=partial(_parse_pair, pattern=_VALUE),
        ),
        LauncherOption(
            key="label.",
            metavar="VALUE",
            help="Label of the jobs, such as label.kueue.x-k8s.io/queue-name=team",
            parse=partial(_parse_pair, pattern=_VALUE),
        ),
        LauncherOption(key="service-account", metavar="NAME", help="Service account of the pods", parse=_parse_object),
        LauncherOption(
            key="runtime", metavar="NAME", help="(Cluster)TrainingRuntime of a TrainJob", parse=_parse_object
        ),
        LauncherOption(
            key="ssh-port",
            metavar="N",
            help="Port of the image's sshd, for an MPIJob",
            parse=partial(_parse_count, limit=65535),
        ),
        LauncherOption(
            key="pending",
            metavar="SECONDS",
            help=f"Max wait for nodes and images (default: {PENDING_S:g})",
            parse=partial(_parse_count, limit=86400),
        ),
    )

    def __init__(
        self,
        *,
        site: Site | None,
        kubectl: str = "kubectl",
        poll_s: float = _POLL_S,
        **process: Unpack[ProcessOptions],
    ) -> None:
        super().__init__(**process)
        if self.shape.hosts:
            raise UsageError("Kubernetes chooses the nodes itself", hint="use a node selector instead of --hosts")
        self._kind = "mpijob" if self.uses_mpi else "trainjob"
        self._site = site
        self._kubectl = kubectl
        self._poll_s = poll_s

    @classmethod
    def create(cls, *, options: Mapping[str, Any] = NO_OPTIONS, **process: Unpack[ProcessOptions]) -> Self:
        """Return the launcher for kubectl's current cluster: one GPU for each process.

        Without a container nothing can be planned.

        Raises:
            UsageError: hosts are named.
        """
        shape = process.get("shape") or JobShape()
        site = Site(gpus_per_node=shape.processes_per_node, **options) if "container" in options else None
        return cls(site=site, **process)

    @property
    def site(self) -> Site:
        """Return the requirements of the cluster.

        Raises:
            UsageError: no image was given.
        """
        if self._site is None:
            raise UsageError(
                "Kubernetes needs the image of the containers", hint="use --launcher-option container=REGISTRY/NAME:TAG"
            )
        return self._site

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started as a job.

        Raises:
            UsageError: no image was given.
        """
        site = self.site
        places = {str(path): f"{FILES_PATH}/{path.name}" for path in files}
        for_ranks = {**self.kept_variables(variables), **variables}
        job = LaunchedJob(
            argv=tuple(places.get(word, word) for word in wrap_rank_command(argv, for_ranks)),
            variables=tuple(sorted(for_ranks.items())),
            files=tuple((path.name, path.read_text(encoding="utf-8")) for path in files),
            shape=self.shape,
            timeout_s=timeout_s,
        )
        objects = {"apiVersion": "v1", "kind": "List", "items": manifests(self._kind, job, site)}
        kubectl = (self._kubectl, f"--namespace={site.namespace}", *self.extra)
        container, further_pods, _read = _KINDS[self._kind]
        return LaunchPlan(
            argv=(
                sys.executable,
                "-m",
                "ncclt.launch.kubernetes.driver",
                f"--manifest={FILES}/{_MANIFEST}",
                f"--kind={self._kind}",
                f"--name={NAME}",
                f"--selector={LAUNCH_LABEL}={NAME}",
                f"--container={container}",
                f"--pods={self.shape.nodes + further_pods}",
                f"--timeout-s={timeout_s:g}",
                f"--pending-s={site.pending:g}",
                f"--poll-s={self._poll_s:g}",
                "--",
                *kubectl,
            ),
            files=((_MANIFEST, json.dumps(objects, indent=2)),),
            clean_up=(
                (
                    *(*kubectl, "delete", f"{self._kind},configmap", f"--selector={LAUNCH_LABEL}={NAME}"),
                    *("--ignore-not-found", "--cascade=foreground", f"--timeout={_DELETE_S}s"),
                ),
            ),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Make the job, wait for its end and delete it.

        Raises:
            UsageError: kubectl was not found; the message holds the manifests.
        """
        if shutil.which(self._kubectl, path=self.environment.get("PATH")) is None:
            raise UsageError(
                f"{self._kubectl} was not found, so this cannot be applied:\n{dict(plan.files)[_MANIFEST]}",
                hint="apply it yourself where kubectl is, or run ncclt there",
            )
        # The driver measures the command's time from its start in the containers; this limit is for the driver itself.
        patient = replace(plan, timeout_s=plan.timeout_s + self.site.pending + _MARGIN_S)
        return super().run(patient)

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with what the driver says about it."""
        result = _with_driver_messages(result)
        # A container's log holds both outputs, and so what mpirun or torchrun prints about its ranks.
        _container, _further_pods, read_kind = _KINDS[self._kind]
        return replace(result, exit_code=read_kind(replace(result, stderr=result.stdout)).exit_code)


def _with_driver_messages(result: LaunchResult) -> LaunchResult:
    """Read what the driver reports about the launch itself."""
    message = _SAID.search(result.stderr)
    if message is None:
        return result
    if message["what"] == TIMED_OUT:
        return replace(result, timed_out=True)
    if message["what"] == LOST:
        return replace(result, lost=message["reason"])
    return replace(result, exit_code=None, not_started=f"Kubernetes: {message['reason']}")

"""Examine a set-up before anything is measured on it: on this machine, through a launcher, or from saved files.

Not tested on a GPU: what NVIDIA's tools and NCCL print is known from public outputs.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.errors import InputError
from ncclt.health.doctor import Diagnosis, Facts, diagnose
from ncclt.health.doctor.facts import LOG_VARIABLES
from ncclt.health.doctor.files import read_files
from ncclt.health.doctor.gpu_report import parse_gpu_report
from ncclt.health.doctor.machine import machine_facts
from ncclt.health.doctor.matrix import parse_matrix
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.launch.local import LocalLauncher
from ncclt.measure.benchmarks.benchmark import Benchmark
from ncclt.measure.redact import without_secrets
from ncclt.nccl.log.facts import LogFacts
from ncclt.nccl.log.startup import LogReader

NVIDIA_SMI = "nvidia-smi"

_SMI_TIMEOUT_S = 60.0
"""A driver that has to load for many GPUs takes ten seconds; a hanging one never returns."""

_START_TIMEOUT_S = 300.0
"""Connecting thousands of ranks takes a minute or two."""

_START_BYTES = 1024 * 1024

_LAST_LINES, _MOST_CHARACTERS = 3, 400
"""Shown of an all_reduce that failed."""

_NO_FACTS = Facts()

Find = Callable[[str], str | None]
"""Finds a program on the PATH, as shutil.which does."""


def examine_files(paths: Sequence[Path], context: Facts = _NO_FACTS) -> Diagnosis:
    """Judge what was saved on a cluster; this machine itself is not examined.

    Args:
        paths: outputs of `nvidia-smi topo -m` and `nvidia-smi -q -x`, NCCL's logs, nccl.conf files; or folders of them.
        context: of the user: the cluster that they should come from, NCCL's version, the recommended variables.

    Raises:
        InputError: a file is missing, damaged, or of an unknown kind.
    """
    facts = read_files(paths)
    return diagnose(replace(facts, cluster=context.cluster, version=context.version, recommended=context.recommended))


def examine_here(
    environ: Mapping[str, str],
    context: Facts = _NO_FACTS,
    *,
    root: Path = Path("/"),
    home: Path | None = None,
    find: Find = shutil.which,
) -> Diagnosis:
    """Judge this machine: variables, configuration files, RDMA devices, and the GPUs where nvidia-smi shows them.

    Without a log it takes seconds and starts nothing but nvidia-smi.

    Args:
        context: as for `examine_files`; besides, the log that `start_log` or `run_job` returns, or why it is missing.
        root: of the file system, another one in tests.
        home: where ~/.nccl.conf is looked for, None = the account's.
    """
    facts = machine_facts(environ, root=root, home=home)
    gpus: dict[str, Any] = {"smi_problem": "nvidia-smi missing", "missing": ()}
    if find(NVIDIA_SMI) is not None:
        gpus = _read_gpus(LocalLauncher(environment=environ))
    gpus["missing"] = (*gpus["missing"], *context.missing)
    facts = replace(facts, cluster=context.cluster, version=context.version, recommended=context.recommended, **gpus)
    return diagnose(replace(facts, log=context.log, job=context.job))


def build_unknown_cluster(*, nodes: int, gpus_per_node: int) -> Cluster:
    """Return a cluster that only says how many ranks to start, for machines that are not yet described."""
    return Cluster(
        name="not-named",
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu="unknown",
        compute_capability=80,
        link_class="pcie",
        link_gbps=1.0,
        fabric="ethernet",
        nics_per_node=1,
        nic_gbps=1.0,
        nccl_version="2.28.9",
    )


def start_log(launcher: Launcher, benchmark: Benchmark, cluster: Cluster) -> tuple[LogFacts, tuple[str, ...]]:
    """Start one small all_reduce on all ranks and return what NCCL logged, and what went wrong.

    Args:
        launcher: configured to keep NCCL_* variables, because the set-up is examined as jobs find it.
        cluster: sized to the job.
    """
    message = Message(
        collective=Collective.ALL_REDUCE,
        dtype="float32",
        size_bytes=_START_BYTES,
        group_size=cluster.world_size,
        spans_nodes=cluster.nodes > 1,
    )
    (command,) = benchmark.commands([message], folder=None)
    plan = launcher.plan(
        command.argv,
        variables={**dict(command.variables), **LOG_VARIABLES},
        timeout_s=_START_TIMEOUT_S,
        files=command.files,
    )
    result = launcher.run(plan)
    reader = LogReader(ignored=frozenset(LOG_VARIABLES))
    reader.read(f"{result.stdout}\n{result.stderr}".splitlines(), f"all_reduce by {launcher.name}")
    return reader.facts(), tuple(_launch_problems(launcher, result))


def _launch_problems(launcher: Launcher, result: LaunchResult) -> list[str]:
    if result.not_started:
        return [f"the all_reduce by {launcher.name} could not be started: {without_secrets(result.not_started)}"]
    if result.timed_out:
        return [f"the all_reduce by {launcher.name} was not done after {result.wall_s:.0f} s and was ended"]
    if result.exit_code != 0:
        printed = without_secrets(f"{result.stdout}\n{result.stderr}")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        last = "; ".join(lines[-_LAST_LINES:])[:_MOST_CHARACTERS]
        return [f"the all_reduce by {launcher.name} ended with exit code {result.exit_code}: {last}"]
    return []


GPU_OUTPUTS: tuple[tuple[str, str, Callable[[str, str], Any]], ...] = (
    ("matrices", "topo -m", lambda text, source: parse_matrix(text.splitlines(), source)),
    ("gpu_reports", "-q -x", lambda text, source: parse_gpu_report(io.BytesIO(text.encode()), source)),
)
"""Field of Facts, arguments of nvidia-smi, and parser of its output."""


def _read_gpus(launcher: Launcher) -> dict[str, Any]:
    """Return fields of Facts from the output of nvidia-smi, and list missing outputs."""
    fields: dict[str, Any] = {}
    missing = []
    for field, arguments, parse in GPU_OUTPUTS:
        command = f"{NVIDIA_SMI} {arguments}"
        result = launcher.run(launcher.plan(tuple(command.split()), variables={}, timeout_s=_SMI_TIMEOUT_S))
        if reason := explain_failure(result, "it hangs: is the driver healthy?", 0):
            missing.append(f"`{command}` failed: {reason}")
            continue
        try:
            fields[field] = (parse(result.stdout, command),)
        except InputError as error:
            missing.append(f"`{command}` cannot be read: {error.message}")
    return {**fields, "missing": tuple(missing), "smi_problem": "nvidia-smi failed" if missing else ""}


def explain_failure(result: LaunchResult, timeout: str, line: int) -> str:
    """Return the reason for a failed launch, with one line of its output and without secrets; empty = no failure.

    Args:
        timeout: reason for a timeout.
        line: index of the output line.
    """
    if not (result.not_started or result.timed_out or result.exit_code != 0):
        return ""
    output = f"{result.stdout}\n{result.stderr}".strip().splitlines()
    why = result.not_started or (timeout if result.timed_out else f"exit code {result.exit_code}")
    return without_secrets("; ".join([why, *([output[line]] if output else [])]))

"""Look at nodes: at this machine, or through a launcher with one small shell script on each."""

from __future__ import annotations

import base64
import gzip
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ncclt.core.message import Collective
from ncclt.errors import InputError, UsageError
from ncclt.health.doctor.adapters import parse_adapters
from ncclt.health.doctor.examine import (
    GPU_OUTPUTS,
    NVIDIA_SMI,
    build_unknown_cluster,
    examine_here,
    explain_failure,
    start_log,
)
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.machine import cpu_vendor
from ncclt.launch.hostfile import granted_hosts
from ncclt.launch.launcher import Launcher
from ncclt.measure.open_testbed import choose_benchmark, create_launcher
from ncclt.measure.target import ON_REQUEST, Target
from ncclt.nccl.driver_version import DRIVER_FILE, drivers_in
from ncclt.nccl.log.facts import LogFacts

_TIMEOUT_S = 120.0
_PARTS = {
    **{field: f"{NVIDIA_SMI} {arguments}" for field, arguments, _ in GPU_OUTPUTS},
    "adapters": "grep -r . /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/rate "
    "/sys/class/infiniband/*/ports/*/link_layer",
    "slingshot": "[ -d /sys/class/cxi ] && grep . /sys/class/net/hsn*/speed /dev/null",
    "ibstat": "[ -d /sys/class/infiniband ] || ibstat",
    "cpu": "head -c 4096 /proc/cpuinfo",
    "driver": f"cat {DRIVER_FILE}",
    "peer_memory": "ls -d /sys/module/nvidia_peermem",
}
"""Part -> the command that prints it; one that fails prints nothing on stdout."""

_MOST_GRANTED = 32
"""Nodes of an allocation that are looked at without --nodes; a node answers with some 30 KB."""

_MARK = "ncclt-part "
_NODE = "ncclt-node"
_LINE = re.compile(rf"{_NODE} ([\w.-]{{1,255}}) (\d+) ([A-Za-z0-9+/=]+)")
_MOST_BYTES = 64 * 1024 * 1024

SCRIPT = (
    "{ "
    + "; ".join(f"echo '{_MARK}{part}'; {command} 2>/dev/null" for part, command in _PARTS.items())
    # torchrun turns $$ into $, so a shell inside asks for the number that tells equal host names apart.
    # Short lines, written one by one: lines of several nodes may alternate, and gzip notices any that were cut.
    + f"; }} | gzip -c | base64 -w 512 | sed -u \"s/^/{_NODE} $(uname -n) $(sh -c 'echo $PPID') /\""
)
"""Script that runs on each node. Its output is packed, because launchers prefix, cut and mix lines."""


def examine_nodes(target: Target, environ: Mapping[str, str]) -> tuple[tuple[Facts, ...], tuple[str, ...]]:
    """Return the facts of each node, and what could not be found out, one sentence each.

    Args:
        target: resolved. Without a launcher that reaches nodes this machine is looked at; a launcher that was asked for
            also starts one small all_reduce, because NCCL's log shows its version, its network and GPUDirect.

    Raises:
        UsageError: the launcher cannot be used for this.
    """
    if target.launcher_class.chooses_nodes:
        raise UsageError(
            f"nodes cannot be queried with --launcher {target.launcher}: that takes pods and an image of your own",
            hint="run `ncclt cluster detect` in a pod with all GPUs of a node, or give saved outputs by --from",
        )
    asked = target.reason == ON_REQUEST
    if asked and not target.is_launched:
        raise UsageError(
            f"--launcher {target.launcher} reaches no nodes", hint="leave it out, or use slurm, mpirun or ssh"
        )
    if not target.is_launched or target.launcher_class.shares_files:
        facts = examine_here(environ).facts
        nodes, missing = [replace(facts, missing=())], facts.missing
        if facts.smi_problem and not missing:
            missing = (
                "no nvidia-smi here: save `nvidia-smi topo -m` and `nvidia-smi -q -x` on a GPU node and give "
                "--from FILE",
            )
    else:
        shape = build_unknown_cluster(nodes=count_nodes_to_examine(target, environ), gpus_per_node=1)
        by_host, missing = ask_nodes(create_launcher(shape, target, target.hosts[: shape.nodes], environ=environ))
        nodes = list(by_host.values())
    if asked:
        log, problems = _log_of_start(nodes, target, environ)
        nodes.append(Facts(log=log))
        missing = (*missing, *problems)
    return tuple(nodes), missing


def count_nodes_to_examine(target: Target, environ: Mapping[str, str]) -> int:
    """Return the number of nodes to examine: as requested, else those of the allocation up to a limit, else one."""
    granted = granted_hosts(environ) if target.launcher_class.uses_allocation else ()
    return target.nodes or len(target.hosts) or min(len(granted), _MOST_GRANTED) or 1


def _log_of_start(
    nodes: Sequence[Facts], target: Target, environ: Mapping[str, str]
) -> tuple[LogFacts, tuple[str, ...]]:
    gpus = target.gpus_per_node or min((len(m.gpus) for facts in nodes for m in facts.matrices), default=0)
    if not gpus:
        return LogFacts(), ("NCCL was not started, since no node shows GPUs",)
    job = build_unknown_cluster(nodes=count_nodes_to_examine(target, environ), gpus_per_node=gpus)
    try:
        starter = create_launcher(job, target, target.hosts[: job.nodes], environ=environ, own_tuning=True)
        benchmark, _ = choose_benchmark(job, target, starter, frozenset({Collective.ALL_REDUCE}))
    except UsageError as error:
        return LogFacts(), (f"NCCL was not started: {error.message}",)
    return start_log(starter, benchmark, job)


def ask_nodes(launcher: Launcher) -> tuple[dict[str, Facts], tuple[str, ...]]:
    """Return the facts of each node by its name, and what went wrong, one sentence each.

    Args:
        launcher: of one process per node.
    """
    result = launcher.run(launcher.plan(("sh", "-c", SCRIPT), variables={}, timeout_s=_TIMEOUT_S))
    if result.killed:
        raise KeyboardInterrupt
    missing = []
    if reason := explain_failure(result, "no answer in time", -1):
        missing.append(f"asking the nodes by {launcher.name} failed: {reason}")
    packed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, process, piece in _LINE.findall(result.stdout):
        packed[host, process].append(piece)
    nodes: dict[str, Facts] = {}
    for (named, process), pieces in packed.items():
        host = f"{named} ({process})" if named in nodes else named  # containers may share a name
        try:
            content = io.BytesIO(base64.b64decode("".join(pieces), validate=True))
            with gzip.GzipFile(fileobj=content) as stream:
                text = stream.read(_MOST_BYTES).decode(errors="replace")
        except (ValueError, EOFError, OSError, zlib.error):
            missing.append(f"the answer of {host} is damaged: run it again, or on fewer nodes")
            continue
        nodes[host], problems = parse_node_answer(host, text)
        missing += problems
    return nodes, tuple(missing)


def parse_node_answer(host: str, text: str) -> tuple[Facts, list[str]]:
    """Return the facts in one node's answer, and what it lacks, one sentence each."""
    parts: dict[str, list[str]] = defaultdict(list)
    part = ""
    for line in text.splitlines():
        if line.startswith(_MARK) and line.removeprefix(_MARK) in _PARTS:
            part = line.removeprefix(_MARK)
        else:
            parts[part].append(line)
    gpus: dict[str, Any] = {}
    missing = []
    for field, arguments, parse in GPU_OUTPUTS:
        try:
            gpus[field] = (parse("\n".join(parts[field]), f"{host}: {NVIDIA_SMI} {arguments}"),)
        except InputError as error:
            missing.append(error.message)
    adapters = parse_adapters(
        (*parts["adapters"], *parts["slingshot"], *parts["ibstat"]),
        f"{host}: {'ibstat' if parts['ibstat'] else '/sys'}",
    )
    facts = Facts(
        **gpus,
        adapters=adapters,
        cpu=cpu_vendor("\n".join(parts["cpu"])),
        driver=next(iter(drivers_in("\n".join(parts["driver"]))), ""),
        peer_memory=bool(parts["peer_memory"]),
    )
    return facts, missing

"""The parts of a set-up that were examined, and those that were not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor.facts import Facts

LOG_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING",
    # Empty = standard output, whatever file the shell has named (debug.cc).
    "NCCL_DEBUG_FILE": "",
    # Connect everything at the start, so that every transport is logged (2.22 connects when first needed).
    "NCCL_RUNTIME_CONNECT": "0",
}
"""NCCL logs its whole start with these."""

_SHOWN = 3
"""Logs named in one message."""

_LOG = "log a job from its start with " + " ".join(f"{name}={value}" for name, value in LOG_VARIABLES.items() if value)
_START = "add --launcher torchrun --gpus-per-node N,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination(Documented):
    """One part of a set-up.

    Attributes:
        part: driver, GPUs, links, NICs, transports or plugins.
        by: the sources that show it; empty = it was not examined.
        why: it was not examined.
        how: to examine it.
    """

    SHAPE: ClassVar = Shape()

    part: str
    by: tuple[str, ...] = ()
    why: str = ""
    how: str = ""


def examine_parts(facts: Facts) -> tuple[Examination, ...]:
    """Return every part that matters here: one GPU has no links and no transports, one node needs no NICs."""
    return tuple(_parts(facts))


def _parts(facts: Facts) -> Iterator[Examination]:
    log = facts.log
    reports = facts.gpu_reports
    drivers = [report.source for report in reports if report.driver]
    drivers += ["/proc/driver/nvidia/version"] if facts.driver else []
    drivers += [process.name for process in log.processes if process.driver]
    asked = "run it on a GPU node, save what it prints, and give it by --from"
    no_report = facts.smi_problem or "no `nvidia-smi -q -x`"
    yield _part("driver", drivers, no_report, asked)
    yield _part("GPUs", (report.source for report in reports), no_report, asked)
    ranks = max((start.ranks or 0 for start in log.starts), default=0)
    if ranks > 1 or _most_gpus(facts) != 1:
        links = [matrix.source for matrix in facts.matrices]
        links += [topology.source for topology in facts.topologies]
        links += [link.evidence.source for link in log.links if link.end in ("GPU", "NVS")]
        yield _part("links", links, facts.smi_problem or "no `nvidia-smi topo -m`", asked)
    if {start.nodes for start in log.starts if start.nodes} != {1}:
        nics = [adapter.source for adapter in facts.adapters]
        nics += [matrix.source for matrix in facts.matrices]
        nics += [process.network.evidence.source for process in log.processes if process.network]
        nics += ["/sys/class/infiniband"] if facts.here else []
        yield _part("NICs", nics, "no `ibstat`", "save `ibstat` of a node")
    yield from _logged_parts(facts, ranks)


def _most_gpus(facts: Facts) -> int:
    counted = [len(report.gpus) for report in facts.gpu_reports]
    counted += [len(matrix.gpus) for matrix in facts.matrices]
    return max((*counted, *(len(topology.gpus) for topology in facts.topologies)), default=0)


def _logged_parts(facts: Facts, ranks: int) -> Iterator[Examination]:
    log = facts.log
    shown = ", ".join(log.sources[:_SHOWN]) + (", ..." if len(log.sources) > _SHOWN else "")
    why = "" if log.tells_starts else f"no line of a start in {shown}" if log.sources else "no log of NCCL"
    how = f"{_START} or {_LOG}" if facts.here else _LOG
    if ranks != 1:
        sources = log.sources if log.transports() else ()
        yield _part("transports", sources, why or f"no connection in {shown}", how)
    told = any(process.plugins or process.network for process in log.processes)
    yield _part("plugins", log.sources if told else (), why or f"no plugin or network in {shown}", how)


def _part(part: str, sources: Iterable[str], why: str, how: str) -> Examination:
    by = tuple(dict.fromkeys(sources))
    return Examination(part=part, by=by) if by else Examination(part=part, why=why, how=how)

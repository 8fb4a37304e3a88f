"""Rules about NCCL's log: its release, plugins, ranks that differ, warnings, and the cluster that was named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from ncclt.core.cluster import PER_RANK
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Check, Observation, Severity, rule
from ncclt.health.doctor.gpu_report import gpu_model
from ncclt.health.doctor.known_issues import KNOWN_ISSUES
from ncclt.health.doctor.variables import READ_BY_EVERY_RANK
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.log.facts import LogFacts, Process
from ncclt.nccl.variables import VariableClass, classify

_FIRST_UNKNOWN = NcclVersion(2, 31)
"""From here on NCCL's sources were not checked for whether P2C still counts as safe for LL128."""


def _version_line(facts: Facts) -> tuple[Evidence, ...]:
    said = (*(process.version for process in facts.log.processes), facts.log.announced)
    return tuple(version.evidence for version in said if version)[:1]


@rule("VER001")
def _known_issue(facts: Facts) -> Iterator[Observation]:
    for issue in KNOWN_ISSUES:
        if not issue.is_relative and issue.applies(facts):
            what = f"NCCL {facts.nccl}: {issue.what} ({issue.source})"
            yield Observation(what=what, evidence=_version_line(facts), fix=issue.fix)


@rule("VER002")
def _torn_stores(facts: Facts) -> Iterator[Observation]:
    if facts.nccl is None or facts.nccl >= _FIRST_UNKNOWN:
        return
    row = next((r for r in facts.log.cost_table if any(p == "LL128" and bw > 0 for _, p, _, bw in r.cells)), None)
    path = next(
        (g.evidence for s in facts.log.starts for g in s.graphs if g.type_inter == "P2C" and (s.nodes or 1) > 1), None
    )
    if row and path:
        what = "NCCL uses LL128 with NICs that reach the GPU over C2C, where halves of a store may arrive apart"
        yield Observation(what=what, evidence=(path, row.evidence))


@rule("VER003")
def _other_version(facts: Facts) -> Iterator[Observation]:
    said = facts.version or (facts.cluster.version if facts.cluster else None)
    logged = facts.nccl if _version_line(facts) else None
    if said and logged and said != logged:
        what = f"the log is of NCCL {logged}, {said} was meant"
        yield Observation(what=what, evidence=_version_line(facts))


@rule("LOG002")
def _no_starts(facts: Facts) -> Iterator[Observation]:
    if facts.log.sources and not facts.log.tells_starts:
        names = ", ".join(facts.log.sources)
        yield Observation(
            what=f"{names} does not tell how communicators started",
            evidence=(Evidence(source=names, text=f"{facts.log.lines} lines of NCCL, none of a start"),),
        )


_EVERY_START = ("RMA/Socket : rma_socket requires GDRCopy", "lib wrapper not initialized")
"""Warnings of NCCL 2.32 at every start over sockets: one-sided transfers and InfiniBand, of no use there."""

_NO_NETWORK = "Failed to initialize NET plugin"
"""Of NCCL 2.32 where a network has no device, which a job on one node does not need."""


@rule("LOG001")
def _nccl_warned(facts: Facts) -> Iterator[Observation]:
    starts = facts.log.starts
    harmless = (*_EVERY_START, _NO_NETWORK) if starts and all(start.nodes == 1 for start in starts) else _EVERY_START
    if lines := [line for line in facts.log.warnings if not any(text in line.text for text in harmless)]:
        yield Observation(what=f"NCCL logged {count_noun(len(lines), 'warning')}", evidence=tuple(lines))


@rule("CLU001")
def _other_cluster(facts: Facts) -> Iterator[Observation]:
    if facts.cluster is None:
        return
    cluster = facts.cluster
    expected = gpu_model(cluster.gpu)
    for report in facts.gpu_reports:
        for gpu in report.gpus[:1]:
            found = gpu_model(gpu.model)
            if expected and found and found.pattern != expected.pattern:
                line = Evidence(source=report.source, text=f"{gpu.name} is {gpu.model}")
                yield Observation(
                    what=f"cluster {cluster.name} has {cluster.gpu}, here is {gpu.model}", evidence=(line,)
                )
    for matrix in facts.matrices:
        line = Evidence(source=matrix.source, text=f"{len(matrix.gpus)} GPUs, NVLink: {matrix.has_nvlink}")
        if len(matrix.gpus) < cluster.gpus_per_node:
            what = f"cluster {cluster.name} has {cluster.gpus_per_node} GPUs per node, here are {len(matrix.gpus)}"
            yield Observation(what=what, evidence=(line,))
        if cluster.gpus_per_node > 1 and matrix.has_nvlink != (cluster.link_class in ("nvlink", "nvswitch")):
            yield Observation(
                what=f"cluster {cluster.name} says {cluster.link_class}, the matrix differs", evidence=(line,)
            )
        if cluster.topology_hash and cluster.topology_hash != matrix.topology_hash():
            what = f"the topology is not the one that cluster {cluster.name} was taken from"
            yield Observation(what=what, evidence=(line,))


RELEASE_RULES = (
    _known_issue,
    _torn_stores,
    _other_version,
    _other_cluster,
    _nccl_warned,
    _no_starts,
)
"""About releases, logs and clusters."""


_KINDS = {"TUNER": "tuner", "NET": "net", "PROFILER": "profiler", "ENV": "env", "GIN": "GIN", "RMA": "RMA"}
"""First word of NCCL's lines about a plugin -> its name; NCCL_TUNER_PLUGIN requests it."""

_REQUESTED = re.compile(r"/Plugin: Plugin name set by env to (.*)")
_LOADED = re.compile(r"/Plugin: (?:Loaded|Using|Initialized|Successfully)(?! internal)", re.I)
_FAILED = re.compile(
    r"could not find|failed|cannot|can't|unable|not found|no plugin|undefined symbol|no such file|"
    r"plugin load(?:ing)? \(?\S*\)? ?returned|\.so\S*: ",
    re.I,
)
_OF_ANOTHER_PLUGIN = re.compile(r"ncclCollNet|ncclGin|ncclRma")
"""One library may bring several plugins; that it has no CollNet is normal."""


@rule("PLG001")
def _not_loaded(facts: Facts) -> Iterator[Observation]:
    for word, kind in _KINDS.items():
        found: dict[str, tuple[Evidence, ...]] = {}
        counts: dict[str, int] = {}
        for process in facts.log.processes:
            if lost := _lost(process, word, facts.value(f"NCCL_{word}_PLUGIN")):
                what, lines = lost
                found.setdefault(what, lines)
                counts[what] = counts.get(what, 0) + 1
        for what, lines in found.items():
            more = f" ({counts[what]} processes)" if counts[what] > 1 else ""
            yield Observation(what=f"the {kind} plugin {what}{more}", evidence=lines)


def _lost(process: Process, word: str, anywhere: Variable | None) -> tuple[str, tuple[Evidence, ...]] | None:
    """Return the request of a plugin that a process did not load, with the reason and its lines."""
    lines = [said for said in process.plugins.values() if said.value.startswith(f"{word}/")]
    name = process.variables.get(f"NCCL_{word}_PLUGIN")
    requested = next((match[1] for said in lines if (match := _REQUESTED.search(said.value))), "")
    requested = requested or (name.value if name else anywhere.value if anywhere else "")
    if requested.strip().lower() in ("", "none"):
        return None
    if any(_LOADED.search(said.value) for said in lines):
        if word == "NET" and process.network and process.network.value in ("IB", "Socket"):
            used = process.network
            return f"{requested} is loaded and not used: NCCL uses its own {used.value}", (used.evidence,)
        return None
    reasons = [said for said in lines if _FAILED.search(said.value) and not _REQUESTED.search(said.value)]
    reasons = reasons or [said for said in lines if "using internal" in said.value.lower()]
    if word == "NET":
        reasons = [said for said in reasons if not _OF_ANOTHER_PLUGIN.search(said.value)]
    if not reasons:
        return None
    reason = reasons[-1].value.partition(": ")[2].rstrip(".")
    return f"{requested} was requested and is not loaded: {reason}", tuple(said.evidence for said in reasons)


@rule("PLG002")
def _set_inside(facts: Facts) -> Iterator[Observation]:
    found: dict[tuple[str, str], Evidence] = {}
    for process in facts.log.processes:
        for name, said in process.set_inside.items():
            found.setdefault((name, said.value), said.evidence)
    for (name, value), line in found.items():
        tuned = classify(name)[0] is VariableClass.TUNING
        yield Observation(
            what=f"{name}={value} is set inside the process{_consequence(name, value)}",
            evidence=(line,),
            severity=None if tuned else Severity.INFO,
        )


def _consequence(name: str, value: str) -> str:
    if name == "NCCL_ALGO":
        return ", which overrules the algorithms of every tuner table"
    if name != "NCCL_PROTO":
        return ""
    words = value.lower().removeprefix("^").split(",")
    left = [word for word in ("LL", "LL128", "Simple") if (word.lower() in words) == value.startswith("^")]
    return f", which takes {' and '.join(left)} from every tuner table" if left else ""


PLUGIN_RULES = (_not_loaded, _set_inside)
"""About plugins."""


def _jobs(log: LogFacts) -> Iterator[tuple[Process, ...]]:
    """Yield the processes of each job; if no start is logged, all of them are taken as one job."""
    if not log.jobs and not any(start.rank is not None for start in log.starts):
        yield log.processes
        return
    by_key = {(process.host, process.pid): process for process in log.processes}
    for members in log.jobs:
        yield tuple(by_key[key] for key in members if key in by_key)


_Value = Callable[[Process], tuple[str, Evidence] | None]
"""Returns a value of a process and the line that shows it; None = the process has none."""


def _differing(job: tuple[Process, ...], value: _Value, what: str) -> Iterator[Observation]:
    """Yield an observation if the processes of a job have more than one value."""
    found: dict[str, Evidence] = {}
    counts: Counter[str] = Counter()
    for process in job:
        if said := value(process):
            found.setdefault(*said)
            counts[said[0]] += 1
    if len(found) > 1:
        shares = ", ".join(f"{text} on {counts[text]}" for text in found)
        yield Observation(what=f"{what}: {shares}", evidence=tuple(found.values()))


def _in_each_job(value: _Value, noun: str) -> Check:
    def check(facts: Facts) -> Iterator[Observation]:
        for job in _jobs(facts.log):
            yield from _differing(job, value, f"processes of one job have different {noun}")

    return check


def _adapters(process: Process) -> tuple[str, Evidence] | None:
    names = ", ".join(process.adapters)
    number = f"{len(process.adapters)} adapters"
    return (number, Evidence(source=process.name, text=f"NCCL uses {names}")) if process.adapters else None


@rule("RNK002")
def _variables(facts: Facts) -> Iterator[Observation]:
    complete = {(start.host, start.pid) for start in facts.log.starts if start.complete}
    for job in _jobs(facts.log):
        names = sorted({name for process in job for name in process.variables} - PER_RANK)
        for name in names:
            yield from _differing(job, _variable(name, complete), f"{name} differs between processes of one job")


def _variable(name: str, complete: set[tuple[str, int]]) -> _Value:
    def value(process: Process) -> tuple[str, Evidence] | None:
        if (said := process.variables.get(name)) is not None:
            return said.value, said.evidence
        if name in READ_BY_EVERY_RANK and (process.host, process.pid) in complete:
            return "not set", Evidence(source=process.name, text=f"started without {name}")
        return None

    return value


RANK_RULES = (
    rule("RNK001")(
        _in_each_job(lambda p: (p.version.value, p.version.evidence) if p.version else None, "NCCL versions")
    ),
    _variables,
    rule("RNK003")(_in_each_job(lambda p: (p.network.value, p.network.evidence) if p.network else None, "networks")),
    rule("RNK004")(_in_each_job(_adapters, "numbers of network adapters")),
    rule("RNK005")(
        _in_each_job(
            lambda p: (p.driver, Evidence(source=p.name, text=f"CUDA driver {p.driver}")) if p.driver else None,
            "CUDA drivers",
        )
    ),
)
"""About ranks that differ."""

"""Rules about NCCL's log: its release, plugins, ranks that differ, warnings, and the cluster that was named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from ncclt.core.cluster import PER_RANK
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import DoctorRule, Observation, Severity, observe, rule
from ncclt.health.doctor.gpu_report import gpu_model
from ncclt.health.doctor.known_issues import KNOWN_ISSUES
from ncclt.health.doctor.variables import READ_BY_EVERY_RANK
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.log.facts import LogFacts, Process
from ncclt.nccl.variables import VariableClass, classify

_FIRST_UNKNOWN = NcclVersion(2, 31)
"""From here on NCCL's sources were not checked for whether P2C still counts as safe for LL128."""


def _find_version_line(facts: Facts) -> tuple[Evidence, ...]:
    versions = (*(process.version for process in facts.log.processes), facts.log.announced)
    return tuple(version.evidence for version in versions if version)[:1]


@rule("VER001")
def _known_issue(facts: Facts) -> Iterator[Observation]:
    for issue in KNOWN_ISSUES:
        if not issue.is_relative and issue.applies(facts):
            problem = f"NCCL {facts.nccl}: {issue.what} ({issue.source})"
            yield observe(problem, *_find_version_line(facts), fix=issue.fix)


@rule("VER002")
def _torn_stores(facts: Facts) -> Iterator[Observation]:
    if facts.nccl is None or facts.nccl >= _FIRST_UNKNOWN:
        return
    row = next((r for r in facts.log.cost_table if any(p == "LL128" and bw > 0 for _, p, _, bw in r.cells)), None)
    path = next((graph.evidence for _, graph in facts.graphs(between_nodes=True) if graph.type_inter == "P2C"), None)
    if row and path:
        problem = "NCCL uses LL128 with NICs that reach the GPU over C2C, where halves of a store may arrive apart"
        yield observe(problem, path, row.evidence)


@rule("VER003")
def _other_version(facts: Facts) -> Iterator[Observation]:
    meant = facts.version or (facts.cluster.version if facts.cluster else None)
    lines = _find_version_line(facts)
    if meant and lines and facts.nccl and meant != facts.nccl:
        yield observe(f"the log is of NCCL {facts.nccl}, {meant} was meant", *lines)


@rule("LOG002")
def _no_starts(facts: Facts) -> Iterator[Observation]:
    if facts.log.sources and not facts.log.tells_starts:
        names = ", ".join(facts.log.sources)
        line = Evidence(source=names, text=f"{facts.log.lines} lines of NCCL, none of a start")
        yield observe(f"{names} does not tell how communicators started", line)


_EVERY_START = ("RMA/Socket : rma_socket requires GDRCopy", "lib wrapper not initialized")
"""Warnings of NCCL 2.32 at every start over sockets: one-sided transfers and InfiniBand, of no use there."""

_NO_NETWORK = "Failed to initialize NET plugin"
"""Of NCCL 2.32 where a network has no device, which a job on one node does not need."""


@rule("LOG001")
def _nccl_warned(facts: Facts) -> Iterator[Observation]:
    starts = facts.log.starts
    harmless = (*_EVERY_START, _NO_NETWORK) if starts and all(start.nodes == 1 for start in starts) else _EVERY_START
    if lines := [line for line in facts.log.warnings if not any(text in line.text for text in harmless)]:
        yield observe(f"NCCL logged {count_noun(len(lines), 'warning')}", *lines)


@rule("CLU001")
def _other_cluster(facts: Facts) -> Iterator[Observation]:
    if facts.cluster is None:
        return
    cluster = facts.cluster
    expected = gpu_model(cluster.gpu)
    for report in facts.gpu_reports:
        gpu = report.gpus[0]
        model = gpu_model(gpu.model)
        if expected and model and model.pattern != expected.pattern:
            line = Evidence(source=report.source, text=f"{gpu.name} is {gpu.model}")
            yield observe(f"cluster {cluster.name} has {cluster.gpu}, here is {gpu.model}", line)
    for matrix in facts.matrices:
        line = Evidence(source=matrix.source, text=f"{len(matrix.gpus)} GPUs, NVLink: {matrix.has_nvlink}")
        if len(matrix.gpus) < cluster.gpus_per_node:
            problem = f"cluster {cluster.name} has {cluster.gpus_per_node} GPUs per node, here are {len(matrix.gpus)}"
            yield observe(problem, line)
        if cluster.gpus_per_node > 1 and matrix.has_nvlink != (cluster.link_class in ("nvlink", "nvswitch")):
            yield observe(f"cluster {cluster.name} says {cluster.link_class}, the matrix differs", line)
        if cluster.topology_hash and cluster.topology_hash != matrix.topology_hash():
            yield observe(f"the topology is not the one that cluster {cluster.name} was taken from", line)


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
        lines: dict[str, tuple[Evidence, ...]] = {}
        counts: Counter[str] = Counter()
        for process in facts.log.processes:
            if lost := _find_plugin_problem(process, word, facts.value(f"NCCL_{word}_PLUGIN")):
                lines.setdefault(*lost)
                counts[lost[0]] += 1
        for problem, count in counts.items():
            processes = f" ({count} processes)" if count > 1 else ""
            yield observe(f"the {kind} plugin {problem}{processes}", *lines[problem])


def _find_plugin_problem(
    process: Process, word: str, configured: Variable | None
) -> tuple[str, tuple[Evidence, ...]] | None:
    """Return the request of a plugin that a process did not load, with the reason and its lines."""
    lines = [line for line in process.plugins.values() if line.value.startswith(f"{word}/")]
    requests = [match[1] for line in lines if (match := _REQUESTED.search(line.value))]
    variable = process.variables.get(f"NCCL_{word}_PLUGIN") or configured
    requested = next(filter(None, requests), variable.value if variable else "")
    if requested.strip().lower() in ("", "none"):
        return None
    if any(_LOADED.search(line.value) for line in lines):
        if word == "NET" and process.network and process.network.value in ("IB", "Socket"):
            network = process.network
            return f"{requested} is loaded and not used: NCCL uses its own {network.value}", (network.evidence,)
        return None
    reasons = [line for line in lines if _FAILED.search(line.value) and not _REQUESTED.search(line.value)]
    reasons = reasons or [line for line in lines if "using internal" in line.value.lower()]
    if word == "NET":
        reasons = [line for line in reasons if not _OF_ANOTHER_PLUGIN.search(line.value)]
    if not reasons:
        return None
    reason = reasons[-1].value.partition(": ")[2].rstrip(".")
    return f"{requested} was requested and is not loaded: {reason}", tuple(line.evidence for line in reasons)


@rule("PLG002")
def _set_inside(facts: Facts) -> Iterator[Observation]:
    lines: dict[tuple[str, str], Evidence] = {}
    for process in facts.log.processes:
        for name, line in process.set_inside.items():
            lines.setdefault((name, line.value), line.evidence)
    for (name, value), evidence in lines.items():
        severity = None if classify(name)[0] is VariableClass.TUNING else Severity.INFO
        problem = f"{name}={value} is set inside the process{_explain_override(name, value)}"
        yield observe(problem, evidence, severity=severity)


def _explain_override(name: str, value: str) -> str:
    if name == "NCCL_ALGO":
        return ", which overrules the algorithms of every tuner table"
    if name != "NCCL_PROTO":
        return ""
    words = value.lower().removeprefix("^").split(",")
    lost = [word for word in ("LL", "LL128", "Simple") if (word.lower() in words) == value.startswith("^")]
    return f", which takes {' and '.join(lost)} from every tuner table" if lost else ""


def _list_jobs(log: LogFacts) -> Iterator[tuple[Process, ...]]:
    """Yield the processes of each job; if no start is logged, all of them are taken as one job."""
    if not log.jobs and not any(start.rank is not None for start in log.starts):
        yield log.processes
        return
    by_key = {(process.host, process.pid): process for process in log.processes}
    for members in log.jobs:
        yield tuple(by_key[key] for key in members if key in by_key)


_Read = Callable[[Process], tuple[str, Evidence] | None]
"""Returns a value of a process and the line that shows it; None = the process has none."""


def _compare(job: tuple[Process, ...], read: _Read, problem: str) -> Iterator[Observation]:
    """Yield an observation if the processes of a job have more than one value."""
    values = [value for process in job if (value := read(process))]
    lines = dict(reversed(values))  # the first line of each value
    counts = Counter(text for text, _ in values)
    if len(counts) > 1:
        shares = ", ".join(f"{text} on {count}" for text, count in counts.items())
        yield observe(f"{problem}: {shares}", *(lines[text] for text in counts))


def _compare_in_each_job(id: str, read: _Read, noun: str) -> DoctorRule:
    @rule(id)
    def check(facts: Facts) -> Iterator[Observation]:
        for job in _list_jobs(facts.log):
            yield from _compare(job, read, f"processes of one job have different {noun}")

    return check


def _read_adapters(process: Process) -> tuple[str, Evidence] | None:
    line = Evidence(source=process.name, text=f"NCCL uses {', '.join(process.adapters)}")
    return (f"{len(process.adapters)} adapters", line) if process.adapters else None


def _read_driver(process: Process) -> tuple[str, Evidence] | None:
    line = Evidence(source=process.name, text=f"CUDA driver {process.driver}")
    return (process.driver, line) if process.driver else None


@rule("RNK002")
def _variables(facts: Facts) -> Iterator[Observation]:
    complete = {(start.host, start.pid) for start in facts.log.starts if start.complete}
    for job in _list_jobs(facts.log):
        for name in sorted({name for process in job for name in process.variables} - PER_RANK):
            yield from _compare(job, _read_variable(name, complete), f"{name} differs between processes of one job")


def _read_variable(name: str, complete: set[tuple[str, int]]) -> _Read:
    def read(process: Process) -> tuple[str, Evidence] | None:
        if line := process.variables.get(name):
            return line.value, line.evidence
        if name in READ_BY_EVERY_RANK and (process.host, process.pid) in complete:
            return "not set", Evidence(source=process.name, text=f"started without {name}")
        return None

    return read


_versions = _compare_in_each_job(
    "RNK001", lambda p: (p.version.value, p.version.evidence) if p.version else None, "NCCL versions"
)
_networks = _compare_in_each_job(
    "RNK003", lambda p: (p.network.value, p.network.evidence) if p.network else None, "networks"
)
_adapters = _compare_in_each_job("RNK004", _read_adapters, "numbers of network adapters")
_drivers = _compare_in_each_job("RNK005", _read_driver, "CUDA drivers")

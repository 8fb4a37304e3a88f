"""Rules about ranks of one job that differ from each other, which NCCL does not check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Check, DoctorRule, Observation, Severity, rule
from ncclt.health.doctor.variables import PER_RANK, READ_BY_EVERY_RANK
from ncclt.nccl.log.evidence import Evidence
from ncclt.nccl.log.facts import LogFacts, Process


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


def _driver(process: Process) -> tuple[str, Evidence] | None:
    text = f"CUDA driver {process.driver}"
    return (process.driver, Evidence(source=process.name, text=text)) if process.driver else None


def _adapters(process: Process) -> tuple[str, Evidence] | None:
    names = ", ".join(process.adapters)
    number = f"{len(process.adapters)} adapters"
    return (number, Evidence(source=process.name, text=f"NCCL uses {names}")) if process.adapters else None


@rule(
    id="RNK002",
    severity=Severity.ERROR,
    title="ranks have different NCCL variables",
    why="NCCL does not compare them: ranks that choose differently wait for each other for ever, or corrupt data.",
    fix="set variables through the launcher for all ranks alike (srun --export=ALL, mpirun -x), and compare "
    "/etc/nccl.conf and ~/.nccl.conf of the nodes",
    source="NCCL user guide, environment variables; NVIDIA/nccl#1328",
)
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
    DoctorRule(
        id="RNK001",
        severity=Severity.ERROR,
        title="ranks load different NCCL versions",
        why="Versions differ in protocol and choice: the job hangs, crashes or is measured as a mixture.",
        fix="give all ranks the same image; look at LD_LIBRARY_PATH, LD_PRELOAD and the NCCL inside the PyTorch wheel",
        source="NVIDIA/nccl#1136, #1328",
        check=_in_each_job(lambda p: (p.version.value, p.version.evidence) if p.version else None, "NCCL versions"),
    ),
    _variables,
    DoctorRule(
        id="RNK003",
        severity=Severity.ERROR,
        title="ranks use different networks",
        why="Ranks on different networks cannot reach each other; on one node it hides a broken adapter.",
        fix="look at the lines `NET/IB` and `NET/Plugin` of the ranks that differ; set NCCL_NET so that a missing "
        "network is an error",
        source="NCCL user guide, NCCL_NET",
        check=_in_each_job(lambda p: (p.network.value, p.network.evidence) if p.network else None, "networks"),
    ),
    DoctorRule(
        id="RNK004",
        severity=Severity.WARNING,
        title="ranks see different numbers of adapters",
        why="The node with fewest adapters sets the pace of all.",
        fix="compare `ibstat` of the nodes; set the same NCCL_IB_HCA everywhere, or NCCL_IGNORE_NET_MISMATCH=0 (2.30)",
        source="NCCL user guide, NCCL_IGNORE_NET_MISMATCH",
        check=_in_each_job(_adapters, "numbers of network adapters"),
    ),
    DoctorRule(
        id="RNK005",
        severity=Severity.WARNING,
        title="nodes have different CUDA drivers",
        why="Features such as cuMem, NVLS and DMA-BUF depend on the driver: NCCL uses what all ranks have, or fails.",
        fix="bring all nodes to one driver",
        source="NCCL user guide, NCCL_CUMEM_ENABLE, NCCL_DMABUF_ENABLE",
        check=_in_each_job(_driver, "CUDA drivers"),
    ),
)
"""About ranks that differ."""

"""Everything that is known about a set-up before it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.message import format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.workload import Workload
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.conf_file import ConfFile
from ncclt.health.doctor.gpu_report import GpuReport
from ncclt.health.doctor.matrix import TopologyMatrix
from ncclt.health.doctor.nccl_topology import NcclTopology
from ncclt.health.doctor.variables import shown_value
from ncclt.measure.outcome import signal_name
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.log.facts import Connection, LogFacts, RankStart, SearchedGraph
from ncclt.profile.record.ranks import RankReport, find_other_backends
from ncclt.profile.views.exposure import bound_gain

LOG_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING",
    # Empty = standard output, whatever file the shell has named (debug.cc).
    "NCCL_DEBUG_FILE": "",
    # Connect everything at the start, so that every transport is logged (2.22 connects when first needed).
    "NCCL_RUNTIME_CONNECT": "0",
}
"""Variables with which NCCL logs its whole start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job of the user that ran for a short while with NCCL's log switched on.

    Attributes:
        argv: its command, without secrets.
        exit_code: as a shell gives it.
        ended_by_ncclt: why ncclt has sent it SIGTERM, `limit: 60 s without ...`; empty = it has not.
        recorded_steps: training steps after which its ranks leave; 0 = they did not come that far.
        wall_s: its run time, s.
        programs: its Python processes that loaded PyTorch.
        workload: what PyTorch's profiler recorded; None = nothing.
        unrecorded: why there is no workload.
    """

    argv: tuple[str, ...]
    exit_code: int
    ended_by_ncclt: str
    recorded_steps: int = 0
    wall_s: float
    programs: tuple[RankReport, ...] = ()
    workload: Workload | None = None
    unrecorded: str = ""

    @property
    def has_failed(self) -> bool:
        """Return True if the job failed without a signal of ncclt; ranks that leave after their steps do not fail."""
        return bool(self.exit_code) and not self.ended_by_ncclt

    @property
    def ending(self) -> str:
        """Return the end of the job in words, without a full stop."""
        steps = f"{count_noun(self.recorded_steps, 'training step')} recorded" if self.recorded_steps else ""
        ran = f"after {self.wall_s:.0f} s"
        why = f" ({self.ended_by_ncclt or steps})" if self.ended_by_ncclt or steps else ""
        if self.ended_by_ncclt or (steps and not self.exit_code):
            how = "ended by ncclt"
        elif self.exit_code > 128:
            how = f"killed by {signal_name(self.exit_code - 128)}"
        else:
            how = "failed" if self.exit_code else "ended"
        return f"{how} {ran}{why}; exit code {self.exit_code}"

    @property
    def exposed_share(self) -> float | None:
        """Return the share of the step that is exposed communication; None = not recorded."""
        bound = bound_gain(self.workload) if self.workload else None
        return bound.share if bound else None

    @property
    def other_backends(self) -> str:
        """Return the backends over which its ranks trained, if NCCL was none of them; empty = that is not known."""
        return find_other_backends(self.programs)

    @property
    def seen(self) -> str:
        """Return the facts about its training that NCCL's log does not have, in words."""
        ranks = [program for program in self.programs if program.steps_seen]
        if not self.programs:
            return "no Python process of it loaded PyTorch"
        if not ranks:
            return f"PyTorch was loaded by {count_noun(len(self.programs), 'process', 'processes')}, and none trained"
        backends = " and ".join(sorted({rank.backend for rank in ranks if rank.backend}))
        over = f" over {backends}" if backends else " without a process group"
        steps = count_noun(max(rank.steps_seen for rank in ranks), "step")
        training = f"{count_noun(len(ranks), 'rank')} made {steps}{over}"
        recorded = self.workload.provenance.steps if self.workload else 0
        if self.workload is None or not recorded:
            return training
        sent = format_bytes(round(self.workload.bytes_per_step))
        messages = count_noun(len(self.workload.messages), "message")
        were = "was" if recorded == 1 else "were"
        return f"{training}; {recorded} of them, which {were} recorded, sent {sent} per rank and step in {messages}"

    def program_sources(self) -> Iterator[tuple[RankReport, Evidence]]:
        """Yield each process that loaded PyTorch, and where its facts come from."""
        for program in self.programs:
            rank = "?" if program.rank is None else program.rank
            yield program, Evidence(source=f"{program.host}, rank {rank}", text="")

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "argv": list(self.argv),
            "exit_code": self.exit_code,
            "has_failed": self.has_failed,
            "ending": self.ending,
            "wall_s": round(self.wall_s, 3),
            "seen": self.seen,
            "exposed_share": self.exposed_share,
            "not_recorded": self.unrecorded or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of one set-up.

    Attributes:
        matrices: of the nodes that have one; nodes without one are assumed to be alike.
        gpu_reports: likewise.
        log: of the start of one job.
        environment: inherited NCCL_* and RCCL_* variables of this program.
        conf_files: those that NCCL would read, in its order: what comes first counts.
        file_problems: files that variables name and that NCCL would not find or not be able to read.
        adapters: of this machine, or of the nodes whose outputs were saved.
        peer_memory: the kernel module that lets RDMA devices reach GPU memory is loaded; False = not seen.
        cpu: `intel`, `amd` or `arm` of this machine; empty = not examined.
        driver: NVIDIA's on this machine; empty = not examined, or none.
        here: this machine was looked at.
        virtual: what shows that this is a virtual machine; None = nothing does.
        vendor: of this machine, as its firmware names it; empty = not examined.
        smi_problem: why nvidia-smi showed nothing here, in a few words; empty = it did, or was not asked.
        topologies: of nodes, as NCCL dumped them.
        cluster: that the user names.
        version: of NCCL, given by the user.
        recommended: what a published recommendation sets here.
        missing: sources that are not available, each with what to do about it.
        job: that ncclt ran, and that has written the log; None = the log is of another time.
    """

    matrices: tuple[TopologyMatrix, ...] = ()
    gpu_reports: tuple[GpuReport, ...] = ()
    log: LogFacts = field(default_factory=LogFacts)
    environment: tuple[Variable, ...] = ()
    conf_files: tuple[ConfFile, ...] = ()
    file_problems: tuple[Evidence, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    peer_memory: bool = False
    cpu: str = ""
    driver: str = ""
    here: bool = False
    virtual: Evidence | None = None
    vendor: str = ""
    smi_problem: str = ""
    topologies: tuple[NcclTopology, ...] = ()
    cluster: Cluster | None = None
    version: NcclVersion | None = None
    recommended: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    job: JobRun | None = None

    @property
    def nccl(self) -> NcclVersion | None:
        """Return NCCL's version: as logged, else as given, else the cluster's; None = not known."""
        for process in self.log.processes:
            if process.version is not None:
                return NcclVersion.parse(process.version.value)
        if self.log.announced is not None:
            return NcclVersion.parse(self.log.announced.value)
        return self.version or (self.cluster.version if self.cluster else None)

    @property
    def is_rccl(self) -> bool:
        """Return True if the job's library is RCCL, by its log or by variables that nothing else reads."""
        return bool(self.log.rccl) or any(variable.name.startswith("RCCL_") for variable in self.variables())

    @property
    def rccl(self) -> NcclVersion | None:
        """Return RCCL's version as logged; None = not known, or another library."""
        version = self.log.rccl.get("version")
        return NcclVersion.parse(version.value) if version else None

    @property
    def nvidia_driver(self) -> str:
        """Return NVIDIA's driver if all sources agree; empty = not known, or nodes differ."""
        drivers = {driver for driver in (self.driver, *(report.driver for report in self.gpu_reports)) if driver}
        return drivers.pop() if len(drivers) == 1 else ""

    @property
    def gpu_models(self) -> list[str]:
        """Return the names of the GPU models of the log and of the reports."""
        return [*self.log.gpu_models, *(gpu.model for report in self.gpu_reports for gpu in report.gpus)]

    @property
    def other_backends(self) -> str:
        """Return the backends of a job that trained without NCCL; empty = it had NCCL, or nothing is known of it."""
        return self.job.other_backends if self.job and not self.log.lines else ""

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Return the connections of all starts."""
        return tuple(connection for start in self.log.starts for connection in start.connections)

    def graphs(self, *, between_nodes: bool = False) -> Iterator[tuple[RankStart, SearchedGraph]]:
        """Yield the findings of NCCL for each start; `between_nodes`: of communicators over several nodes only."""
        for start in self.log.starts:
            if not between_nodes or (start.nodes or 1) > 1:
                yield from ((start, graph) for graph in start.graphs)

    @property
    def virtual_machine(self) -> Evidence | None:
        """Return the sign that the GPUs are in a virtual machine; None = there is none."""
        for report in self.gpu_reports:
            for gpu in report.gpus:
                if gpu.virtualization:
                    return Evidence(source=report.source, text=f"{gpu.name}: virtualization mode {gpu.virtualization}")
        return self.virtual

    def variables(self) -> tuple[Variable, ...]:
        """Return the variables in effect, each (name, value) once: environment before files, then log and job."""
        configured: dict[str, Variable] = {}
        for variable in (*self.environment, *(row for file in self.conf_files for row in file.assignments)):
            configured.setdefault(variable.name, variable)
        logged: dict[tuple[str, str], Variable] = {}
        for process in self.log.processes:
            for name, line in sorted(process.variables.items(), key=lambda item: item[0]):
                variable = Variable(name=name, value=line.value, evidence=line.evidence)
                logged.setdefault((name, line.value), variable)
        for rank, source in self.job.program_sources() if self.job else ():
            for name, value in (*rank.started_with, *rank.set_inside):
                if name not in LOG_VARIABLES:  # ncclt itself has set these
                    logged.setdefault((name, value), Variable(name=name, value=value, evidence=source))
        return (*configured.values(), *(v for v in logged.values() if v.name not in configured))

    def value(self, name: str) -> Variable | None:
        """Return the variable of a name; None = not set."""
        return next((variable for variable in self.variables() if variable.name == name), None)

    def fast_adapters(self) -> tuple[Evidence, ...]:
        """Return every sign of a network faster than sockets: RDMA devices of the machine, the matrix and the log."""
        signs = [Evidence(source=a.source, text=f"{a.name} {a.link_layer}".strip()) for a in self.adapters if a.active]
        signs += [
            Evidence(source=m.source, text=f"the matrix lists {', '.join(m.nics)}") for m in self.matrices if m.nics
        ]
        if process := next((process for process in self.log.processes if process.adapters), None):
            named = ", ".join(f"{name} ({layer})" for name, layer in process.adapters.items())
            signs.append(Evidence(source=process.name, text=f"NCCL found {named}"))
        return tuple(signs)

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object; of a log the sums, not its lines."""
        return {
            "nccl_version": str(self.nccl) if self.nccl else None,
            "rccl_version": str(self.rccl) if self.rccl else None,
            "driver": self.nvidia_driver or None,
            "matrices": [matrix.to_document() for matrix in self.matrices],
            "topologies": [topology.to_document() for topology in self.topologies],
            "gpu_reports": [report.to_document() for report in self.gpu_reports],
            "log": _log_document(self.log),
            "variables": [
                {"name": v.name, "value": shown_value(v.name, v.value), "from": v.evidence.source}
                for v in self.variables()
            ],
            "conf_files": [file.source for file in self.conf_files],
            "adapters": [{"name": a.name, "link_layer": a.link_layer, "gbps": a.gbps} for a in self.adapters],
        }


def _log_document(log: LogFacts) -> dict[str, Any] | None:
    if not log.sources:
        return None
    channels = next((start.channels for start in log.starts if start.channels), {})
    return {
        "sources": list(log.sources),
        "lines": log.lines,
        "processes": len(log.processes),
        "ranks": log.ranks,
        "nodes": log.nodes,
        "nccl_versions": sorted({p.version.value for p in log.processes if p.version}),
        "cuda_drivers": sorted({p.driver for p in log.processes if p.driver}),
        "networks": sorted({p.network.value for p in log.processes if p.network}),
        "plugins": sorted({plugin.value for p in log.processes for plugin in p.plugins.values()}),
        "transports": log.transports(),
        "channels": channels,
        "disabled_algorithms": log.disabled(),
        "gpu_models": list(log.gpu_models),
    }

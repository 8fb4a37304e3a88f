"""Rules about the release of NCCL, the log itself, and the cluster that was named."""

from __future__ import annotations

from collections.abc import Iterator

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
from ncclt.health.doctor.gpu_models import gpu_model
from ncclt.health.doctor.releases import KNOWN_TROUBLES
from ncclt.nccl.log.evidence import Evidence

_FIRST_UNKNOWN = NcclVersion(2, 31)
"""From here on NCCL's sources were not checked for whether P2C still counts as safe for LL128."""


def _version_line(facts: Facts) -> tuple[Evidence, ...]:
    said = (*(process.version for process in facts.log.processes), facts.log.announced)
    return tuple(version.evidence for version in said if version)[:1]


@rule(
    id="VER001",
    severity=Severity.WARNING,
    title="a release with known trouble",
    why="The trouble looks like a fault of the cluster or of the job.",
    fix="use another release",
    source="release notes and issues of NCCL, named in the finding",
)
def _known_trouble(facts: Facts) -> Iterator[Observation]:
    for trouble in KNOWN_TROUBLES:
        if trouble.applies(facts):
            what = f"NCCL {facts.nccl}: {trouble.what} ({trouble.source})"
            yield Observation(what=what, evidence=_version_line(facts), fix=trouble.fix)


@rule(
    id="VER002",
    severity=Severity.ERROR,
    title="LL128 over C2C",
    why="On GH200 the two halves of a store of 128 bytes were seen apart: silent corruption between nodes.",
    fix="set NCCL_LL128_C2C=0 on all ranks",
    source="NVIDIA/nccl pull request 2053",
)
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


@rule(
    id="VER003",
    severity=Severity.WARNING,
    title="another NCCL than meant",
    why="What is tuned for one version can be wrong or illegal for the next, and is served for the version it names.",
    fix="give the version that the job loads (--nccl-version), or look at LD_LIBRARY_PATH and LD_PRELOAD",
    source="PyTorch wheels bring their own NCCL",
)
def _other_version(facts: Facts) -> Iterator[Observation]:
    said = facts.version or (facts.cluster.version if facts.cluster else None)
    logged = facts.nccl if _version_line(facts) else None
    if said and logged and said != logged:
        what = f"the log is of NCCL {logged}, {said} was meant"
        yield Observation(what=what, evidence=_version_line(facts))


@rule(
    id="LOG002",
    severity=Severity.INFO,
    title="the log is of no start",
    why="Versions, transports and channels are logged when communicators start; here they are not.",
    fix="run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING and give all of the output",
    source="NCCL user guide, NCCL_DEBUG_SUBSYS",
)
def _no_starts(facts: Facts) -> Iterator[Observation]:
    if facts.log.sources and not facts.log.tells_starts:
        names = ", ".join(facts.log.sources)
        yield Observation(
            what=f"{names} does not tell how communicators started",
            evidence=(Evidence(source=names, text=f"{facts.log.lines} lines of NCCL, none of a start"),),
        )


_EVERY_START = ("RMA/Socket : rma_socket requires GDRCopy", "lib wrapper not initialized")
"""What NCCL 2.32 warns of at every start over sockets: one-sided transfers and InfiniBand, of no use there."""


@rule(
    id="LOG001",
    severity=Severity.WARNING,
    title="NCCL warned",
    why="NCCL warns only of what went wrong or will.",
    fix="read the lines; the first one is usually the cause of the others",
    source="NCCL_DEBUG=WARN",
)
def _nccl_warned(facts: Facts) -> Iterator[Observation]:
    if lines := [line for line in facts.log.warnings if not any(text in line.text for text in _EVERY_START)]:
        yield Observation(what=f"NCCL itself warned: {len(lines)} different texts", evidence=tuple(lines))


@rule(
    id="CLU001",
    severity=Severity.WARNING,
    title="not the cluster that was named",
    why="Results are published for the cluster that was named, and would be served where they do not hold.",
    fix="name the right cluster, or store this one: `ncclt cluster detect --name NAME`",
    source="ncclt",
)
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
    _known_trouble,
    _torn_stores,
    _other_version,
    _other_cluster,
    _nccl_warned,
    _no_starts,
)
"""About releases, logs and clusters."""

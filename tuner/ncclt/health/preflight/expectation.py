"""Expected bus bandwidth of a healthy fabric: from its links, from the fleet's own history, or given by the user."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.cluster import NO_GPU, Cluster
from ncclt.core.message import Collective, bus_factor
from ncclt.core.preflight import Preflight, ProbeReading, Section, State
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology

BASELINE_RUNS = 3
"""Healthy runs that a baseline needs: the median of fewer is one of them."""

_NEWEST = 20
"""Runs that a baseline covers."""

_MEASURED_SHARE = 0.5
"""Of the tolerance, where the reference was measured: equal hardware differs by less than link figures are wrong."""

_REACHED_IN_NODE = {"nvswitch": 0.96, "nvlink": 0.96, "pcie": 0.83, "shm": 1.0}
"""Share of NCCL's own model that is reached within a node at 1 GiB: A100 231 of 240 GB/s, two A100 on one bridge 19.9
of 24, 4 x L40S 15.7 of 15 (public nccl-tests tables)."""

_SHM_GPUS = 4
"""GPUs that saturate the memory paths of a host; more of them share (8 x L40S reach less than half each)."""

_REACHED_BETWEEN = {"none": 1.0, "infiniband": 0.96, "roce": 0.93, "efa": 0.86, "slingshot": 0.92, "ethernet": 0.7}
"""The same between nodes: published curves of Alps, Polaris, p5 and ABCI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected bandwidth of a job's nodes.

    Attributes:
        cluster: sized to the job.
        source: reference for the figures, as shown to users.
        sizes: (size in bytes, bus bandwidth in 1e9 bytes/s) of all nodes together, where something is expected.
        largest_bytes: the size at which launches are judged.
        tolerance: share by which all nodes together may fall short.
    """

    cluster: Cluster
    source: str
    sizes: tuple[tuple[int, float], ...]
    largest_bytes: int
    tolerance: float

    def gbps(self, section: Section) -> float:
        """Return the bus bandwidth expected at a section at the largest size, 1e9 bytes/s.

        Parts of the job follow the links, scaled by what is expected of the job against its links.
        """
        cluster, size = self.cluster, self.largest_bytes
        ranks = section.ranks(cluster.gpus_per_node)
        section_gbps = links_gbps(cluster, nodes=len(section.hosts), ranks=ranks, size=size)
        job_gbps = links_gbps(cluster, nodes=cluster.nodes, ranks=cluster.world_size, size=size)
        return section_gbps * dict(self.sizes)[size] / job_gbps


def links_gbps(cluster: Cluster, *, nodes: int, ranks: int, size: int) -> float:
    """Return the bus bandwidth of all_reduce that the links of a cluster promise, 1e9 bytes/s.

    It is the time that NCCL's own cost model predicts for its own choice, times what is reached of that in practice.

    Args:
        ranks: GPUs that take part, over all of them.
        size: bytes.
    """
    choice = nccl_choice(Collective.ALL_REDUCE, size, build_topology(cluster.sized(nodes=nodes), ranks, nodes > 1))
    assert choice is not None, "nothing is forced, so NCCL has a choice"
    reached = _REACHED_BETWEEN[cluster.fabric] if nodes > 1 else _REACHED_IN_NODE[cluster.link_class]
    if cluster.link_class == "shm":
        reached *= min(1.0, _SHM_GPUS / (ranks / nodes))
    return size / choice.time_us / 1e3 * bus_factor(Collective.ALL_REDUCE, ranks) * reached


def expectation(
    cluster: Cluster,
    sizes: Sequence[int],
    *,
    tolerance: float,
    given_gbps: float | None = None,
    healthy: Sequence[Preflight] = (),
) -> Expectation:
    """Decide what to expect: the user's figure, else the fleet's own baseline, else the links.

    Args:
        cluster: sized to the job.
        sizes: bytes that are measured, ascending.
        tolerance: share by which a figure may be missed; half of it where the figure was measured.
        given_gbps: bus bandwidth of all nodes at the largest size; None = not given.
        healthy: earlier preflights that may serve as a reference, as `find_healthy` returns them.

    Raises:
        UsageError: the tolerance is not between 0 and 1, the given figure not above 0, or nothing is known of CPUs.
    """
    if not 0 < tolerance < 1:
        raise UsageError(f"--tolerance must be above 0 and below 1, not {tolerance:g}")
    largest = max(sizes)
    expected: tuple[tuple[int, float], ...] = ()
    source = ""
    if given_gbps is not None:
        if not 0 < given_gbps < math.inf:
            raise UsageError(f"--expect must be above 0 GB/s and finite, not {given_gbps:g}")
        expected, source = ((largest, given_gbps),), "by --expect"
    elif len(healthy) >= BASELINE_RUNS:
        busbw_gbps: dict[int, list[float]] = {size: [] for size in sizes}
        for row in (row for run in healthy for row in run.rows):
            busbw_gbps.setdefault(row.size_bytes, []).append(row.busbw_gbps)
        enough = [size for size in sizes if len(busbw_gbps[size]) >= BASELINE_RUNS]
        expected = tuple((size, statistics.median(busbw_gbps[size])) for size in enough)
        if largest in enough:
            source, tolerance = f"as the median of {len(healthy)} healthy runs", tolerance * _MEASURED_SHARE
    if not source:
        if cluster.gpu == NO_GPU:
            raise UsageError(
                "gloo runs on CPUs, and the links of the cluster say nothing about these",
                hint="--expect GB/s sets the bandwidth to reach; three healthy runs replace it",
            )
        # Link figures give neither latency nor the size where bandwidth saturates: only the largest size is judged.
        promised = links_gbps(cluster, nodes=cluster.nodes, ranks=cluster.world_size, size=largest)
        expected, source = ((largest, promised),), "from link speeds"
    return Expectation(cluster=cluster, source=source, sizes=expected, largest_bytes=largest, tolerance=tolerance)


def peer_tolerance(tolerance: float) -> float:
    """Return the share by which a part may fall short of its peers: measured in the same minutes, like a baseline."""
    return tolerance * _MEASURED_SHARE


def find_healthy(cluster: Cluster, earlier: Sequence[Preflight], *, benchmark: str) -> list[Preflight]:
    """Return the newest healthy runs of the same fingerprint and benchmark; those of a simulation never count.

    Args:
        cluster: sized to the job.
        earlier: preflights of the cluster, newest first.
    """
    same_job = (State.HEALTHY, cluster.fingerprint().digest(), benchmark, False)
    runs = [run for run in earlier if (run.state, run.fingerprint, run.benchmark, run.simulated) == same_job]
    return runs[:_NEWEST]


_LATENCY_FACTOR = 1.5
"""Small messages vary widely from run to run; half as long again deserves a note, not a finding."""


def latency_note(first: ProbeReading, expected: Expectation) -> str:
    """Return a note that small messages take much longer than in earlier runs; empty if they do not or none exist."""
    if first.outcome is not Outcome.OK:
        return ""
    usual = dict(expected.sizes)
    for size, gbps in first.busbw_gbps:
        if size < 1 << 20 and gbps * _LATENCY_FACTOR < usual.get(size, 0.0):
            return (
                f"{size} B take {usual[size] / gbps:.1f} times as long as in earlier runs: latency is not what it was"
            )
    return ""

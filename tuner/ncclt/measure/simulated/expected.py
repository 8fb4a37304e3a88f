"""The time of a message under a setting on a simulated cluster, without noise; more bandwidth never makes it longer.

NCCL's graph search counts channels of quantised speeds, so that a link a little faster may get fewer of them, or
another algorithm, and be slower. Real machines come with the nominal bandwidths of their links; any other bandwidth is
a question (`ncclt simulate --nic`), not a machine. So the graph of such a bandwidth is that of the next lower nominal
one, and a choice that was faster at a lower one is kept, at that bandwidth.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.measure.simulated.constants import scaled
from ncclt.measure.simulated.kernel import kernel_of
from ncclt.measure.simulated.physics import Physics, physics_of
from ncclt.measure.simulated.truth import kernel_us
from ncclt.nccl.cost_model.graph import graph_of

_LINKS_GBPS = (16.0, 25.0, 32.0, 50.0, 64.0, 100.0, 150.0, 200.0, 300.0, 400.0, 450.0, 538.0, 600.0, 900.0)
_PORTS_GBPS = (1.25, 3.125, 6.25, 12.5, 25.0, 50.0, 100.0)
"""Nominal bandwidths of NVLink, xGMI and PCIe, and of network ports, 1e9 bytes/s."""


_ANY = Cluster(
    name="any", gpus_per_node=1, gpu="", compute_capability=80, link_class="pcie", link_gbps=1.0, nccl_version="2.21.5"
)


def expected_us(cluster: Cluster, setting: Setting, message: Message) -> float:
    """Return the time of one call, µs.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    if cluster.calibration:
        # Fitted at the bandwidths that are there.
        physics = scaled(_physics(cluster, message), cluster.calibration.factors)
        return kernel_us(kernel_of(cluster, setting, message), physics)
    if not message.collective.is_tunable:
        return kernel_us(kernel_of(cluster, setting, message), _physics(cluster, message))
    own = None
    best = float("inf")
    for graph, hardware in _slower_clusters(cluster):
        kernel = kernel_of(graph, setting, message)
        if own is None:
            own = kernel
        elif kernel == own:
            continue  # the same on less bandwidth
        best = min(best, kernel_us(kernel, _physics(hardware, message)))
    return best


def _physics(cluster: Cluster, message: Message) -> Physics:
    return physics_of(cluster, message.group_size, message.spans_nodes)


@lru_cache(maxsize=64)
def _slower_clusters(cluster: Cluster) -> tuple[tuple[Cluster, Cluster], ...]:
    """Return (cluster of the graph, cluster of the bandwidths), this one first, then those below it."""
    links = _steps(cluster.link_gbps, _LINKS_GBPS)
    ports = _steps(cluster.nic_gbps, _PORTS_GBPS) if cluster.nodes > 1 else [(cluster.nic_gbps, cluster.nic_gbps)]
    found: list[tuple[Cluster, Cluster]] = []
    kept: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for link, link_there in links:
        for port, port_there in ports:
            graph = replace(cluster, link_gbps=link, nic_gbps=port)
            # Of equal graphs, only those that no other one has more of both bandwidths than.
            places = kept.setdefault(_kind(graph), [])
            if not any(link_there <= place[0] and port_there <= place[1] for place in places):
                places.append((link_there, port_there))
                found.append((graph, replace(cluster, link_gbps=link_there, nic_gbps=port_there)))
    return tuple(found)


def _kind(cluster: Cluster) -> tuple[object, ...]:
    """Return what NCCL's choice depends on: the graphs of the whole job, of a node, and of one GPU in each node."""
    groups = {(0, False), (cluster.gpus_per_node, False), (cluster.nodes, cluster.nodes > 1)}
    graphs = [graph_of(cluster, ranks, spans) for ranks, spans in sorted(groups)]
    return tuple(replace(graph, cluster=_ANY) for graph in graphs)


def _steps(gbps: float, nominal: Sequence[float]) -> list[tuple[float, float]]:
    """Return (bandwidth of the graph, bandwidth there) at and below a bandwidth, the highest first."""
    at = bisect_right(nominal, gbps)
    if at == 0:
        return [(gbps, gbps)]
    found = [(nominal[at - 1], gbps)]
    # Just below the next nominal bandwidth the graph of a lower one is at its best.
    found += [(nominal[i - 1], nominal[i]) for i in range(at - 1, 0, -1)]
    return found

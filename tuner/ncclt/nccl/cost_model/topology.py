"""Inputs of NCCL's cost model for a cluster: estimated results of its graph search.

The search itself needs the machine. Here each input is derived from the fields of a `Cluster`, by the rules that
graph/search.cc and graph/connect.cc follow on regular machines; every rule is an estimate and is explained where it is
used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ncclt.core.cluster import Cluster
from ncclt.core.setting import max_channels
from ncclt.errors import UsageError
from ncclt.nccl.cost_model import tables

_MOST_GRAPH_CHANNELS = 16
"""The search looks for at most MAXCHANNELS / 2 = 16 channels, which are doubled afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Ranks of one communicator and the channels that NCCL would build for it.

    Attributes:
        cluster: the part of the cluster that the communicator occupies.
        ranks: ranks of the communicator.
        nodes: nodes it spans.
        per_node: ranks on each of them.
        generation: row of the per-generation tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell.
        nvlink: whether the GPUs of a node reach each other over NVLink only.
        graph_channels: channels of the ring and tree graphs, as the cost model counts them.
        ring_gbps: bandwidth of one ring channel.
        tree_gbps: bandwidth of one tree channel; over two nodes up to twice that of a ring.
        nvls_heads: channels of the NVLS graph, one for each GPU of a node.
        nvls_gbps: bandwidth of one NVLS channel in the node.
        nvls_net_gbps: bandwidth of one NVLS channel between nodes.
        channels: channels that ring and tree kernels run with at most (comm->nChannels).
        nvls_channels: the same for NVLS kernels.
        net_overhead_us: cost of the CPU per network step, 1 µs, 2 on AMD (getNetOverhead).
    """

    cluster: Cluster
    ranks: int
    nodes: int
    per_node: int
    generation: int
    nvlink: bool
    graph_channels: int
    ring_gbps: float
    tree_gbps: float
    nvls_heads: int
    nvls_gbps: float
    nvls_net_gbps: float
    channels: int
    nvls_channels: int
    net_overhead_us: float


@lru_cache(maxsize=1024)
def build_topology(cluster: Cluster, group_size: int = 0, spans_nodes: bool = False) -> Topology:
    """Estimate the graph of a communicator.

    Args:
        group_size: ranks of the communicator; 0 = the whole job.
        spans_nodes: whether a smaller group spans nodes. Such a group is assumed to be spread evenly over as many
            nodes as possible, one rank on each if it is no larger than the number of nodes (data parallelism across
            nodes).

    Raises:
        UsageError: the group is larger than the cluster.
    """
    ranks = group_size or cluster.world_size
    if ranks > cluster.world_size:
        raise UsageError(
            f"a group of {ranks} ranks does not fit on {cluster.name} with {cluster.world_size} GPUs",
            hint="place the workload on the cluster first, or use more nodes",
        )
    nodes, per_node = 1, ranks
    if cluster.nodes > 1 and (ranks > cluster.gpus_per_node or spans_nodes or ranks == cluster.world_size):
        nodes = min(cluster.nodes, ranks)
        per_node = -(-ranks // nodes)
    part = replace(cluster, nodes=nodes, gpus_per_node=per_node)
    link = _link_gbps(cluster, per_node)
    channels, speed = _channels_and_speed(cluster, nodes, per_node, link)
    # Between two ends a tree has one edge where a ring has two: twice the bandwidth (logged on two GPUs over NVLink).
    tree_speed = min(2 * speed, max(speed, link / channels)) if nodes == 2 else speed
    if (nodes, per_node) == (1, 2) and cluster.link_class in ("nvswitch", "nvlink"):
        tree_speed = 2 * speed
    # ncclTopoDupChannels: fast channels are split in two, on Hopper only if they are few or very fast.
    slow_hopper = cluster.compute_capability > 80 and speed < 50 and channels > 4
    if speed >= 25 and not slow_hopper:
        channels, speed, tree_speed = channels * 2, speed / 2, tree_speed / 2
    nics = nics_of(cluster, per_node)
    return Topology(
        cluster=part,
        ranks=ranks,
        nodes=nodes,
        per_node=per_node,
        generation=sum(cluster.compute_capability >= floor for floor in (80, 90, 100)),
        nvlink=cluster.link_class in ("nvswitch", "nvlink"),
        graph_channels=channels,
        ring_gbps=speed,
        tree_gbps=tree_speed,
        # The NVLS graph has one channel per GPU; each gets an equal share of the link (this reproduces NCCL's choice
        # of ring on 2 and 4 and of NVLS on 6 and 8 GPUs of an H100 node).
        nvls_heads=per_node,
        nvls_gbps=_quantised(link / per_node, _intra_speeds(cluster)),
        nvls_net_gbps=_quantised(nics * cluster.nic_gbps / per_node, _inter_speeds(cluster)) if nodes > 1 else 0.0,
        # ncclTopoPostset doubles the channels of the graph.
        channels=min(channels * 2, max_channels(cluster.version)),
        nvls_channels=16 if cluster.compute_capability < 100 else 24,
        net_overhead_us=2.0 if cluster.cpu == "amd" else 1.0,
    )


def _link_gbps(cluster: Cluster, per_node: int) -> float:
    """Return the bandwidth that NCCL assumes from a GPU to its peers in the node; infinite without peers."""
    if per_node == 1:
        return float("inf")
    link = cluster.link_gbps * tables.LINK_SHARE[cluster.link_class]
    if cluster.link_class == "nvlink":
        # Direct links: those to GPUs outside the group are idle.
        return link * (per_node - 1) / max(1, cluster.gpus_per_node - 1)
    if cluster.link_class == "shm":
        return min(link, tables.HOST_PATH_GBPS.get(cluster.cpu, 10.0))
    return link


def nics_of(cluster: Cluster, per_node: int) -> int:
    """Return the ports near the ranks of a node: all for a full node, a share for a part of it, rounded up."""
    return max(1, -(-cluster.nics_per_node * per_node // cluster.gpus_per_node))


def _intra_speeds(cluster: Cluster) -> tuple[float, ...]:
    return tables.SPEEDS_INTRA_SM90_GBPS if cluster.compute_capability >= 90 else tables.SPEEDS_INTRA_GBPS


def _inter_speeds(cluster: Cluster) -> tuple[float, ...]:
    return tables.SPEEDS_INTER_SM90_GBPS if cluster.compute_capability >= 90 else tables.SPEEDS_INTER_GBPS


def _quantised(gbps: float, speeds: tuple[float, ...]) -> float:
    return next((speed for speed in speeds if speed <= gbps), speeds[-1])


def _channels_and_speed(cluster: Cluster, nodes: int, per_node: int, link: float) -> tuple[int, float]:
    """Return channels and speed of the graph with the most bandwidth, the first of equal ones like the search.

    A channel enters and leaves a node through one port; a port carries as many channels as fit.
    """
    best = (0, 0.0)
    for speed in _inter_speeds(cluster) if nodes > 1 else _intra_speeds(cluster):
        fit = _MOST_GRAPH_CHANNELS if per_node == 1 else int(link / speed)
        if nodes > 1:
            fit = min(fit, nics_of(cluster, per_node) * int(cluster.nic_gbps / speed))
        count = min(_MOST_GRAPH_CHANNELS, fit)
        if best[0] and speed <= 0.49 * best[1]:
            break  # the search goes no lower than half of what it found
        if count * speed > best[0] * best[1]:
            best = (count, speed)
    # Nothing fits: NCCL falls back to one channel in the order of the ranks, at 0.1 GB/s.
    return best if best[0] else (1, 0.1)

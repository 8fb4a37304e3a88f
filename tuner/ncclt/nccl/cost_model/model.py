"""NCCL's cost model, ported: the algorithm, protocol and channels that the NCCL default uses.

Source: NVIDIA/nccl 2.30.7 graph/tuning.cc (bandwidth :288-383, latency :384-436, time :630-655) and enqueue.cc
(topoGetAlgoInfo, channels and threads; scheduleCollTasksToPlan, cells). Inputs that NCCL takes from its graph search
are estimates, see `topology`. CollNet is not modelled: it needs a SHARP plugin that ncclt cannot see. Not tested on a
GPU.

NCCL prints its own table of latencies and bandwidths when a job starts (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with
TUNING). With a log that contains it, only the last step is modelled, from the table to the time of a size (tuning.cc,
ncclTopoGetAlgoTime).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ncclt.core.algorithms import LEGAL, Algorithm, Protocol, available_algorithms, available_protocols
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCosts, PrintedTable
from ncclt.nccl.cost_model import tables
from ncclt.nccl.cost_model.topology import Topology, build_topology

_NVLS = (Algorithm.NVLS, Algorithm.NVLS_TREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Choice of NCCL for a message.

    Attributes:
        algorithm, protocol: the cheapest combination of those allowed.
        channels: channels (thread blocks) that carry the message.
        threads: threads of each.
        time_us: NCCL's own prediction, µs.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    threads: int
    time_us: float


class TableChoice(NamedTuple):
    """The cheapest algorithm and protocol for a message, and their predicted time, µs."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float


@lru_cache(maxsize=65536)
def nccl_choice(
    collective: Collective,
    size_bytes: int,
    graph: Topology,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    max_threads: int | None = None,
) -> Choice | None:
    """Return NCCL's choice for a message under what is forced.

    Args:
        collective, size_bytes, graph: as in `predicted_us`.
        algorithm: the only one allowed, None = any.
        protocol: the only one allowed, None = any that is automatic. A forced LL128 is used even where NCCL would not
            enable it by itself, as with NCCL_PROTO=LL128.
        max_threads: NCCL_NTHREADS, None = NCCL's own.

    Returns:
        The cheapest choice, or None where NCCL has none: it then refuses the call ("no algorithm/protocol available").
        send_recv and all_to_all never have one.
    """
    predictions = [
        TableChoice(candidate, available, predicted_us(collective, candidate, available, size_bytes, graph))
        for candidate in available_algorithms(collective, graph.cluster)
        if algorithm in (None, candidate)
        for available in _protocols(collective, candidate, graph.cluster, protocol)
    ]
    if not predictions:
        return None
    best = min(predictions, key=lambda choice: choice.time_us)
    channels, threads = _channels_and_threads(collective, *best[:2], size_bytes, graph, max_threads)
    return Choice(channels=channels, threads=threads, **best._asdict())


def channels_taken(
    collective: Collective, algorithm: Algorithm, protocol: Protocol, size_bytes: int, graph: Topology
) -> int:
    """Return the number of channels that NCCL itself uses; arguments as in `call_us`."""
    return _channels_and_threads(collective, algorithm, protocol, size_bytes, graph, None)[0]


def cell_channels(collective: Collective, protocol: Protocol, size_bytes: int, ranks: int, channels: int) -> int:
    """Return the number of channels that the scheduler fills: each gets at least 32 KiB of traffic.

    Source: enqueue.cc, scheduleCollTasksToPlan: traffic per byte is 2 for all_reduce, the ranks for all_gather and
    reduce_scatter, else 1; LL counts four times.
    """
    per_byte = 2 if collective is Collective.ALL_REDUCE else 1
    # all_gather and reduce_scatter: `ranks` per byte of one rank, so 1 per byte of the full buffer.
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and ranks <= 1:
        return 1
    traffic = size_bytes * per_byte * (4 if protocol is Protocol.LL else 1)
    return max(1, min(channels, math.ceil(traffic / tables.CELL_BYTES)))


def _protocols(
    collective: Collective, algorithm: Algorithm, cluster: Cluster, forced: Protocol | None
) -> tuple[Protocol, ...]:
    if forced is None:
        return available_protocols(collective, algorithm, cluster)
    return (forced,) if forced in LEGAL[collective][algorithm] else ()


def predicted_us(
    collective: Collective, algorithm: Algorithm, protocol: Protocol, size_bytes: int, graph: Topology
) -> float:
    """Return NCCL's prediction for an algorithm and protocol, µs, whether or not it would offer them.

    Args:
        size_bytes: NCCL's tuning size, as in `Message.size_bytes`.
    """
    costs = _latency_and_bandwidth(collective, algorithm, protocol, graph)
    return call_us(collective, algorithm, protocol, size_bytes, graph, costs)


def call_us(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: int,
    graph: Topology,
    costs: tuple[float, float],
) -> float:
    """Return NCCL's time for one size from the costs of an algorithm and protocol, µs (tuning.cc, ncclTopoGetAlgoTime).

    Args:
        collective, algorithm, protocol, size_bytes: as in `predicted_us`.
        graph: of the communicator; only its ranks, nodes, channels and generation are used.
        costs: (latency µs, algorithm bandwidth 1e9 bytes/s).
    """
    latency_us, gbps = costs
    if algorithm is Algorithm.TREE:
        step = min(23, max(0, (size_bytes >> 6).bit_length() - 1))
        gbps *= tables.TREE_CORRECTION[protocol][step]
    plateau = algorithm is Algorithm.RING and protocol is Protocol.SIMPLE and collective is Collective.ALL_REDUCE
    if plateau and graph.nodes > 1 and size_bytes / (graph.channels * graph.ranks) >= 64:
        latency_us *= 1.9 if graph.generation == 0 else 1.4
    return latency_us + size_bytes / (1000 * gbps)


@lru_cache(maxsize=4096)
def _latency_and_bandwidth(
    collective: Collective, algorithm: Algorithm, protocol: Protocol, graph: Topology
) -> tuple[float, float]:
    """Return (latency µs, algorithm bandwidth 1e9 bytes/s)."""
    steps = ring_steps(collective, graph.ranks)
    if algorithm is Algorithm.RING or (algorithm in _NVLS and collective is Collective.ALL_REDUCE):
        share = graph.ranks / steps  # of the bus bandwidth
    else:
        share = 0.5 if collective is Collective.ALL_REDUCE else 1.0
    return (
        _latency_us(collective, algorithm, protocol, graph, steps),
        _bus_gbps(collective, algorithm, protocol, graph) * share,
    )


def ring_steps(collective: Collective, ranks: int) -> int:
    """Return the steps of a ring (tuning.cc, nsteps); at least 1."""
    if collective is Collective.ALL_REDUCE:
        return max(1, 2 * (ranks - 1))
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return max(1, ranks - 1)
    return ranks


def _bus_gbps(collective: Collective, algorithm: Algorithm, protocol: Protocol, graph: Topology) -> float:
    row, column = graph.generation, min(graph.nodes, 3) - 1
    ll_row = row if graph.nodes == 1 else int(graph.cluster.cpu == "amd")
    ll_max = tables.LL_MAX_GBPS[ll_row][column]
    count = graph.graph_channels
    if algorithm in _NVLS:
        return _nvls_bus_gbps(collective, algorithm, graph)
    if algorithm is Algorithm.TREE:
        bus = min(0.92 * count * graph.tree_gbps, count * tables.TREE_CHANNEL_GBPS[row][column])
        if protocol is Protocol.LL:
            bus = min(bus / 3.8, ll_max)
        elif protocol is Protocol.LL128:
            share = 7 / 9 if graph.nodes == 1 else 120 / 128
            bus = min(bus * share, count * tables.TREE_LL128_CHANNEL_GBPS[row][column])
        # With one GPU per node the graph has the plain tree pattern.
        return bus * 0.85 if graph.nodes > 1 and graph.per_node == 1 else bus
    if algorithm is Algorithm.PAT:
        return 0.75 * count * graph.tree_gbps
    bus = count * graph.ring_gbps
    if protocol is Protocol.LL:
        return min(ll_max, 0.5 * bus)
    if protocol is Protocol.LL128:
        return min(0.92 * bus, count * tables.RING_LL128_CHANNEL_GBPS[row][column])
    return bus


def _nvls_bus_gbps(collective: Collective, algorithm: Algorithm, graph: Topology) -> float:
    row, column, heads = graph.generation, min(graph.nodes, 3) - 1, graph.nvls_heads
    directions = 2.0 if collective is Collective.ALL_REDUCE else (graph.per_node - 1) / graph.per_node
    gbps = graph.nvls_gbps * tables.NVLS_EFFICIENCY[row] * (heads - 1) / heads * directions
    if graph.nodes > 1:
        gbps = min(gbps, graph.nvls_net_gbps * (2 if graph.nodes == 2 and algorithm is Algorithm.NVLS_TREE else 1))
    if algorithm is Algorithm.NVLS_TREE:
        gbps = min(gbps, tables.NVLS_TREE_CHANNEL_GBPS[row][column])
    # A single GPU in the node has no multicast target; any positive figure keeps NVLS last.
    return max(heads * gbps, 1e-3)


def _latency_us(collective: Collective, algorithm: Algorithm, protocol: Protocol, graph: Topology, steps: int) -> float:
    p = tables.PROTOCOL_ORDER.index(protocol)
    latencies = tables.LATENCIES_US[algorithm]
    base, intra = latencies.base[p], (latencies.nvlink if graph.nvlink else latencies.pci)[p]
    inter = tables.LATENCIES_US[
        Algorithm.TREE if graph.per_node == 1 and algorithm is Algorithm.RING else algorithm
    ].net[p]
    nodes, levels = graph.nodes, int(math.log2(graph.nodes))
    if algorithm is Algorithm.TREE:
        return base + 2 * ((graph.ranks / nodes - 1) * intra + levels * inter)
    if algorithm is Algorithm.NVLS:
        return base + intra + (inter if nodes > 1 else 0.0)
    if algorithm is Algorithm.NVLS_TREE:
        return base + intra + 2 * math.log2(nodes) * inter
    if algorithm is Algorithm.PAT:
        return base + math.log2(nodes) * inter / 3.5 + 2.8 * graph.ranks
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        # sameChannels is true on the regular machines described here; NCCL then adds only one hop.
        return base + (latencies.net[p] if nodes > 1 else intra)
    crossings = 0 if nodes == 1 else (nodes - 1) * (2 if collective is Collective.ALL_REDUCE else 1)
    overhead = graph.net_overhead_us * (3 if protocol is Protocol.SIMPLE else 1) if nodes > 1 else 0.0
    return base + (steps - crossings) * max(intra, overhead) + crossings * inter


def _channels_and_threads(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: int,
    graph: Topology,
    max_threads: int | None,
) -> tuple[int, int]:
    """Return (channels, threads): fewer of both for small messages, then cells of 32 KiB of traffic."""
    threads = most_threads(algorithm, protocol, graph, max_threads)
    if algorithm in _NVLS:
        return cell_channels(collective, protocol, size_bytes, graph.ranks, graph.nvls_channels), threads
    threshold = tables.THREAD_THRESHOLD_BYTES[protocol]
    if algorithm is Algorithm.RING and protocol is Protocol.LL:
        threshold *= graph.ranks
    channels = max(1, min(graph.channels, size_bytes // (threads * threshold)))
    while size_bytes < channels * threads * threshold and threads % 128 == 0:
        threads //= 2
    if protocol is Protocol.SIMPLE:
        threads += 32 if algorithm is Algorithm.RING else 0
    threads = 640 if algorithm in (Algorithm.TREE, Algorithm.PAT) else max(96, threads)
    return cell_channels(collective, protocol, size_bytes, graph.ranks, channels), threads


def most_threads(algorithm: Algorithm, protocol: Protocol, graph: Topology, max_threads: int | None) -> int:
    """Return the threads of a channel whose data keep all of them busy; `max_threads` as in `nccl_choice`."""
    if algorithm in _NVLS or protocol is Protocol.LL128:
        return 640
    slow = protocol is Protocol.SIMPLE and algorithm is Algorithm.RING
    own = 256 if slow and graph.graph_channels * graph.ring_gbps <= 12 else 512
    if max_threads is None:
        return own
    # tuning.cc getNthreads: not a multiple of 32 or above 512 -> 512, below 64 -> 64.
    return 512 if max_threads % 32 or max_threads > 512 else max(64, max_threads)


def find_table(costs: PrintedCosts, message: Message, cluster: Cluster) -> PrintedTable | None:
    """Return the table of the communicator that sends a message; None = it was not printed."""
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    return next((t for t in costs.tables if (t.ranks, t.nodes) == (graph.ranks, graph.nodes)), None)


def predict_choice(
    table: PrintedTable,
    collective: Collective,
    size_bytes: int,
    graph: Topology,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
) -> TableChoice | None:
    """Return NCCL's choice for a message under what is forced; None where the table has nothing for it.

    Args:
        collective, size_bytes: NCCL's tuning size, as in `Message.size_bytes`.
        graph: of the communicator, for the generation, and for the channels if the log has none.
        algorithm, protocol: the only ones allowed; None = any.
    """
    logged = replace(graph, ranks=table.ranks, nodes=table.nodes, channels=table.channels or graph.channels)
    predictions = (
        TableChoice(
            cost.algorithm,
            cost.protocol,
            call_us(collective, cost.algorithm, cost.protocol, size_bytes, logged, (cost.latency_us, cost.gbps)),
        )
        for cost in table.costs
        if cost.collective is collective and algorithm in (None, cost.algorithm) and protocol in (None, cost.protocol)
    )
    # The first of equal ones, like NCCL up to 2.30.
    return min(predictions, key=lambda choice: choice.time_us, default=None)

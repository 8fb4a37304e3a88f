"""NCCL's own table of latencies and bandwidths, as a job of the cluster printed it when it started.

`cost_model` estimates this table from the fields of a `Cluster`; NCCL computes it from the machine. Where a log holds
it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with TUNING), only the last step is left to us, from the table to the time of a
size (nccl graph/tuning.cc, ncclTopoGetAlgoTime). The same table predicts what NCCL chooses by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCosts, PrintedTable
from ncclt.nccl.cost_model.graph import Graph, graph_of
from ncclt.nccl.cost_model.model import call_us


class Pick(NamedTuple):
    """The pair that is cheapest for a message, and the time that is predicted for it, µs."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float


def table_of(costs: PrintedCosts, message: Message, cluster: Cluster) -> PrintedTable | None:
    """Return the table of the communicator that sends a message; None = that one was not printed."""
    graph = graph_of(cluster, message.group_size, message.spans_nodes)
    return next((t for t in costs.tables if (t.ranks, t.nodes) == (graph.ranks, graph.nodes)), None)


def pick(
    table: PrintedTable,
    collective: Collective,
    size_bytes: int,
    graph: Graph,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
) -> Pick | None:
    """Return what NCCL would run a message with, given what is forced; None where the table has no such pair.

    Args:
        table: of the communicator.
        collective, size_bytes: NCCL's tuning size, as in `Message.size_bytes`.
        graph: of the communicator, for the generation and where the log told no channels.
        algorithm, protocol: the only ones allowed; None = any.
    """
    known = replace(graph, ranks=table.ranks, nodes=table.nodes, channels=table.channels or graph.channels)
    best: Pick | None = None
    for cost in table.costs:
        allowed = algorithm in (None, cost.algorithm) and protocol in (None, cost.protocol)
        if cost.collective is not collective or not allowed:
            continue
        costs = (cost.latency_us, cost.gbps)
        time_us = call_us(collective, cost.algorithm, cost.protocol, size_bytes, known, costs)
        # Of equals the first one, as NCCL up to 2.30 takes it.
        if best is None or time_us < best.time_us:
            best = Pick(cost.algorithm, cost.protocol, time_us)
    return best

"""NCCL's own table of latencies and bandwidths, as printed by a job of the cluster when it started.

`model` estimates this table from the fields of a `Cluster`; NCCL computes it from the machine. If a log contains it
(NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with TUNING), only the last step is modelled, from the table to the time of a size
(nccl graph/tuning.cc, ncclTopoGetAlgoTime). The same table predicts the NCCL default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCosts, PrintedTable
from ncclt.nccl.cost_model.model import call_us
from ncclt.nccl.cost_model.topology import Topology, build_topology


class TableChoice(NamedTuple):
    """The cheapest algorithm and protocol for a message, and their predicted time, µs."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float


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
        table: of the communicator.
        collective, size_bytes: NCCL's tuning size, as in `Message.size_bytes`.
        graph: of the communicator, for the generation, and for the channels if the log has none.
        algorithm, protocol: the only ones allowed; None = any.
    """
    known = replace(graph, ranks=table.ranks, nodes=table.nodes, channels=table.channels or graph.channels)
    best: TableChoice | None = None
    for cost in table.costs:
        allowed = algorithm in (None, cost.algorithm) and protocol in (None, cost.protocol)
        if cost.collective is not collective or not allowed:
            continue
        costs = (cost.latency_us, cost.gbps)
        time_us = call_us(collective, cost.algorithm, cost.protocol, size_bytes, known, costs)
        # The first of equal ones, like NCCL up to 2.30.
        if best is None or time_us < best.time_us:
            best = TableChoice(cost.algorithm, cost.protocol, time_us)
    return best

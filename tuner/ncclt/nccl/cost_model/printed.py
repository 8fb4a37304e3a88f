"""NCCL's own table of latencies and bandwidths, as a job of the cluster printed it when it started.

`cost_model` estimates this table from the fields of a `Cluster`; NCCL computes it from the machine. Where a log holds
it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS with TUNING), only the last step is left to us, from the table to the time of a
size (nccl graph/tuning.cc, ncclTopoGetAlgoTime). The same table predicts what NCCL chooses by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.graph import Graph, graph_of
from ncclt.nccl.cost_model.model import call_us


class PrintedCost(NamedTuple):
    """One cell of the table: latency in µs, algorithm bandwidth in 1e9 bytes/s, above 0."""

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    gbps: float


class Pick(NamedTuple):
    """The pair that is cheapest for a message, and the time that is predicted for it, µs."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable:
    """The table of one communicator.

    Attributes:
        ranks, nodes: of the communicator.
        channels, nvls_channels: that its kernels run with at most; 0 = not said.
        costs: the cells that NCCL uses; what it has ruled out (bandwidth 0) is left out.
    """

    ranks: int
    nodes: int
    channels: int = 0
    nvls_channels: int = 0
    costs: tuple[PrintedCost, ...]

    def rules_out(self, collective: Collective, algorithm: Algorithm) -> bool:
        """Tell whether NCCL uses an algorithm for a collective with no protocol at all."""
        return not any((cost.collective, cost.algorithm) == (collective, algorithm) for cost in self.costs)

    def pick(
        self,
        collective: Collective,
        size_bytes: int,
        graph: Graph,
        *,
        algorithm: Algorithm | None = None,
        protocol: Protocol | None = None,
    ) -> Pick | None:
        """Return what NCCL would run a message with, given what is forced; None where the table has no such pair.

        Args:
            collective, size_bytes: NCCL's tuning size, as in `Message.size_bytes`.
            graph: of the communicator, for the generation and where the log told no channels.
            algorithm, protocol: the only ones allowed; None = any.
        """
        known = replace(graph, ranks=self.ranks, nodes=self.nodes, channels=self.channels or graph.channels)
        best: Pick | None = None
        for cost in self.costs:
            allowed = algorithm in (None, cost.algorithm) and protocol in (None, cost.protocol)
            if cost.collective is not collective or not allowed:
                continue
            costs = (cost.latency_us, cost.gbps)
            time_us = call_us(collective, cost.algorithm, cost.protocol, size_bytes, known, costs)
            # Of equals the first one, as NCCL up to 2.30 takes it.
            if best is None or time_us < best.time_us:
                best = Pick(cost.algorithm, cost.protocol, time_us)
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCosts:
    """The tables of one job.

    Attributes:
        version: of NCCL; empty = the log does not say.
        tables: one for each kind of communicator (ranks, nodes) that printed one.
    """

    version: str = ""
    tables: tuple[PrintedTable, ...]

    def table_of(self, message: Message, cluster: Cluster) -> PrintedTable | None:
        """Return the table of the communicator that sends a message; None = that one was not printed."""
        graph = graph_of(cluster, message.group_size, message.spans_nodes)
        return next((t for t in self.tables if (t.ranks, t.nodes) == (graph.ranks, graph.nodes)), None)

    def require(self, cluster: Cluster) -> None:
        """Refuse tables of jobs of another shape.

        Raises:
            UsageError: none of them is that of the whole job.
        """
        shapes = sorted({(table.nodes, table.ranks) for table in self.tables})
        if (cluster.nodes, cluster.world) not in shapes:
            told = ", ".join(_shape(*shape) for shape in shapes)
            raise UsageError(
                f"the log tells the costs of {told}, and {_shape(cluster.nodes, cluster.world)} are tuned",
                hint="take the log of a job on as many nodes and GPUs",
            )

    def note(self, cluster: Cluster) -> str:
        """Return what the reader of a result must know of them."""
        other = "" if self.version == str(cluster.version) else f", and NCCL {cluster.version} is tuned"
        return f"the search began from the cost tables that NCCL {self.version or '?'} printed in a job{other}"

    def to_document(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        return {
            "version": self.version,
            "tables": [
                {
                    "ranks": table.ranks,
                    "nodes": table.nodes,
                    "channels": table.channels,
                    "nvls_channels": table.nvls_channels,
                    "costs": [list(cost) for cost in table.costs],
                }
                for table in self.tables
            ],
        }


def _shape(nodes: int, ranks: int) -> str:
    return f"{ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"


def printed_costs_from_document(document: Mapping[str, Any]) -> PrintedCosts:
    """Read what `PrintedCosts.to_document` wrote."""
    return PrintedCosts(
        version=document["version"],
        tables=tuple(
            PrintedTable(
                ranks=table["ranks"],
                nodes=table["nodes"],
                channels=table["channels"],
                nvls_channels=table["nvls_channels"],
                costs=tuple(
                    PrintedCost(Collective(collective), Algorithm(algorithm), Protocol(protocol), latency_us, gbps)
                    for collective, algorithm, protocol, latency_us, gbps in table["costs"]
                ),
            )
            for table in document["tables"]
        ),
    )

"""NCCL's own table of latencies and bandwidths, as a job on the cluster printed it at its start: the record.

`nccl.cost_model.model` predicts NCCL's choices from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError


class PrintedCost(NamedTuple):
    """One cell of the table: latency in µs, algorithm bandwidth in 1e9 bytes/s, above 0."""

    collective: Collective
    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTable(Documented):
    """The table of one communicator.

    Attributes:
        ranks, nodes: of the communicator.
        channels, nvls_channels: most that its kernels use; 0 = not logged.
        costs: the cells that NCCL uses; what it has ruled out (bandwidth 0) is left out.
    """

    ranks: int
    nodes: int
    channels: int = 0
    nvls_channels: int = 0
    costs: tuple[PrintedCost, ...]

    def rules_out(self, collective: Collective, algorithm: Algorithm) -> bool:
        """Return True if NCCL never uses an algorithm for a collective, with any protocol."""
        return not any((cost.collective, cost.algorithm) == (collective, algorithm) for cost in self.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCosts(Documented):
    """The tables of one job.

    Attributes:
        version: of NCCL; empty = not logged.
        tables: one for each kind of communicator (ranks, nodes) that printed one.
    """

    SHAPE: ClassVar = Shape(name="tables of costs")

    version: str = ""
    tables: tuple[PrintedTable, ...]

    def require(self, cluster: Cluster) -> None:
        """Raise unless there is a table for a job of this shape.

        Raises:
            UsageError: there is none.
        """
        shapes = sorted({(table.nodes, table.ranks) for table in self.tables})
        if (cluster.nodes, cluster.world_size) not in shapes:
            printed = ", ".join(_shape(*shape) for shape in shapes)
            raise UsageError(
                f"the log has the cost tables of {printed}, not of {_shape(cluster.nodes, cluster.world_size)}",
                hint="take the log of a job on as many nodes and GPUs",
            )

    def note(self, cluster: Cluster) -> str:
        """Return the note about these tables in a result."""
        tuned = "" if self.version == str(cluster.version) else f" (tuning NCCL {cluster.version})"
        return f"Warm start: cost tables printed by NCCL {self.version or '?'}{tuned}"


def _shape(nodes: int, ranks: int) -> str:
    return f"{ranks} ranks on {count_noun(nodes, 'node')}"

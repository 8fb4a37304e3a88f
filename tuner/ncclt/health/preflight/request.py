"""What a preflight examines, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError
from ncclt.health.preflight.elimination import pair_rounds
from ncclt.health.preflight.expectation import Expectation

SIZES = (1 << 6, 1 << 12, 1 << 18, 1 << 24, 1 << 30)
"""From latency to bandwidth, bytes: powers of 64, so that nccl-tests measures all of them in one command."""

TOLERANCE = 0.15
"""Share by which all nodes may fall short of what their links promise; link figures are no better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """What to examine, and how thoroughly.

    Attributes:
        cluster: sized to the job.
        hosts: names of its nodes, in the order of the ranks.
        expectation: what is expected of them.
        sizes: bytes to measure on all nodes, ascending; the largest one is judged.
        tolerance: share by which they may fall short of the links, and parts by half of it of their peers.
        launcher, benchmark: words of where and what runs.
        quick: measure all nodes together and no more.
        full: look into pairs and single nodes even if all nodes together are fine.
        plan: which pairs: `adaptive`, `ring`, `all` or `rotate:K`.
        notes: what the reader must know beforehand.
    """

    cluster: Cluster
    hosts: tuple[str, ...]
    expectation: Expectation
    sizes: tuple[int, ...] = SIZES
    tolerance: float = TOLERANCE
    launcher: str
    benchmark: str
    quick: bool = False
    full: bool = False
    plan: str = "adaptive"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise UsageError("--quick and --full cannot be combined")
        if len(set(self.hosts)) != len(self.hosts) or len(self.hosts) != self.cluster.nodes:
            raise UsageError(
                f"the number of hosts ({len(self.hosts)}) differs from the number of nodes ({self.cluster.nodes})",
                hint="name each node once, --nodes of them",
            )
        if self.cluster.world_size < 2:
            raise UsageError("one GPU alone has no fabric to examine", hint="use more nodes or --gpus-per-node")
        pair_rounds(self.plan, self.hosts)

"""Constants fitted to a cluster's own times: factors on the simulated hardware, and their range of validity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape

BEYOND = 2.0
"""Sizes and nodes beyond this multiple of the fitted ones, or below its inverse, are extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Documented):
    """One fitted constant.

    Attributes:
        name: of the constant, such as `base.ll` or `net_channel`.
        factor: fitted value against the one that the simulated cluster has without calibration.
        low, high: 95 % interval of the factor.
    """

    name: str
    factor: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Documented):
    """Fitted constants and what they were fitted to.

    Attributes:
        constants: those that the times determine; every other one keeps its usual value.
        ll128: whether the NCCL default uses LL128 there; None = as its rule says.
        channels: factor on the channels of the NCCL default.
        tree_bytes: largest message for which the NCCL default may be a tree there; None = as its model says.
        most_channels: most channels that a forced setting ran with there; 0 = as the graph of its links has.
        probed: whether the times are of several settings; those of one calibrate times, not the ranking of settings.
        points: times that were fitted.
        error: median relative error at the fitted points.
        least_bytes, most_bytes: smallest and largest fitted message.
        least_nodes, most_nodes: fewest and most nodes fitted.
        sources: where the times come from.
    """

    SHAPE: ClassVar = Shape(omitted=("ll128", "channels", "tree_bytes", "most_channels"))

    constants: tuple[Constant, ...]
    ll128: bool | None = None
    channels: float = 1.0
    tree_bytes: int | None = None
    most_channels: int = 0
    probed: bool
    points: int
    error: float
    least_bytes: int
    most_bytes: int
    least_nodes: int
    most_nodes: int
    sources: tuple[str, ...] = ()

    @property
    def factors(self) -> dict[str, float]:
        """Return name -> factor."""
        return {one.name: one.factor for one in self.constants}

    @property
    def sentence(self) -> str:
        """Return a summary of the calibration for people."""
        what = (
            "times and ranking calibrated"
            if self.probed
            else "times calibrated, ranking not: all times are of one setting"
        )
        return f"{what}; {self.points} times, median error {100 * self.error:.3g} %"

    def beyond(self, size_bytes: int, nodes: int) -> str:
        """Return the dimensions in which a prediction is extrapolated, `size and nodes`; empty where it is not."""
        found = []
        if not self.least_bytes / BEYOND <= size_bytes <= self.most_bytes * BEYOND:
            found.append("size")
        # Times within one node say nothing about the network, and the other way round.
        other = (nodes == 1 < self.least_nodes) or (nodes > 1 == self.most_nodes)
        if other or not self.least_nodes / BEYOND <= nodes <= self.most_nodes * BEYOND:
            found.append("nodes")
        return " and ".join(found)

"""The evidence of a verdict, laid out as it was measured: A B B A blocks with their ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclt.core.study import Arm
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence
from ncclt.prove.verdict import block_speedups

_LAUNCHES_PER_BLOCK = 2
"""Each arm is launched twice in a block of A B B A."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The arms that were measured in turns.

    Attributes:
        number: from 0.
        launches: of each arm, in order; one measurement of a whole arm each.
        order: the arms as they ran, first to last.
    """

    number: int
    launches: Mapping[Arm, tuple[ArmLaunch, ...]]
    order: tuple[Arm, ...]

    def ratio(self, arm: Arm) -> float | None:
        """Return default over arm, as the verdict counts it; above 1 = the arm is faster; None while incomplete."""
        default, other = self._times_us(Arm.DEFAULT), self._times_us(arm)
        if len(default) != _LAUNCHES_PER_BLOCK or len(other) != _LAUNCHES_PER_BLOCK:
            return None
        return block_speedups(default, other)[0]

    def _times_us(self, arm: Arm) -> tuple[float, ...]:
        return tuple(launch.time_us for launch in self.launches.get(arm, ()) if launch.time_us is not None)


def blocks_of(evidence: LaunchEvidence) -> tuple[Block, ...]:
    """Return the blocks of the last verification, in order; empty before it began."""
    numbers = sorted({launch.block // _LAUNCHES_PER_BLOCK for launch in evidence.launches})
    return tuple(_block(evidence, number) for number in numbers)


def _block(evidence: LaunchEvidence, number: int) -> Block:
    mine = [launch for launch in evidence.launches if launch.block // _LAUNCHES_PER_BLOCK == number]
    arms = {launch.arm for launch in mine}
    return Block(
        number=number,
        launches={arm: tuple(launch for launch in mine if launch.arm is arm) for arm in arms},
        order=tuple(launch.arm for launch in mine),
    )

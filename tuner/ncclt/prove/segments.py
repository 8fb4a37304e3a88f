"""The experiment over the segments of one training: the next arm, the arms that are out, and the winner.

A block gives every arm that is left one segment, in random order, and pairs each with the control's segment of the same
block. Which of the two came first is a fair coin, so the bets of `prove.confidence` hold however the steps drift over
the training. The error rate of a false winner is shared among the arms.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from ncclt.core.budget import MIN_BLOCKS
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.segment import CONTROL, Segment
from ncclt.prove.verdict import Pairs, judge, state_step_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The arms of one training and its segments so far.

    Attributes:
        model: name of the training, which seeds the order.
        arms: names of the candidates, without the control.
        segments: in order, of this experiment alone.
        min_effect: smallest gain worth a change, as a share.
        blocks: max blocks; an arm has one segment in each.
    """

    model: str
    arms: tuple[str, ...]
    segments: tuple[Segment, ...]
    min_effect: float
    blocks: int

    def failure(self, arm: str) -> str:
        """Return the first failure of an arm; empty = none."""
        return next((one.failure for one in self.segments if one.arm == arm and one.failure), "")

    def pairs(self, arm: str) -> Pairs:
        """Return the segments of an arm and the control, paired by block."""
        mine, control = self._times(arm), self._times(CONTROL)
        common = sorted(mine.keys() & control.keys())
        common = common[: len(common) // 2 * 2]
        return Pairs(
            default_us=tuple(control[block] for block in common), policy_us=tuple(mine[block] for block in common)
        )

    def verdict(self, arm: str, *, ended: bool = False) -> Verdict:
        """Return the verdict on an arm against the control, on step times."""
        verdict = judge(
            self.pairs(arm),
            min_effect=self.min_effect,
            failure=self.failure(arm).partition("\n")[0],
            arms=len(self.arms),
            ended=ended,
        )
        if verdict.decision is Decision.UNDECIDED and verdict.blocks < MIN_BLOCKS:
            measured = len(self._times(arm).keys() & self._times(CONTROL).keys())
            return replace(verdict, reason=f"{measured} of at least {2 * MIN_BLOCKS} pairs of segments measured")
        return state_step_gain(verdict, f"{count_noun(2 * verdict.blocks, 'pair')} of segments")

    def next_arm(self) -> tuple[str, int] | None:
        """Return arm and block of the next segment; None = the experiment is over."""
        running = self._running()
        if not running:
            return None
        measured = [segment for segment in self.segments if segment.block >= 0 and segment.step_us]
        block = max((segment.block for segment in measured), default=0)
        done = {segment.arm for segment in measured if segment.block == block}
        if not (left := {CONTROL, *running} - done):
            block, left = block + 1, {CONTROL, *running}
        # A random order that depends on nothing but names, so that it goes on alike after an interruption.
        return min(left, key=lambda arm: hashlib.sha256(f"{self.model}\0{block}\0{arm}".encode()).digest()), block

    def conclude(self) -> tuple[str, Verdict | None] | None:
        """Return the winner and its verdict, the control without one if no candidate is faster; None = not decided."""
        if self._running():
            return None
        verdicts = {arm: self.verdict(arm, ended=True) for arm in self.arms}
        tuned = [arm for arm in self.arms if verdicts[arm].decision is Decision.TUNED]
        if not tuned:
            return CONTROL, None
        best = max(tuned, key=lambda arm: verdicts[arm].speedup)
        return best, verdicts[best]

    def _running(self) -> tuple[str, ...]:
        """Return the arms that need more segments: undecided, and not slower than one that has won already."""
        verdicts = {arm: self.verdict(arm) for arm in self.arms}
        won = max((one.speedup for one in verdicts.values() if one.decision is Decision.TUNED), default=0.0)
        return tuple(
            arm
            for arm, one in verdicts.items()
            if one.decision is Decision.UNDECIDED and one.blocks < self.blocks and (not won or one.speedup > won)
        )

    def _times(self, arm: str) -> dict[int, float]:
        """Return the step time of an arm by block, µs."""
        return {
            segment.block: segment.time_us
            for segment in self.segments
            if segment.arm == arm and segment.block >= 0 and segment.time_us is not None
        }

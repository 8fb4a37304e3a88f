"""Decisions of live tuning: the arm of the next block of steps, arms to drop, and the winner.

A running training is one machine with one clock: it drifts, its noise has a memory, and evaluations and checkpoints
interrupt it. So nothing is assumed about the times. Steps are grouped into blocks. Each arm gets a first block, which
shows its effect; then a coin draws the arm of each block from the default and the arm that looks best. If that arm
changes nothing, the times are the same whichever the coin had drawn; so a bet on the coin, made from the block's time
and all earlier blocks, is fair: over any number of looks, the capital won by such bets reaches 100 with a probability
of at most 1 % (`prove.confidence`). The level of the default is followed from block to block, and each arm's effect
beside it: a block that is faster than the middle of both is a bet on the arm, a slower one on the default. Bad
forecasts cost time and never raise the error rate.

The other design, pairs of default and arm in random order, has one coin where this one has two, but is disturbed less:
it takes over once a single arm is left whose gain is small beside the noise.

The first steps after a draw count for no block, whether the arm changes or not: a switch takes effect within them and
may connect an algorithm. To leave them out after a change alone would compare other steps of the two.

This module runs inside the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .levels import BORNE_OUT, FALSE_TUNED, INTERVAL_ERROR, SHARPNESS, STAKE

DEFAULT = 0
"""Arm of the NCCL default; other arms start at 1."""

_FIRST_SHARE = 0.8
"""Share of `FALSE_TUNED` for the first arm that a coin compares, chosen by blocks without a coin; the others share
the rest. With equal shares a gain of 10 % among three arms takes 102 steps instead of 96 (bench/live_decisions.py)."""

MAX_BLOCKS = 200
"""Blocks after which live tuning ends undecided: a gain of 3 % under noise of 5 % takes about 100."""

ADVANCE_STEPS = 1000
"""Future steps of the job that count toward the budget in advance. Without them, a first block with 10 % longer steps
would stop the test for 100 steps."""

_LEVEL_GAIN = 0.3
"""Weight of the newest block in the moving level of the default; 0.2 to 0.6 make no difference
(bench/live_decisions.py)."""

_PAIRED_BELOW = 1.5
"""Gain in standard deviations of a block below which the last arm is compared in pairs. Under noise of 5 % they find a
gain of 3 % in 65 of 100 trainings of 1,000 steps, single blocks in 51 (bench/live_decisions.py)."""

_HOPELESS_DEVIATIONS, _HOPELESS_BLOCKS = 2.0, 4
"""Standard errors between an estimated gain and the minimum below it at which an arm is dropped, and the fewest blocks
for that: with 1.28, as between launches, one arm in ten that gains 3 % is dropped (bench/live_decisions.py)."""

_BEATEN_DEVIATIONS, _BEATEN_BLOCKS = 2.5, 2
"""The same for an arm against the best one. Dropping an arm can only lose its gain."""

_SLOWER_DEVIATIONS = 4.0
"""Standard deviations, by the noise of steps within the default's blocks, of a single block that drops its arm."""

LONG_STEP = 3.0
"""Max ratio of an arm's first step to the median step."""

_LONG_STARTS = 2
"""Long first steps that drop an arm: a single one may be an evaluation, and would drop one good arm in five in a job
that evaluates every 50 steps (bench/live_decisions.py)."""

_BRACKET, _HALVINGS = 2.0, 24
"""Log ratio on both sides of an estimate within which the ends of its interval are sought, and steps of that search,
the last of which is far below any noise."""


class Draw(NamedTuple):
    """Arm of the next block, and its draw.

    Attributes:
        arm: chosen.
        drawn_from: arms among which the coin chose, each with the same probability; empty = no coin.
        opens_pair: the next block takes the other arm.
        closes_pair: the arm that the block before has left, as announced.
    """

    arm: int
    drawn_from: tuple[int, ...] = ()
    opens_pair: bool = False
    closes_pair: bool = False


@dataclass(frozen=True)
class StepBlock:
    """Consecutive steps of one arm.

    Attributes:
        draw: how its arm was chosen.
        step_us: time of each counted step on its slowest rank, µs; one or more.
        first_us: longest step between the draw and the counted ones, µs; 0 = there is none.
        steps: all of the block, counted or not.
        log_time: log of the median step, which a pause or an outlier does not move.
        log_mean: log of the mean step.
    """

    draw: Draw
    step_us: tuple[float, ...]
    first_us: float = 0.0
    steps: int = 0
    log_time: float = field(init=False)
    log_mean: float = field(init=False)

    def __post_init__(self) -> None:
        """Summarize the steps once."""
        object.__setattr__(self, "log_time", math.log(statistics.median(self.step_us)))
        object.__setattr__(self, "log_mean", math.log(statistics.fmean(self.step_us)))

    @property
    def arm(self) -> int:
        """Return the arm of the block."""
        return self.draw.arm


class ArmResult(NamedTuple):
    """One arm against the default.

    Attributes:
        speedup: median step of the default over that of the arm.
        low, high: ends of the interval; 0 and infinity where it has none.
        blocks: of the arm.
        dropped: why it was dropped; empty = it was not.
        is_proven: its gain is proven.
    """

    speedup: float
    low: float
    high: float
    blocks: int
    dropped: str
    is_proven: bool


@dataclass
class LiveProof:
    """Sequential test of one job's arms against the default.

    Attributes:
        arms: number of arms beside the default.
        min_effect: smallest gain that justifies a change, as a share.
        max_cost: share of the job's time that arms may have cost when one is tried: of the time so far, or of
            `ADVANCE_STEPS` if that is more.
        coin: source of the draws.
        blocks: all so far.
        elapsed_us: time of the job so far, µs, with the steps before the first block.
        dropped: arm -> why.
    """

    arms: int
    min_effect: float = 0.02
    max_cost: float = 0.005
    coin: random.Random = field(default_factory=random.SystemRandom)
    blocks: list[StepBlock] = field(default_factory=list)
    elapsed_us: float = 0.0
    dropped: dict[int, str] = field(default_factory=dict)
    _known_gains: dict[tuple[int, bool], list[float]] = field(default_factory=dict, repr=False)

    @property
    def left(self) -> list[int]:
        """Return the arms that are not dropped."""
        return [arm for arm in range(1, self.arms + 1) if arm not in self.dropped]

    @property
    def winner(self) -> int | None:
        """Return the arm that is proven and looks best of those left; None = there is none yet."""
        left = self.left
        proven = [arm for arm in left if self._is_proven(arm)]
        if not proven:
            return None
        best = max(proven, key=self.estimate)
        if not self._is_over and any(self.estimate(arm) > self.estimate(best) for arm in left if arm not in proven):
            return None
        return best

    @property
    def has_ended(self) -> bool:
        """Return True if no more blocks are needed."""
        return self._is_over or not self.left or self.winner is not None

    @property
    def _is_over(self) -> bool:
        return sum(bool(block.draw.drawn_from) or block.draw.closes_pair for block in self.blocks) >= MAX_BLOCKS

    def draw(self) -> Draw:
        """Choose the arm of the next block; the first one shows the level of the default."""
        last, left = self.blocks[-1].draw if self.blocks else Draw(DEFAULT), self.left
        if len(left) == 1 and last.opens_pair:
            return Draw(left[0] if last.arm == DEFAULT else DEFAULT, closes_pair=True)
        if not self.blocks or not left or self.cost_us() > self.max_cost * self._paying_us():
            return Draw(DEFAULT)
        tried = {block.arm for block in self.blocks}
        if untried := [arm for arm in left if arm not in tried]:
            return Draw(untried[0])
        choices = (DEFAULT, max(left, key=self.estimate))
        return Draw(self.coin.choice(choices), drawn_from=choices, opens_pair=self._is_paired())

    def _is_paired(self) -> bool:
        """Check that the only arm left is compared in pairs: decided before the coin, or its bets would not be fair."""
        left, deviation = self.left, self._deviation()
        return len(left) == 1 and deviation is not None and self.estimate(left[0]) < _PAIRED_BELOW * deviation

    def _paying_us(self) -> float:
        """Return the time of the job that pays for the arms, µs."""
        return max(self.elapsed_us, ADVANCE_STEPS * self._default_us())

    def add(self, block: StepBlock, *, elapsed_us: float) -> None:
        """Count a block, and drop what it shows to be slow or hopeless.

        Args:
            block: with at least one counted step.
            elapsed_us: time of the job so far, µs.
        """
        if block.draw == Draw(DEFAULT) and self.blocks and self.blocks[-1].draw == Draw(DEFAULT):
            self.blocks.pop()  # while no arm may be tried, only the newest level of the default is of use
        self.blocks.append(block)
        self.elapsed_us = elapsed_us
        self._known_gains.clear()
        if block.arm != DEFAULT and self._is_slow_to_start(block.arm):
            self.dropped.setdefault(block.arm, f"its first step takes over {LONG_STEP:g} times the median")
        left = self.left
        deviation = self._deviation()
        gains = {arm: self._gains(arm) for arm in left}
        counted = [arm for arm in left if gains[arm]]
        best = max(counted, key=self.estimate) if counted else DEFAULT
        for arm in counted:
            blocks, gain = len(gains[arm]), self.estimate(arm)
            if self._is_slower(arm):
                self.dropped[arm] = f"steps take {math.expm1(-gain) * 100:.1f} % longer"
            elif deviation is None or self._is_proven(arm):
                continue
            elif blocks >= _HOPELESS_BLOCKS and gain + _HOPELESS_DEVIATIONS * deviation / math.sqrt(
                blocks
            ) < math.log1p(self.min_effect):
                self.dropped[arm] = f"a gain of {self.min_effect * 100:g} % is unlikely"
            elif (
                arm != best
                and min(blocks, len(gains[best])) >= _BEATEN_BLOCKS
                and self.estimate(best) - gain
                > _BEATEN_DEVIATIONS * deviation * math.sqrt(1 / blocks + 1 / len(gains[best]))
            ):
                self.dropped[arm] = f"another arm is {math.expm1(self.estimate(best) - gain) * 100:.1f} % faster"

    def estimate(self, arm: int) -> float:
        """Return the log speed-up of an arm; minus infinity before it can be compared."""
        gains = self._gains(arm)
        return statistics.median(gains) if gains else -math.inf

    def result(self, arm: int) -> ArmResult:
        """Return the numbers of an arm, with an interval that is valid at any time and for all arms together."""
        blocks = sum(block.arm == arm for block in self.blocks)
        if not self._gains(arm):
            return ArmResult(1.0, 0.0, math.inf, blocks, self.dropped.get(arm, ""), is_proven=False)
        refuted = math.log(2 * self.arms / INTERVAL_ERROR)
        estimate = self.estimate(arm)
        low = _find_end(self.blocks, arm, estimate, refuted, sign=+1)
        high = _find_end(self.blocks, arm, estimate, refuted, sign=-1)
        return ArmResult(
            speedup=math.exp(min(max(estimate, low), high)),
            low=math.exp(low),
            high=math.exp(high) if math.isfinite(high) else math.inf,
            blocks=blocks,
            dropped=self.dropped.get(arm, ""),
            is_proven=self._is_proven(arm),
        )

    def cost_us(self) -> float:
        """Return the time that arms have cost so far, µs: slower blocks and switches; faster blocks pay for nothing."""
        level_us, cost_us = self._default_us(), 0.0
        first_uses_us: list[float] = []
        for arm in range(1, self.arms + 1):
            own = [block for block in self.blocks if block.arm == arm]
            if own and self._gains(arm):
                cost_us += max(0.0, math.expm1(-self.estimate(arm)) * level_us) * sum(block.steps for block in own)
            if self._is_slow_to_start(arm):
                cost_us += sum(max(0.0, block.first_us - level_us) for block in own)
            else:
                first_uses_us += [block.first_us for block in own[:1]]
        # A single long one is a pause of the job.
        usual_us = statistics.median_low(first_uses_us) if len(first_uses_us) > 1 else 0.0
        for first_us in first_uses_us:
            cost_us += max(0.0, (first_us if first_us < LONG_STEP * level_us else min(first_us, usual_us)) - level_us)
        starts_us: dict[bool, list[float]] = {True: [], False: []}
        used = {DEFAULT}
        for before, block in zip(self.blocks, self.blocks[1:]):  # noqa: B905  # Python 3.8
            if block.arm in used:  # first uses are counted above
                starts_us[before.arm != block.arm].append(block.first_us)
            used.add(block.arm)
        if starts_us[True] and starts_us[False]:
            later_us = statistics.median_low(starts_us[True])
            later_us = min(later_us, statistics.median_low([*first_uses_us, *starts_us[True]]))
            cost_us += max(0.0, later_us - statistics.median_low(starts_us[False])) * len(starts_us[True])
        return cost_us

    def _is_proven(self, arm: int) -> bool:
        """Check that a gain is proven, reaches the minimum effect, and is borne out by the means of the steps."""
        gain = self.estimate(arm)
        if gain < math.log1p(self.min_effect):
            return False
        if log_capital(self.blocks, arm) < -math.log(self._error(arm)):
            return False
        return statistics.median(self._gains(arm, by_mean=True)) >= BORNE_OUT * gain

    def _error(self, arm: int) -> float:
        """Return the probability with which an arm may be proven falsely."""
        if self.arms == 1:
            return FALSE_TUNED
        first = next((max(block.draw.drawn_from) for block in self.blocks if block.draw.drawn_from), None)
        return FALSE_TUNED * (_FIRST_SHARE if arm == first else (1 - _FIRST_SHARE) / (self.arms - 1))

    def _gains(self, arm: int, *, by_mean: bool = False) -> list[float]:
        """Return the log speed-up of each block of an arm over the default's closest ones before and after it."""
        if (arm, by_mean) in self._known_gains:
            return self._known_gains[arm, by_mean]
        gains: list[float] = []
        before: float | None = None
        waiting: list[float] = []
        for block in self.blocks:
            time = block.log_mean if by_mean else block.log_time
            if block.arm == arm:
                waiting.append(time)
            elif block.arm == DEFAULT:
                default = time if before is None else (before + time) / 2
                gains += [default - own for own in waiting]
                before, waiting = time, []
        if before is not None:
            gains += [before - own for own in waiting]
        self._known_gains[arm, by_mean] = gains
        return gains

    def _deviation(self) -> float | None:
        """Return the standard deviation of a single gain, over all arms; None = too few blocks.

        By the mean distance from each arm's median, as robust as it is simple: sqrt(2 / pi) deviations if normal.
        """
        all_gains = [gains for arm in range(1, self.arms + 1) if len(gains := self._gains(arm)) > 1]
        free = sum(len(gains) - 1 for gains in all_gains)
        if free < _BEATEN_BLOCKS:
            return None
        distance = sum(abs(gain - statistics.median(gains)) for gains in all_gains for gain in gains)
        return distance / free * math.sqrt(math.pi / 2)

    def _default_us(self) -> float:
        """Return the median step of the default, µs; 0 before its first block."""
        times_us = [time_us for block in self.blocks if block.arm == DEFAULT for time_us in block.step_us]
        return statistics.median(times_us) if times_us else 0.0

    def _is_slower(self, arm: int) -> bool:
        """Check that an arm is slower by more than the noise of steps explains: even one block shows a great loss."""
        residuals = [
            math.log(time_us) - block.log_time
            for block in self.blocks
            if block.arm == DEFAULT
            for time_us in block.step_us
        ]
        blocks = len(self._gains(arm))
        if not residuals or not blocks:
            return False
        # Twice: neighbours in time resemble each other, so that blocks differ by more than steps within one.
        error = 2 * statistics.median(map(abs, residuals)) / 0.6745 / math.sqrt(blocks)
        return self.estimate(arm) < -max(math.log1p(self.min_effect), _SLOWER_DEVIATIONS * error)

    def _is_slow_to_start(self, arm: int) -> bool:
        """Check that the first steps of an arm are long, more than once and in every second block of it."""
        level_us = self._default_us()
        first_us = [block.first_us for block in self.blocks if block.arm == arm]
        long = sum(time_us >= LONG_STEP * level_us for time_us in first_us) if level_us else 0
        return long >= max(_LONG_STARTS, len(first_us) / 2)


def log_capital(blocks: Sequence[StepBlock], arm: int, gain: float = 0.0, *, sign: int = 1) -> float:
    """Return the log of the capital won by bets on the coins that an arm gains more than `gain`.

    Args:
        blocks: in order.
        arm: which is judged.
        gain: log speed-up, the null hypothesis; without one, that the arm changes nothing.
        sign: -1 bets that it gains less.
    """
    won = [0.0] * (len(SHARPNESS) * len(STAKE))
    for ratio in _find_ratios(blocks, arm, gain):
        odds = (stake * math.tanh(sharpness * sign * ratio) for sharpness in SHARPNESS for stake in STAKE)
        won = [capital + math.log1p(odd) for capital, odd in zip(won, odds)]  # noqa: B905  # Python 3.8
    best = max(won)
    return best + math.log(statistics.fmean(math.exp(capital - best) for capital in won))


def _find_ratios(blocks: Sequence[StepBlock], arm: int, gain: float) -> list[float]:
    """Return for each coin how much its block speaks for the arm, by forecasts from earlier blocks alone.

    Times of the arm are corrected by `gain`: if that is its gain, coins say nothing about what is left.
    """
    ratios: list[float] = []
    level: float | None = None
    effects: dict[int, float] = {}
    blocks_of_arm: dict[int, int] = {}
    before, before_arm = 0.0, DEFAULT
    for block in blocks:
        time = block.log_time + (gain if block.arm == arm else 0.0)
        if block.draw.closes_pair:
            if arm in (block.arm, before_arm):
                ratios.append(before - time if block.arm == arm else time - before)
        elif (
            level is not None
            and arm in effects
            and block.arm in (DEFAULT, arm)
            and arm in block.draw.drawn_from
            and not block.draw.opens_pair
        ):
            middle = level + effects[arm] / 2
            ratios.append(middle - time if block.arm == arm else time - middle)
        before, before_arm = time, block.arm
        if level is None:
            level = time if block.arm == DEFAULT else None
            continue
        error = time - level - effects.get(block.arm, 0.0)
        share = 0.0
        if block.arm != DEFAULT:
            # The first block of an arm shows its effect, later ones share their error between effect and level.
            blocks_of_arm[block.arm] = count = blocks_of_arm.get(block.arm, 0) + 1
            share = 1.0 if count == 1 else 1 / (count + 0.5)
            effects[block.arm] = effects.get(block.arm, 0.0) + share * error
        level += _LEVEL_GAIN * (1 - share) * error
    return ratios


def _find_end(blocks: Sequence[StepBlock], arm: int, around: float, refuted: float, *, sign: int) -> float:
    """Return the lowest log speed-up that is not refuted, or with a sign of -1 the highest; infinite = none is."""
    inside, outside = around + sign * _BRACKET, around - sign * _BRACKET
    if log_capital(blocks, arm, outside, sign=sign) < refuted:
        return -sign * math.inf
    for _ in range(_HALVINGS):
        half = (inside + outside) / 2
        if log_capital(blocks, arm, half, sign=sign) >= refuted:
            outside = half
        else:
            inside = half
    return inside

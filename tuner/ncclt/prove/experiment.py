"""Experiments: arms against a control in blocks of steps, judged by the mean step, which sets the cost of the job.

A running training drifts, its noise is correlated, and evaluations and checkpoints interrupt it. So the test assumes
nothing about the times. Each arm gets a first block, which shows its effect; then a coin draws the arm of each block
from the control and the arm that looks best. If that arm changes nothing, the draw does not affect the times, so a bet
on the coin, made from the block's time and all earlier blocks, is fair: over any number of looks, the capital of such
bets reaches 100 with a probability of at most 1 % (`prove.confidence`). The forecast tracks the level of the control
and the effect of each arm: a block faster than the middle of both is a bet on the arm, a slower one on the control. Bad
forecasts cost time and never raise the error rate.

Pairs of control and arm in random order use one coin for two blocks, but cancel more drift. They take over once a
single arm is left and its gain is small compared with the noise.

The usual steps win the bets, since a rare stall moves few blocks. A winning arm leads: it stays in force, but is
`tuned` only once its steps rule out stalls that would cancel the gain (`StepTally`). As a guard, a share of the later
blocks runs the control, and the control returns if the arm no longer has the faster mean.

The first steps after a draw never count, whether the arm changes or not: a switch takes effect during them and may
connect an algorithm. Skipping them only after a change would compare different steps of the two.

This module runs inside the job of the user: standard library alone, Python 3.8, nothing of ncclt.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .levels import FALSE_TUNED, INTERVAL_ERROR, SHARPNESS, STAKE, WEIGHT

CONTROL = 0
"""Arm of the current settings, in a live job the NCCL default; other arms start at 1."""

LONG = 1.5
"""Multiple of the control's level above which a step is long: bets clip it there, the mean counts all of it."""

PAUSE, STALL = 10.0, 50.0
"""Multiples of the control's level. Steps above the first are pauses of the job (evaluations, checkpoints) if they come
at regular distances, and count for no arm; otherwise they are stalls. The mean clips steps at the second, so that one
frozen disk cannot decide."""

_PAUSES, _SHORTEST_PERIOD = 8, 10
"""Newest pauses in which a period is sought, and the shortest one in steps. A period counts only if the control paused
in it: with stalls at each 200th of its steps, an arm that was 8 % slower was called tuned."""

_REMEMBERED_STEPS = 4000.0
"""Steps of an arm after which the older half fades: an arm that begins to stall need not lose its earlier gain."""

_CARRIED_BLOCKS = 50
"""Newest blocks of the control that show what an arm leaves behind."""

_UNSEEN, _UNSEEN_EXCESS = 3.0, 2.0
"""After n steps without a stall, up to 3/n of the steps may stall (95 %), and then take three times as long."""

SAVED_ERRORS = 2.0
"""Standard errors of the mean that a gain must exceed for `tuned`, and a loss for dropping the arm."""

_STALLS = 0.05
"""Max probability of all stalls in the arm by chance at which one standard error is enough to drop it: each of them
costs the gain of hundreds of steps."""

_LONG_CAPITAL = 20.0
"""Capital of bets on the share of long steps that drops an arm; drops at most one good arm in twenty."""

GUARD_BLOCKS = 19
"""Block lengths of a leading arm per block of the control."""

_CARRY_BLOCKS, _CARRY_ERRORS = 4, 3.0
"""Min blocks of the control after an arm, and after the control, to estimate the carry-over of the arm, and min
standard errors of a carry-over that drops it."""

_FIRST_SHARE = 0.8
"""Share of `FALSE_TUNED` for the first arm in a draw, which the first blocks select; the others share
the rest. With equal shares a gain of 10 % among three arms takes 102 steps instead of 96 (bench/live_decisions.py)."""

MAX_BLOCKS = 200
"""Blocks after which live tuning ends undecided: a gain of 3 % under noise of 5 % takes about 100."""

ADVANCE_STEPS = 1000
"""Future steps of the job that count toward the budget in advance. Without them, a first block with 10 % longer steps
would stop the test for 100 steps."""

_LEVEL_GAIN = 0.3
"""Weight of the newest block in the moving level of the control; 0.2 to 0.6 make no difference
(bench/live_decisions.py)."""

_PAIRED_BELOW = 1.5
"""Gain in standard deviations of a block below which pairs compare the last arm. Under noise of 5 % they find a
gain of 3 % in 65 of 100 trainings of 1,000 steps, single blocks in 51 (bench/live_decisions.py)."""

_HOPELESS_DEVIATIONS, _HOPELESS_BLOCKS = 2.0, 4
"""Min standard errors by which an estimated gain misses the minimum effect, and min blocks, to drop an arm. With 1.28,
as between launches, one arm in ten with a gain of 3 % is dropped (bench/live_decisions.py)."""

_BEATEN_DEVIATIONS, _BEATEN_BLOCKS = 2.5, 2
"""The same for an arm against the best one. Dropping an arm can only lose its gain."""

_SLOWER_DEVIATIONS = 4.0
"""Standard deviations, by the noise of steps within the control's blocks, of a single block that drops its arm."""

LONG_STEP = 3.0
"""Max ratio of an arm's first step to the median step."""

_LONG_STARTS = 2
"""Min number of long first steps that drops an arm: a single one may be an evaluation, and would drop one good
arm in five in a job that evaluates every 50 steps (bench/live_decisions.py)."""

_BRACKET, _HALVINGS = 2.0, 24
"""Half width of the search for the ends of an interval, as a log ratio, and its bisection steps, enough for an error
far below any noise."""


class Draw(NamedTuple):
    """Arm of the next block, and its draw.

    Attributes:
        arm: number of the arm.
        drawn_from: arms in the draw, each with the same probability; empty = no coin.
        opens_pair: the next block takes the other arm.
        closes_pair: the block takes the other arm of its pair.
        guards: length of a guard block, in block lengths; 0 = no arm is in force.
    """

    arm: int
    drawn_from: tuple[int, ...] = ()
    opens_pair: bool = False
    closes_pair: bool = False
    guards: int = 0


@dataclass(frozen=True)
class StepBlock:
    """Consecutive steps of one arm.

    Attributes:
        draw: draw of its arm.
        step_us: time of each counted step on its slowest rank, µs; one or more.
        uncounted_us: times of the steps between the draw and the counted steps, µs.
        step: number of its last step in the job.
        elapsed_us: time of the job at its end, µs, with the steps before the first block.
        log_time: log of the mean step without pauses, each step clipped at `LONG` times the median.
    """

    draw: Draw
    step_us: tuple[float, ...]
    uncounted_us: tuple[float, ...] = ()
    step: int = 0
    elapsed_us: float = 0.0
    log_time: float = field(init=False)

    def __post_init__(self) -> None:
        """Summarize the steps once."""
        usual_us = statistics.median(self.step_us)
        steps_us = [min(time_us, LONG * usual_us) for time_us in self.step_us if time_us <= PAUSE * usual_us]
        object.__setattr__(self, "log_time", math.log(statistics.fmean(steps_us)))

    @property
    def arm(self) -> int:
        """Return the arm of the block."""
        return self.draw.arm

    @property
    def first_us(self) -> float:
        """Return the longest step between the draw and the counted ones, µs; 0 = there is none."""
        return max(self.uncounted_us, default=0.0)

    @property
    def steps(self) -> int:
        """Return the number of all steps, counted or not."""
        return len(self.uncounted_us) + len(self.step_us)


class StepTally:
    """Counted steps of one arm, as multiples of the control's level at their time.

    Attributes:
        pauses: step -> multiple, for multiples above `PAUSE`.
    """

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0.0, 0.0, 0.0
        self.pauses: dict[int, float] = {}

    def add(self, step: int, multiple: float) -> None:
        """Count a step."""
        if multiple > PAUSE:
            self.pauses[step] = min(multiple, STALL)
        else:
            self._count += 1
            self._sum += multiple
            self._squares += multiple**2
        if self._count >= _REMEMBERED_STEPS:
            self._count, self._sum, self._squares = self._count / 2, self._sum / 2, self._squares / 2
            for old in sorted(self.pauses)[: len(self.pauses) // 2]:
                del self.pauses[old]

    def summarize(self, regular: set[int], *, forgiven: int = 0) -> tuple[float, float, float, int]:
        """Return the mean of all steps, its variance, and the numbers of steps and of stalls among them.

        Args:
            regular: pauses of the job, left out.
            forgiven: number of the longest other pauses to leave out.
        """
        stalls = sorted(multiple for step, multiple in self.pauses.items() if step not in regular)
        stalls = stalls[: max(len(stalls) - forgiven, 0)]
        count = self._count + len(stalls)
        if not count:
            return 1.0, math.inf, 0.0, 0
        mean = (self._sum + sum(stalls)) / count
        squares = self._squares + sum(stall**2 for stall in stalls)
        return mean, max(squares / count - mean**2, 0.0) / count, count, len(stalls)


class MeanGain(NamedTuple):
    """Time that an arm saves in the mean step, as a share of the control's level.

    Attributes:
        saving: measured saving.
        error: standard error of the saving.
        unseen: upper bound of the cost of stalls that did not occur yet.
        steps, stalls: counted steps of the arm, and stalls among them.
        control: mean step of the control, as a multiple of its level.
        share: of the arm in the counted steps of both.
    """

    saving: float
    error: float
    unseen: float
    steps: float
    stalls: int
    control: float = 1.0
    share: float = 1.0

    @property
    def low(self) -> float:
        """Return the lower bound of the saving, with error and unseen stalls against the arm."""
        return self.saving - SAVED_ERRORS * self.error - self.unseen

    def find_speedup(self, errors: float = 0.0) -> float:
        """Return the mean step of the control over that of the arm, at a saving of so many standard errors more."""
        left = self.control - self.saving - errors * self.error
        return self.control / left if left > 0 else math.inf

    @property
    def is_lost(self) -> bool:
        """Return True if the mean speaks against the arm; a few stalls lower the bar."""
        errors = 1.0 if self.share**self.stalls <= _STALLS else SAVED_ERRORS
        return self.saving + errors * self.error < 0


def estimate_unseen(steps: float) -> float:
    """Return the upper bound of the cost of stalls after so many steps without one, as a share of the mean step."""
    return min(_UNSEEN / max(steps, 1), 1.0) * _UNSEEN_EXCESS


def compare_means(control: StepTally, arm: StepTally, regular: set[int], *, forgiven: int = 0) -> MeanGain:
    """Compare the mean steps of two arms; for the arguments see `StepTally.summarize`."""
    mean, variance, steps, stalls = arm.summarize(regular, forgiven=forgiven)
    reference, reference_variance, reference_steps, _ = control.summarize(regular, forgiven=forgiven)
    if not steps or not reference_steps:
        return MeanGain(0.0, math.inf, math.inf, steps, stalls)
    error, share = math.sqrt(variance + reference_variance), steps / (steps + reference_steps)
    return MeanGain(reference - mean, error, estimate_unseen(steps), steps, stalls, reference, share)


class ArmResult(NamedTuple):
    """Result of one arm against the control.

    Attributes:
        speedup: mean step of the control over that of the arm.
        low, high: ends of the interval; 0 and infinity = unknown.
        blocks: number of blocks of the arm.
        dropped: reason for dropping it; empty = not dropped.
    """

    speedup: float
    low: float
    high: float
    blocks: int
    dropped: str


@dataclass
class Experiment:
    """Sequential test of arms against the control.

    Attributes:
        arms: number of arms beside the control.
        min_effect: smallest gain that justifies a change, as a share.
        max_cost: max cost of the arms before trying one, as a share of the job's time so far, or of `ADVANCE_STEPS` if
            that is more.
        coin: source of the draws.
        blocks: all blocks so far, without guard blocks.
        elapsed_us: time of the job so far, µs, with the steps before the first block.
        level_us: time of a usual step of the control now, µs; 0 before its first block.
        dropped: arm -> reason.
    """

    arms: int
    min_effect: float = 0.02
    max_cost: float = 0.005
    coin: random.Random = field(default_factory=random.SystemRandom)
    blocks: list[StepBlock] = field(default_factory=list)
    elapsed_us: float = 0.0
    level_us: float = 0.0
    dropped: dict[int, str] = field(default_factory=dict)
    _last: StepBlock | None = None
    _control_blocks_due: int = 0
    _was_long: bool = False
    _tallies: list[StepTally] = field(init=False, repr=False)
    _long_bets: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _has_pauses: bool = False
    _regular: set[int] = field(default_factory=set, repr=False)
    _known_gains: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _capitals: dict[int, float] = field(default_factory=dict, repr=False)
    _left_behind: dict[int, deque[float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Count no steps yet."""
        self._tallies = [StepTally() for _ in range(self.arms + 1)]

    @property
    def left(self) -> list[int]:
        """Return the remaining arms."""
        return [arm for arm in range(1, self.arms + 1) if arm not in self.dropped]

    @property
    def leading(self) -> int | None:
        """Return the best arm that has won its bets and has the faster mean; None = no such arm yet."""
        left = self.left
        won = [arm for arm in left if self._has_won(arm)]
        if not won:
            return None
        best = max(won, key=self.estimate)
        if not self._is_over and any(self.estimate(arm) > self.estimate(best) for arm in left if arm not in won):
            return None
        return best

    @property
    def tuned(self) -> int | None:
        """Return the leading arm once its steps rule out stalls that would cancel the gain; None = not yet."""
        leading = self.leading
        if leading is None or self.mean_gain(leading).low <= max(self._estimate_carry_over(leading)[0], 0.0):
            return None
        return leading

    @property
    def has_ended(self) -> bool:
        """Return True if the test needs no more blocks; a leading arm needs guard blocks to the end of the job."""
        return not self.left or (self._is_over and self.leading is None)

    @property
    def _is_over(self) -> bool:
        return sum(bool(block.draw.drawn_from) or block.draw.closes_pair for block in self.blocks) >= MAX_BLOCKS

    def next(self) -> Draw:
        """Choose the arm of the next block; the first one shows the level of the control."""
        last, left = self.blocks[-1].draw if self.blocks else Draw(CONTROL), self.left
        if len(left) == 1 and last.opens_pair:
            return Draw(left[0] if last.arm == CONTROL else CONTROL, closes_pair=True)
        leading = self.leading
        if leading is not None:
            # Two blocks of the control: only the first shows the carry-over of the arm.
            return Draw(CONTROL, guards=1) if self._control_blocks_due else Draw(leading, guards=2 * GUARD_BLOCKS)
        paying_us = max(self.elapsed_us, ADVANCE_STEPS * self._control_us())
        if not self.blocks or not left or self.cost_us() > self.max_cost * paying_us:
            return Draw(CONTROL)
        tried = {block.arm for block in self.blocks}
        if untried := [arm for arm in left if arm not in tried]:
            return Draw(untried[0])
        choices, deviation = (CONTROL, max(left, key=self.estimate)), self._deviation()
        # Whether pairs compare the last remaining arm is decided before the coin, so that bets stay fair.
        is_paired = len(left) == 1 and deviation is not None and self.estimate(left[0]) < _PAIRED_BELOW * deviation
        return Draw(self.coin.choice(choices), drawn_from=choices, opens_pair=is_paired)

    def observe(self, block: StepBlock) -> None:
        """Count a block, and drop arms that it shows to be slow or hopeless."""
        self.elapsed_us = block.elapsed_us
        self._count(block)
        if block.draw.guards:
            self._control_blocks_due = 2 if block.arm != CONTROL else self._control_blocks_due - 1
        else:
            if block.draw == Draw(CONTROL) and self.blocks and self.blocks[-1].draw == Draw(CONTROL):
                self.blocks.pop()  # while the budget holds arms back, only the newest block of the control matters
            self.blocks.append(block)
            self._control_blocks_due = 0
            self._known_gains.clear()
            self._capitals.clear()
            if block.arm != CONTROL and self._is_slow_to_start(block.arm):
                self.dropped.setdefault(block.arm, f"its first step takes over {LONG_STEP:g} times the median")
        deviation = self._deviation()
        gains = {arm: self._gains(arm) for arm in self.left}
        counted = [arm for arm in gains if gains[arm]]
        best = max(counted, key=self.estimate) if counted else CONTROL
        for arm in counted:
            blocks, gain = len(gains[arm]), self.estimate(arm)
            mean, (carry_over, carry_error) = self.mean_gain(arm), self._estimate_carry_over(arm)
            if not block.draw.guards and self._is_slower(arm):
                self.dropped[arm] = f"steps take {math.expm1(-gain) * 100:.1f} % longer"
            elif blocks >= _BEATEN_BLOCKS and mean.is_lost:
                self.dropped[arm] = f"its mean step takes {-mean.saving * 100:.1f} % longer"
            elif sum(self._long_bets.get(arm, ())) >= _LONG_CAPITAL:
                self.dropped[arm] = "it has more long steps than the control"
            elif carry_over > max(_CARRY_ERRORS * carry_error, gain - math.log1p(self.min_effect)):
                self.dropped[arm] = "it slows the steps of the control after it"
            elif deviation is None or self._has_won(arm):
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

    def _count(self, block: StepBlock) -> None:
        """Count the steps of a block in the tally of its arm, and update the level of the control."""
        level = math.log(self.level_us) if self.level_us else block.log_time
        level_us, before = math.exp(level), self._last
        tally, first = self._tallies[block.arm], block.step - len(block.step_us) + 1
        newest = max(tally.pauses, default=0)
        for step, time_us in enumerate(block.step_us, start=first):
            tally.add(step, time_us / level_us)
        self._has_pauses |= max(block.uncounted_us, default=0.0) > PAUSE * level_us
        if max(tally.pauses, default=0) != newest:  # fading may remove as many as are new
            self._has_pauses |= block.arm == CONTROL
            steps = [step for tally in self._tallies for step in tally.pauses]
            period, phase = find_period(tuple(self._tallies[CONTROL].pauses), steps)
            self._regular = {step for step in steps if period and (step - phase) % period == 0}
        is_long = max(block.step_us) > LONG * level_us
        if block.draw.closes_pair and before is not None:
            arm = max(block.arm, before.arm)
            if is_long != self._was_long:
                self._bet_on_long(arm, won=(block.arm == arm) == is_long)
        elif block.draw.drawn_from and not block.draw.opens_pair and is_long:
            arm = max(block.draw.drawn_from)
            self._bet_on_long(arm, won=block.arm == arm)
        self._was_long = is_long
        if block.arm == CONTROL:
            if before is not None:
                carried = self._left_behind.setdefault(before.arm, deque(maxlen=_CARRIED_BLOCKS))
                carried.append(block.log_time - level)
            self.level_us = math.exp(level + _LEVEL_GAIN * (block.log_time - level))
        self._last = block

    def _bet_on_long(self, arm: int, *, won: bool) -> None:
        """Bet once per block that a block with long steps belongs to the arm."""
        sign, capitals = 1 if won else -1, self._long_bets.get(arm, WEIGHT)
        self._long_bets[arm] = [c * (1 + sign * stake) for c, stake in zip(capitals, STAKE)]  # noqa: B905  # Python 3.8

    def _estimate_carry_over(self, arm: int) -> tuple[float, float]:
        """Estimate the slowdown of the control after an arm, as a log ratio to that after itself, and its error."""
        after, others = self._left_behind.get(arm, ()), self._left_behind.get(CONTROL, ())
        if min(len(after), len(others)) < _CARRY_BLOCKS:
            return 0.0, math.inf
        error = math.sqrt(statistics.variance(after) / len(after) + statistics.variance(others) / len(others))
        return statistics.fmean(after) - statistics.fmean(others), error

    def mean_gain(self, arm: int, *, forgive: bool = False) -> MeanGain:
        """Return the gain of an arm in the mean step.

        Args:
            forgive: leave out one pause of each, if the job has had pauses without the arms.
        """
        forgiven = int(forgive and self._has_pauses)
        return compare_means(self._tallies[CONTROL], self._tallies[arm], self._regular, forgiven=forgiven)

    def estimate(self, arm: int) -> float:
        """Return the log speed-up of an arm; minus infinity before it can be compared."""
        gains = self._gains(arm)
        return statistics.median(gains) if gains else -math.inf

    def result(self, arm: int) -> ArmResult:
        """Return the result of an arm; its interval covers the usual steps, at any time, and the mean."""
        blocks, dropped = sum(block.arm == arm for block in self.blocks), self.dropped.get(arm, "")
        if not self._gains(arm):
            return ArmResult(1.0, 0.0, math.inf, blocks, dropped)
        refuted = math.log(2 * self.arms / INTERVAL_ERROR)
        estimate, mean = self.estimate(arm), self.mean_gain(arm)
        low = math.exp(_find_end(self.blocks, arm, estimate, refuted, sign=+1))
        high_log = _find_end(self.blocks, arm, estimate, refuted, sign=-1)
        high = math.exp(high_log) if math.isfinite(high_log) else math.inf
        ends = [mean.find_speedup(errors) for errors in (-SAVED_ERRORS, 0.0, SAVED_ERRORS)]
        return ArmResult(ends[1], min(low, ends[0]), max(high, ends[2]), blocks, dropped)

    def cost_us(self) -> float:
        """Return the cost of the arms so far, µs: slower blocks and switches; faster blocks do not offset it."""
        level_us, cost_us = self._control_us(), 0.0
        first_uses_us: list[float] = []
        for arm in range(1, self.arms + 1):
            arm_blocks = [block for block in self.blocks if block.arm == arm]
            saving = self.mean_gain(arm, forgive=True).saving
            cost_us += max(0.0, -saving * level_us) * sum(block.steps for block in arm_blocks)
            if self._is_slow_to_start(arm):
                cost_us += sum(max(0.0, block.first_us - level_us) for block in arm_blocks)
            else:
                first_uses_us += [block.first_us for block in arm_blocks[:1]]
        # A single long one is a pause of the job.
        usual_us = statistics.median_low(first_uses_us) if len(first_uses_us) > 1 else 0.0
        for first_us in first_uses_us:
            cost_us += max(0.0, (first_us if first_us < LONG_STEP * level_us else min(first_us, usual_us)) - level_us)
        starts_us: dict[bool, list[float]] = {True: [], False: []}
        used = {CONTROL}
        for before, block in zip(self.blocks, self.blocks[1:]):  # noqa: B905  # Python 3.8
            if block.arm in used:  # first uses are counted above
                starts_us[before.arm != block.arm].append(block.first_us)
            used.add(block.arm)
        if starts_us[True] and starts_us[False]:
            later_us = statistics.median_low(starts_us[True])
            later_us = min(later_us, statistics.median_low([*first_uses_us, *starts_us[True]]))
            cost_us += max(0.0, later_us - statistics.median_low(starts_us[False])) * len(starts_us[True])
        return cost_us

    def _has_won(self, arm: int) -> bool:
        """Check that an arm has won its bets, with at least the minimum effect and a faster mean."""
        if self.estimate(arm) < math.log1p(self.min_effect):
            return False
        if arm not in self._capitals:
            self._capitals[arm] = log_capital(self.blocks, arm)
        if self._capitals[arm] < -math.log(self._error(arm)):
            return False
        return self.mean_gain(arm, forgive=True).saving > 0

    def _error(self, arm: int) -> float:
        """Return the allowed probability of a false win of an arm."""
        if self.arms == 1:
            return FALSE_TUNED
        first = next((max(block.draw.drawn_from) for block in self.blocks if block.draw.drawn_from), None)
        return FALSE_TUNED * (_FIRST_SHARE if arm == first else (1 - _FIRST_SHARE) / (self.arms - 1))

    def _gains(self, arm: int) -> list[float]:
        """Return the log speed-up of each block of an arm over the control's closest ones before and after it."""
        if arm in self._known_gains:
            return self._known_gains[arm]
        gains: list[float] = []
        before: float | None = None
        waiting: list[float] = []
        for block in self.blocks:
            if block.arm == arm:
                waiting.append(block.log_time)
            elif block.arm == CONTROL:
                control = block.log_time if before is None else (before + block.log_time) / 2
                gains += [control - log_time for log_time in waiting]
                before, waiting = block.log_time, []
        if before is not None:
            gains += [before - log_time for log_time in waiting]
        self._known_gains[arm] = gains
        return gains

    def _deviation(self) -> float | None:
        """Return the standard deviation of a single gain, over all arms; None = too few blocks.

        Robust estimate from the mean distance to each arm's median: sqrt(2 / pi) standard deviations if normal.
        """
        all_gains = [gains for arm in range(1, self.arms + 1) if len(gains := self._gains(arm)) > 1]
        free = sum(len(gains) - 1 for gains in all_gains)
        if free < _BEATEN_BLOCKS:
            return None
        distance = sum(abs(gain - statistics.median(gains)) for gains in all_gains for gain in gains)
        return distance / free * math.sqrt(math.pi / 2)

    def _control_us(self) -> float:
        """Return the median step of the control, µs; 0 before its first block."""
        times_us = [time_us for block in self.blocks if block.arm == CONTROL for time_us in block.step_us]
        return statistics.median(times_us) if times_us else 0.0

    def _is_slower(self, arm: int) -> bool:
        """Check that an arm is slower by more than the noise of steps; one block is enough for a great loss."""
        residuals = [
            math.log(time_us) - block.log_time
            for block in self.blocks
            if block.arm == CONTROL
            for time_us in block.step_us
        ]
        blocks = len(self._gains(arm))
        if not residuals or not blocks:
            return False
        # Twice, because step times are correlated: blocks differ by more than the steps within one.
        error = 2 * statistics.median(map(abs, residuals)) / 0.6745 / math.sqrt(blocks)
        return self.estimate(arm) < -max(math.log1p(self.min_effect), _SLOWER_DEVIATIONS * error)

    def _is_slow_to_start(self, arm: int) -> bool:
        """Check that the first steps of an arm are long, more than once and in at least half of its blocks."""
        level_us = self._control_us()
        first_us = [block.first_us for block in self.blocks if block.arm == arm]
        long = sum(time_us >= LONG_STEP * level_us for time_us in first_us) if level_us else 0
        return long >= max(_LONG_STARTS, len(first_us) / 2)


def find_period(control: Sequence[int], pauses: Sequence[int]) -> tuple[int, int]:
    """Return period and phase of the job's pauses: those that most share, the control too; a period of 0 = none.

    Args:
        control: steps at which the control paused.
        pauses: steps at which any arm did.
    """
    newest = sorted({*sorted(pauses)[-_PAUSES:], *sorted(control)[-_PAUSES:]})
    # Of the few counted steps, two pauses in turn may be several periods apart: three show a common divisor.
    periods = {(math.gcd(b - a, c - a), a) for a in newest for b in newest for c in newest if a < b < c}
    shared = [
        (sum((pause - first) % period == 0 for pause in newest), -period, first % period)
        for period, first in periods
        if period >= _SHORTEST_PERIOD and any((pause - first) % period == 0 for pause in control)
    ]
    _, negative, phase = max(shared, default=(0, 0, 0))
    return -negative, phase


def log_capital(blocks: Sequence[StepBlock], arm: int, gain: float = 0.0, *, sign: int = 1) -> float:
    """Return the log capital of bets on the coins that an arm gains more than `gain`.

    Args:
        blocks: in order.
        arm: arm to judge.
        gain: log speed-up under the null hypothesis; default: no effect.
        sign: -1 bets that it gains less.
    """
    bets = [(sharpness, stake) for stake in STAKE for sharpness in SHARPNESS]
    shares = [weight / len(SHARPNESS) for weight in WEIGHT for _ in SHARPNESS]
    won = [0.0] * len(bets)
    for ratio in _find_ratios(blocks, arm, gain):
        odds = [stake * math.tanh(sharpness * sign * ratio) for sharpness, stake in bets]
        won = [capital + math.log1p(odd) for capital, odd in zip(won, odds)]  # noqa: B905  # Python 3.8
    best = max(won)
    return best + math.log(sum(share * math.exp(capital - best) for share, capital in zip(shares, won)))  # noqa: B905


def _find_ratios(blocks: Sequence[StepBlock], arm: int, gain: float) -> list[float]:
    """Return a log ratio for each coin, positive if its block favours the arm, by forecasts from earlier blocks alone.

    Times of the arm are corrected by `gain`: if that is its true gain, the coins do not affect the corrected times.
    """
    ratios: list[float] = []
    level: float | None = None
    effects: dict[int, float] = {}
    blocks_of_arm: dict[int, int] = {}
    before, before_arm = 0.0, CONTROL
    for block in blocks:
        time = block.log_time + (gain if block.arm == arm else 0.0)
        if block.draw.closes_pair:
            if arm in (block.arm, before_arm):
                ratios.append(before - time if block.arm == arm else time - before)
        elif (
            level is not None
            and arm in effects
            and block.arm in (CONTROL, arm)
            and arm in block.draw.drawn_from
            and not block.draw.opens_pair
        ):
            middle = level + effects[arm] / 2
            ratios.append(middle - time if block.arm == arm else time - middle)
        before, before_arm = time, block.arm
        if level is None:
            level = time if block.arm == CONTROL else None
            continue
        error = time - level - effects.get(block.arm, 0.0)
        share = 0.0
        if block.arm != CONTROL:
            # The first block of an arm shows its effect, later ones share their error between effect and level.
            blocks_of_arm[block.arm] = count = blocks_of_arm.get(block.arm, 0) + 1
            share = 1.0 if count == 1 else 1 / (count + 0.5)
            effects[block.arm] = effects.get(block.arm, 0.0) + share * error
        level += _LEVEL_GAIN * (1 - share) * error
    return ratios


def _find_end(blocks: Sequence[StepBlock], arm: int, around: float, refuted: float, *, sign: int) -> float:
    """Return the lowest log speed-up in the interval, or with a sign of -1 the highest; infinite = unbounded."""
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

"""Experiments: arms against a control in blocks of steps, judged by what the user pays, the mean step.

A running training is one machine with one clock: it drifts, its noise has a memory, and evaluations and checkpoints
interrupt it. So nothing is assumed about the times. Steps are grouped into blocks. Each arm gets a first block, which
shows its effect; then a coin draws the arm of each block from the control and the arm that looks best. If that arm
changes nothing, the times are the same whichever the coin had drawn; so a bet on the coin, made from the block's time
and all earlier blocks, is fair: over any number of looks, the capital won by such bets reaches 100 with a probability
of at most 1 % (`prove.confidence`). The level of the control is followed from block to block, and each arm's effect
beside it: a block that is faster than the middle of both is a bet on the arm, a slower one on the control. Bad
forecasts cost time and never raise the error rate.

The other design, pairs of control and arm in random order, has one coin where this one has two, but is disturbed less:
it takes over once a single arm is left whose gain is small beside the noise.

Bets are won by the usual steps, since a rare stall moves few blocks. An arm that has won leads: it stays in force, but
is called `tuned` only when its stalls, those not yet excluded too, cannot cost what it gains (`Tally`). From then on a
share of the blocks remains the control's, and an arm that no longer wins by the mean is taken back.

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

from .levels import FALSE_TUNED, INTERVAL_ERROR, SHARPNESS, STAKE, WEIGHT

CONTROL = 0
"""Arm of what runs today, in a live job the NCCL default; other arms start at 1."""

LONG = 1.5
"""Steps above this multiple of the control's level are long: the bets count them as such, the mean in full."""

PAUSE, STALL = 10.0, 50.0
"""Multiples of the control's level. Above the first, steps at regular distances are pauses of the job (evaluations,
checkpoints) and count for no arm; the mean counts a step as the second at most, or one frozen disk would decide."""

_PAUSES = 100
"""Newest pauses among which regular ones are sought."""

_UNSEEN, _UNSEEN_EXCESS = 3.0, 2.0
"""Among n steps without a stall, a share of up to 3/n may stall (95 %); a stall takes at least three steps."""

SAVED_ERRORS = 2.0
"""Standard errors of the mean by which an arm must gain to be called tuned, and lose to be dropped."""

_STALLS = 2
"""Stalls after which one standard error is enough to drop an arm: each costs what hundreds of steps gain."""

_LONG_CAPITAL = 20.0
"""Capital of bets on the share of long steps that drops an arm: one good arm in twenty at most."""

GUARD_BLOCKS = 19
"""Lengths of a block for which an arm that leads stays in force between two blocks of the control."""

_CARRY_BLOCKS, _CARRY_ERRORS = 4, 3.0
"""Fewest blocks of the control after an arm, and after the control, that show what an arm leaves behind, and standard
errors between them that do."""

_FIRST_SHARE = 0.8
"""Share of `FALSE_TUNED` for the first arm that a coin compares, chosen by blocks without a coin; the others share
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
"""Gain in standard deviations of a block below which the last arm is compared in pairs. Under noise of 5 % they find a
gain of 3 % in 65 of 100 trainings of 1,000 steps, single blocks in 51 (bench/live_decisions.py)."""

_HOPELESS_DEVIATIONS, _HOPELESS_BLOCKS = 2.0, 4
"""Standard errors between an estimated gain and the minimum below it at which an arm is dropped, and the fewest blocks
for that: with 1.28, as between launches, one arm in ten that gains 3 % is dropped (bench/live_decisions.py)."""

_BEATEN_DEVIATIONS, _BEATEN_BLOCKS = 2.5, 2
"""The same for an arm against the best one. Dropping an arm can only lose its gain."""

_SLOWER_DEVIATIONS = 4.0
"""Standard deviations, by the noise of steps within the control's blocks, of a single block that drops its arm."""

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
        guards: lengths of the block while an arm is in force; 0 = it is not.
    """

    arm: int
    drawn_from: tuple[int, ...] = ()
    opens_pair: bool = False
    closes_pair: bool = False
    guards: int = 0


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one arm.

    Attributes:
        draw: how its arm was chosen.
        step_us: time of each counted step on its slowest rank, µs; one or more.
        uncounted_us: the steps between the draw and the counted ones, µs.
        step: number of the last one in the job.
        elapsed_us: time of the job at its end, µs, with the steps before the first block.
        log_time: log of the mean step without pauses, where no step counts as more than `LONG` times the median.
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


class Summary(NamedTuple):
    """Mean multiple of an arm's steps, the variance of that mean, and the number of steps and of stalls among them."""

    mean: float
    variance: float
    steps: int
    stalls: int


class Tally:
    """All counted steps of one arm, as multiples of the control's level at their time.

    Attributes:
        pauses: step -> multiple, of those above `PAUSE`.
    """

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self.pauses: dict[int, float] = {}

    def add(self, step: int, multiple: float) -> None:
        """Count a step."""
        if multiple > PAUSE:
            self.pauses[step] = min(multiple, STALL)
        else:
            self._count += 1
            self._sum += multiple
            self._squares += multiple**2

    def summarize(self, regular: set[int], *, forgiven: int = 0) -> Summary:
        """Return the mean of all steps.

        Args:
            regular: steps that are pauses of the job, which no arm can help.
            forgiven: number of the longest other pauses to leave out.
        """
        stalls = sorted(multiple for step, multiple in self.pauses.items() if step not in regular)
        stalls = stalls[: max(len(stalls) - forgiven, 0)]
        count = self._count + len(stalls)
        if not count:
            return Summary(1.0, math.inf, 0, 0)
        mean = (self._sum + sum(stalls)) / count
        squares = self._squares + sum(stall**2 for stall in stalls)
        return Summary(mean, max(squares / count - mean**2, 0.0) / count, count, len(stalls))


class MeanGain(NamedTuple):
    """Time that an arm saves in the mean step, as a share of the control's level.

    Attributes:
        saved: as measured.
        error: its standard error.
        unseen: what stalls may cost that the arm has had the luck not to show.
        steps, stalls: counted ones of the arm, and those above `PAUSE` among them.
    """

    saved: float
    error: float
    unseen: float
    steps: int
    stalls: int

    @property
    def low(self) -> float:
        """Return the saving that is left if both go against the arm."""
        return self.saved - SAVED_ERRORS * self.error - self.unseen

    @property
    def high(self) -> float:
        """Return the largest saving that the error allows."""
        return self.saved + SAVED_ERRORS * self.error

    @property
    def is_lost(self) -> bool:
        """Return True if the mean speaks against the arm; of rare stalls, few are enough to be taken seriously."""
        return self.high < 0 or (self.stalls >= _STALLS and self.saved + self.error < 0)


def estimate_unseen(steps: int) -> float:
    """Return the share by which stalls that did not show in so many steps may lengthen the mean step."""
    return min(_UNSEEN / max(steps, 1), 1.0) * _UNSEEN_EXCESS


def compare_means(control: Tally, arm: Tally, regular: set[int], *, forgiven: int = 0) -> MeanGain:
    """Compare the mean steps of two arms; for the arguments see `Tally.summarize`."""
    own, reference = (tally.summarize(regular, forgiven=forgiven) for tally in (arm, control))
    if not own.steps or not reference.steps:
        return MeanGain(0.0, math.inf, math.inf, own.steps, own.stalls)
    return MeanGain(
        saved=reference.mean - own.mean,
        error=math.sqrt(own.variance + reference.variance),
        unseen=estimate_unseen(own.steps),
        steps=own.steps,
        stalls=own.stalls,
    )


class ArmResult(NamedTuple):
    """One arm against the control.

    Attributes:
        speedup: mean step of the control over that of the arm.
        low, high: ends of the interval; 0 and infinity where it has none.
        blocks: of the arm.
        dropped: why it was dropped; empty = it was not.
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
        max_cost: share of the job's time that arms may have cost when one is tried: of the time so far, or of
            `ADVANCE_STEPS` if that is more.
        coin: source of the draws.
        blocks: all so far, but for those that guard an arm in force.
        elapsed_us: time of the job so far, µs, with the steps before the first block.
        dropped: arm -> why.
    """

    arms: int
    min_effect: float = 0.02
    max_cost: float = 0.005
    coin: random.Random = field(default_factory=random.SystemRandom)
    blocks: list[Block] = field(default_factory=list)
    elapsed_us: float = 0.0
    dropped: dict[int, str] = field(default_factory=dict)
    _last: Block | None = None
    _level: float | None = None
    _guarded: int = 0
    _was_long: bool = False
    _tallies: list[Tally] = field(init=False, repr=False)
    _long_bets: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _pauses: set[int] = field(default_factory=set, repr=False)
    _regular: set[int] = field(default_factory=set, repr=False)
    _known_gains: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _capitals: dict[int, float] = field(default_factory=dict, repr=False)
    _left_behind: dict[int, list[float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Count no steps yet."""
        self._tallies = [Tally() for _ in range(self.arms + 1)]

    @property
    def left(self) -> list[int]:
        """Return the arms that are not dropped."""
        return [arm for arm in range(1, self.arms + 1) if arm not in self.dropped]

    @property
    def leading(self) -> int | None:
        """Return the arm whose bets are won, which wins by the mean too and looks best; None = there is none yet."""
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
        """Return the arm that leads, and whose stalls cannot cost what it gains; None = there is none yet."""
        leading = self.leading
        if leading is None or self.mean_gain(leading).low <= max(self._estimate_carry_over(leading)[0], 0.0):
            return None
        return leading

    @property
    def has_ended(self) -> bool:
        """Return True if no more blocks are needed; an arm in force is guarded to the end of the job."""
        return not self.left or (self._is_over and self.leading is None)

    @property
    def _is_over(self) -> bool:
        return sum(bool(block.draw.drawn_from) or block.draw.closes_pair for block in self.blocks) >= MAX_BLOCKS

    @property
    def level_us(self) -> float:
        """Return the time of a usual step of the control now, µs; 0 before its first block."""
        return 0.0 if self._level is None else math.exp(self._level)

    def next(self) -> Draw:
        """Choose the arm of the next block; the first one shows the level of the control."""
        last, left = self.blocks[-1].draw if self.blocks else Draw(CONTROL), self.left
        if len(left) == 1 and last.opens_pair:
            return Draw(left[0] if last.arm == CONTROL else CONTROL, closes_pair=True)
        leading = self.leading
        if leading is not None:
            # Two of the control: the first shows what the arm leaves behind, the second does not.
            return Draw(CONTROL, guards=1) if self._guarded else Draw(leading, guards=2 * GUARD_BLOCKS)
        if not self.blocks or not left or self.cost_us() > self.max_cost * self._paying_us():
            return Draw(CONTROL)
        tried = {block.arm for block in self.blocks}
        if untried := [arm for arm in left if arm not in tried]:
            return Draw(untried[0])
        choices = (CONTROL, max(left, key=self.estimate))
        return Draw(self.coin.choice(choices), drawn_from=choices, opens_pair=self._is_paired())

    def _is_paired(self) -> bool:
        """Check that the only arm left is compared in pairs: decided before the coin, or its bets would not be fair."""
        left, deviation = self.left, self._deviation()
        return len(left) == 1 and deviation is not None and self.estimate(left[0]) < _PAIRED_BELOW * deviation

    def _paying_us(self) -> float:
        """Return the time of the job that pays for the arms, µs."""
        return max(self.elapsed_us, ADVANCE_STEPS * self._control_us())

    def observe(self, block: Block) -> None:
        """Count a block, and drop what it shows to be slow or hopeless."""
        self.elapsed_us = block.elapsed_us
        self._count(block)
        if block.draw.guards:
            self._guarded = 2 if block.arm != CONTROL else self._guarded - 1
        else:
            if block.draw == Draw(CONTROL) and self.blocks and self.blocks[-1].draw == Draw(CONTROL):
                self.blocks.pop()  # while no arm may be tried, only the newest level of the control is of use
            self.blocks.append(block)
            self._guarded = 0
            self._known_gains.clear()
            self._capitals.clear()
            if block.arm != CONTROL and self._is_slow_to_start(block.arm):
                self.dropped.setdefault(block.arm, f"its first step takes over {LONG_STEP:g} times the median")
        left = self.left
        deviation = self._deviation()
        gains = {arm: self._gains(arm) for arm in left}
        counted = [arm for arm in left if gains[arm]]
        best = max(counted, key=self.estimate) if counted else CONTROL
        for arm in counted:
            blocks, gain = len(gains[arm]), self.estimate(arm)
            mean, (carry_over, carry_error) = self.mean_gain(arm), self._estimate_carry_over(arm)
            if self._is_slower(arm):
                self.dropped[arm] = f"steps take {math.expm1(-gain) * 100:.1f} % longer"
            elif blocks >= _BEATEN_BLOCKS and mean.is_lost:
                self.dropped[arm] = f"its mean step takes {-mean.saved * 100:.1f} % longer"
            elif sum(self._long_bets.get(arm, ())) >= _LONG_CAPITAL:
                self.dropped[arm] = "more of its steps are long"
            elif carry_over > max(_CARRY_ERRORS * carry_error, gain - math.log1p(self.min_effect)):
                self.dropped[arm] = "the steps after it take longer"
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

    def _count(self, block: Block) -> None:
        """Count the steps of a block in the tally of its arm, and follow the level of the control."""
        level = self._level if self._level is not None else block.log_time
        level_us, before = math.exp(level), self._last
        times_us = (*block.uncounted_us, *block.step_us)
        first = block.step - len(times_us) + 1
        pauses = {first + index for index, time_us in enumerate(times_us) if time_us > PAUSE * level_us}
        if pauses:
            self._pauses |= pauses
            self._regular = find_regular(self._pauses)
        tally = self._tallies[block.arm]
        for step, time_us in enumerate(block.step_us, start=first + len(block.uncounted_us)):
            tally.add(step, time_us / level_us)
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
                self._left_behind.setdefault(before.arm, []).append(block.log_time - level)
            self._level = level + (_LEVEL_GAIN if self._level is not None else 1.0) * (block.log_time - level)
        self._last = block

    def _bet_on_long(self, arm: int, *, won: bool) -> None:
        """Bet that a block with a long step is the arm's; one each time, however many it has."""
        capitals = self._long_bets.get(arm, WEIGHT)
        self._long_bets[arm] = [
            capital * (1 + (stake if won else -stake))
            for capital, stake in zip(capitals, STAKE)  # noqa: B905  # Python 3.8
        ]

    def _estimate_carry_over(self, arm: int) -> tuple[float, float]:
        """Return by how much the control's log times after an arm exceed those after itself, and the standard error."""
        after, others = self._left_behind.get(arm, []), self._left_behind.get(CONTROL, [])
        if min(len(after), len(others)) < _CARRY_BLOCKS:
            return 0.0, math.inf
        error = math.sqrt(statistics.variance(after) / len(after) + statistics.variance(others) / len(others))
        return statistics.fmean(after) - statistics.fmean(others), error

    def mean_gain(self, arm: int, *, forgive: bool = False) -> MeanGain:
        """Return what an arm saves in the mean step.

        Args:
            forgive: one pause of the arm may belong to the job, if the job has had others.
        """
        tally = self._tallies[arm]
        forgiven = int(forgive and not self._pauses <= self._regular | tally.pauses.keys())
        return compare_means(self._tallies[CONTROL], tally, self._regular, forgiven=forgiven)

    def estimate(self, arm: int) -> float:
        """Return the log speed-up of an arm; minus infinity before it can be compared."""
        gains = self._gains(arm)
        return statistics.median(gains) if gains else -math.inf

    def result(self, arm: int) -> ArmResult:
        """Return the numbers of an arm; the interval holds both the usual steps, at any time, and the mean."""
        blocks, dropped = sum(block.arm == arm for block in self.blocks), self.dropped.get(arm, "")
        if not self._gains(arm):
            return ArmResult(1.0, 0.0, math.inf, blocks, dropped)
        refuted = math.log(2 * self.arms / INTERVAL_ERROR)
        estimate, mean = self.estimate(arm), self.mean_gain(arm)
        low = math.exp(_find_end(self.blocks, arm, estimate, refuted, sign=+1))
        high_log = _find_end(self.blocks, arm, estimate, refuted, sign=-1)
        high = math.exp(high_log) if math.isfinite(high_log) else math.inf
        speedup = 1 / (1 - mean.saved)
        ends = [1 / (1 - saved) for saved in (mean.saved - SAVED_ERRORS * mean.error, mean.high) if saved < 1]
        return ArmResult(speedup, min(low, speedup, *ends), max(high, speedup, *ends), blocks, dropped)

    def cost_us(self) -> float:
        """Return the time that arms have cost so far, µs: slower blocks and switches; faster blocks pay for nothing."""
        level_us, cost_us = self._control_us(), 0.0
        first_uses_us: list[float] = []
        for arm in range(1, self.arms + 1):
            own = [block for block in self.blocks if block.arm == arm]
            saved = self.mean_gain(arm, forgive=True).saved
            cost_us += max(0.0, -saved * level_us) * sum(block.steps for block in own)
            if self._is_slow_to_start(arm):
                cost_us += sum(max(0.0, block.first_us - level_us) for block in own)
            else:
                first_uses_us += [block.first_us for block in own[:1]]
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
        """Check that bets are won, the gain reaches the minimum effect, and the mean does not speak against it."""
        if self.estimate(arm) < math.log1p(self.min_effect):
            return False
        if arm not in self._capitals:
            self._capitals[arm] = log_capital(self.blocks, arm)
        if self._capitals[arm] < -math.log(self._error(arm)):
            return False
        return self.mean_gain(arm, forgive=True).saved > 0

    def _error(self, arm: int) -> float:
        """Return the probability with which an arm may be proven falsely."""
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
                gains += [control - own for own in waiting]
                before, waiting = block.log_time, []
        if before is not None:
            gains += [before - own for own in waiting]
        self._known_gains[arm] = gains
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

    def _control_us(self) -> float:
        """Return the median step of the control, µs; 0 before its first block."""
        times_us = [time_us for block in self.blocks if block.arm == CONTROL for time_us in block.step_us]
        return statistics.median(times_us) if times_us else 0.0

    def _is_slower(self, arm: int) -> bool:
        """Check that an arm is slower by more than the noise of steps explains: even one block shows a great loss."""
        residuals = [
            math.log(time_us) - block.log_time
            for block in self.blocks
            if block.arm == CONTROL
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
        level_us = self._control_us()
        first_us = [block.first_us for block in self.blocks if block.arm == arm]
        long = sum(time_us >= LONG_STEP * level_us for time_us in first_us) if level_us else 0
        return long >= max(_LONG_STARTS, len(first_us) / 2)


def find_regular(steps: set[int]) -> set[int]:
    """Return the steps that are three at equal distances: pauses of the job, not stalls of an arm."""
    ordered = sorted(steps)[-_PAUSES:]
    regular: set[int] = set()
    for index, first in enumerate(ordered):
        for second in ordered[index + 1 :]:
            if second - first > 1 and 2 * second - first in steps:
                regular |= {first, second, 2 * second - first}
    return regular


def log_capital(blocks: Sequence[Block], arm: int, gain: float = 0.0, *, sign: int = 1) -> float:
    """Return the log of the capital won by bets on the coins that an arm gains more than `gain`.

    Args:
        blocks: in order.
        arm: which is judged.
        gain: log speed-up, the null hypothesis; without one, that the arm changes nothing.
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


def _find_ratios(blocks: Sequence[Block], arm: int, gain: float) -> list[float]:
    """Return for each coin how much its block speaks for the arm, by forecasts from earlier blocks alone.

    Times of the arm are corrected by `gain`: if that is its gain, coins say nothing about what is left.
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


def _find_end(blocks: Sequence[Block], arm: int, around: float, refuted: float, *, sign: int) -> float:
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

"""A roll-out: revisions for shares of the jobs, and a comparison of all step times."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import MIN_EFFECT, Decision, Recommendation, Verdict
from ncclt.core.revision import Actor
from ncclt.errors import ConflictError, InputError, UsageError

MOST_JOB_NAME = 300
"""Characters of a job's name at most."""

_LONGEST_STEP_US = 86400e6
_MOST_STEPS = 10**9


class Variant(StrEnum):
    """Variant of a roll-out that a job gets: one of the new revisions, the active one, or none."""

    CANDIDATE = "candidate"
    ACTIVE = "active"
    DEFAULT = "default"


class Reason(StrEnum):
    """Reason of a variant, in the terms of OpenFeature's remote evaluation protocol."""

    TARGETING_MATCH = "TARGETING_MATCH"
    DEFAULT = "DEFAULT"
    STALE = "STALE"
    DISABLED = "DISABLED"


class ArmState(StrEnum):
    """State of an arm of a roll-out.

    A paused arm gets no starts until reports or the budget allow more. `lost` = slower beyond the limit, or it hangs
    jobs; `futile` = no gain of the minimum effect; `ended` = another arm won, or a person ended it.
    """

    RUNNING = "running"
    PAUSED = "paused"
    LOST = "lost"
    FUTILE = "futile"
    WON = "won"
    ENDED = "ended"


class RollOutState(StrEnum):
    """State of a roll-out.

    `paused` = by a person: jobs that start get the control until it is resumed. `won` = it awaits approval, and its
    winner keeps its share until then; `promoted` = all jobs get the winner; `lost` = every arm is lost.
    """

    RUNNING = "running"
    PAUSED = "paused"
    WON = "won"
    PROMOTED = "promoted"
    LOST = "lost"
    ENDED = "ended"


OPEN_STATES = (RollOutState.RUNNING, RollOutState.PAUSED, RollOutState.WON)
"""States of a roll-out that has not ended."""

MOST_ARMS = 4
"""Max arms of a roll-out."""

FIRST_STARTS = 2
"""Initial limit of an arm's starts without a report: the cost of an arm that hangs every job."""

MAX_COST = 0.005
"""Default of the max cost of a roll-out's arms, as a share of its GPU hours."""

SAME_START_S = 600.0
"""Requests for a job within this time are of one start: its last node may need minutes. They get one answer and one
ticket, despite new revisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutArm(Documented):
    """Revision for a share of the job starts.

    Attributes:
        recommendation: id of the revision.
        share: of the starts, while it runs.
        state: state of the arm.
        reason: one sentence on its state; empty while nothing is known.
        most_unreported: starts without a report at which it pauses; the guard raises it with the reports.
    """

    recommendation: str
    share: float
    state: ArmState = ArmState.RUNNING
    reason: str = ""
    most_unreported: int = FIRST_STARTS

    @property
    def is_open(self) -> bool:
        """Return True if it can still win."""
        return self.state in (ArmState.RUNNING, ArmState.PAUSED)

    @property
    def is_served(self) -> bool:
        """Return True if jobs get it now."""
        return self.state in (ArmState.RUNNING, ArmState.WON)

    def next(self, wanted: RollOutArm, unreported: int) -> RollOutArm:
        """Return the arm after a decision, as of `RollOut.settle`, given its starts without a report."""
        is_retraction = self.state is ArmState.WON and wanted.state in (ArmState.LOST, ArmState.ENDED)
        after = wanted if self.is_open or is_retraction else self
        if after.state is ArmState.RUNNING and unreported >= after.most_unreported:
            reason = f"{count_noun(unreported, 'start')} without a report yet"
            return replace(after, state=ArmState.PAUSED, reason=reason)
        return after


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedGain(Documented):
    """Speed-up of an arm over the control, by pairs of jobs.

    Attributes:
        estimate: ratio of step times, control over arm; 1.03 = 3 % faster.
        interval: 95 %, for all arms of the roll-out together and however often it is looked at; from 0 and without end
            where the pairs are too few.
        pairs: of jobs.
    """

    SHAPE: ClassVar = Shape(unbounded=("interval",))

    estimate: float
    interval: tuple[float, float]
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOut(Documented):
    """One to four revisions for shares of the job starts, and the state of their comparison.

    An arm is an interval of `draw(seed, job)`. Where it is not served its interval gets the control, so a change of
    one arm moves no job of another one.

    Attributes:
        id: identifies it.
        cluster, model: names of cluster and workload.
        arms: the revisions, in the order of their intervals from 0 on.
        control: id of the active revision that the other jobs keep; empty = they keep their own settings.
        gpus: of each job.
        seed: random text that the intervals are drawn with, so that no job can choose.
        loss_limit: loss of step time beyond which an arm is dropped, as a share.
        min_effect: smallest gain of step time of interest; an arm that cannot have it is dropped.
        max_cost: share of the GPU hours of all its starts that the arms may cost.
        state: state of the roll-out.
        reason: one sentence on its end, its win or its pause; empty while it runs.
        gain: of the winner, with its interval; None = there is none.
        created, ended: ISO times; `ended` is empty while a share of the jobs gets an arm.

    Raises:
        UsageError: no or too many arms, one twice, or a number out of range.
    """

    SHAPE: ClassVar = Shape(schema=1, private=("seed",))

    id: str
    cluster: str
    model: str
    arms: tuple[RollOutArm, ...]
    control: str
    gpus: int
    seed: str
    loss_limit: float
    min_effect: float = MIN_EFFECT
    max_cost: float = MAX_COST
    state: RollOutState = RollOutState.RUNNING
    reason: str = ""
    gain: PairedGain | None = None
    created: str = ""
    ended: str = ""

    def __post_init__(self) -> None:
        ids = {arm.recommendation for arm in self.arms}
        if not 1 <= len(self.arms) <= MOST_ARMS or len(ids) < len(self.arms):
            raise UsageError(f"a roll-out has 1 to {MOST_ARMS} different revisions, not {len(self.arms)}")
        if not 0 < sum(arm.share for arm in self.arms) <= 1 + 1e-9:
            raise UsageError("the shares of a roll-out's arms must be above 0 and add up to at most 100 % of the jobs")
        if not 0 < self.max_cost <= 1:
            raise UsageError(f"the cost of a roll-out is a share above 0 and at most 1, not {self.max_cost:g}")

    def shown_state(self, arm: RollOutArm) -> ArmState:
        """Return the state of an arm, of which none runs while the roll-out is paused."""
        is_held = self.state is RollOutState.PAUSED and arm.state is ArmState.RUNNING
        return ArmState.PAUSED if is_held else arm.state

    def find_arm(self, job: str) -> int | None:
        """Return the number of the arm that a job draws; None = the control.

        Args:
            job: the name of the job, equal in all of its processes; empty = not known, which is in no interval.
        """
        if not job:
            return None
        drawn, low = draw(self.seed, job), 0.0
        for number, arm in enumerate(self.arms):
            low += arm.share
            if drawn < low:
                return number
        return None

    def start(self, job: str, *, issued_s: float) -> JobStart:
        """Return the start of a job now: with its arm where that is served, else with the control.

        Args:
            issued_s: Unix time.
        """
        number = self.find_arm(job)
        is_served = number is not None and number in self.running
        recommendation = self.arms[number].recommendation if is_served and number is not None else self.control
        return JobStart(
            rollout=self.id,
            job=job,
            recommendation=recommendation,
            issued_s=issued_s,
            running=self.running,
        )

    def settle(
        self,
        arms: Iterable[RollOutArm],
        unreported: Mapping[str, int],
        *,
        gain: PairedGain | None = None,
        now: str,
    ) -> RollOut:
        """Return the open roll-out after a decision about arms.

        An arm that was decided keeps its state, but a won one may still be lost or ended. One that runs pauses where it
        has too many starts without a report. The first one that wins ends the others; without an arm that can win the
        roll-out ends. While it is paused, arms can only be lost or ended.

        Args:
            arms: in their new states; those that are left out stay.
            unreported: starts without a report of each arm.
            now: ISO time.
        """
        is_paused, endings = self.state is RollOutState.PAUSED, (ArmState.LOST, ArmState.ENDED)
        wanted = {arm.recommendation: arm for arm in arms if not is_paused or arm.state in endings}
        after = [arm.next(wanted.get(arm.recommendation, arm), unreported[arm.recommendation]) for arm in self.arms]
        winner = next((arm for arm in after if arm.state is ArmState.WON), None)
        if winner is not None:
            reason = f"{winner.recommendation} won"
            after = [
                replace(arm, state=ArmState.ENDED, reason=reason)
                if arm is not winner and (arm.is_open or arm.is_served)
                else arm
                for arm in after
            ]
        changed = replace(self, arms=tuple(after))
        if winner is not None and not self.winner:
            return replace(changed, state=RollOutState.WON, reason=winner.reason, gain=gain)
        if winner is None and not any(arm.is_open for arm in after):
            is_lost = all(arm.state is ArmState.LOST for arm in after)
            reasons = [arm.reason if len(after) == 1 else f"{arm.recommendation}: {arm.reason}" for arm in after]
            state = RollOutState.LOST if is_lost else RollOutState.ENDED
            return replace(changed, state=state, reason="; ".join(reasons), gain=None, ended=now)
        return changed

    def pause(self, by: Actor) -> RollOut:
        """Return the roll-out, paused: jobs that start get the control.

        Raises:
            ConflictError: it is already paused, or has ended.
        """
        if not self.is_open or self.state is RollOutState.PAUSED:
            raise ConflictError(f"the roll-out {self.id} is {self.state.value}", hint="there is nothing to pause")
        return replace(self, state=RollOutState.PAUSED, reason=f"paused by {by.who}{f': {by.why}' if by.why else ''}")

    def resume(self) -> RollOut:
        """Return the roll-out in its state before the pause.

        Raises:
            ConflictError: it is not paused.
        """
        if self.state is not RollOutState.PAUSED:
            raise ConflictError(f"the roll-out {self.id} is {self.state.value}", hint="there is nothing to resume")
        won = next((arm for arm in self.arms if arm.state is ArmState.WON), None)
        return replace(self, state=RollOutState.WON if won else RollOutState.RUNNING, reason=won.reason if won else "")

    @property
    def running(self) -> tuple[int, ...]:
        """Return the numbers of the arms that are served now."""
        is_paused = self.state is RollOutState.PAUSED
        return tuple(number for number, arm in enumerate(self.arms) if arm.is_served and not is_paused)

    def chance(self, number: int, running: Iterable[int]) -> float:
        """Return the probability of an arm among the starts that get it or the control.

        Args:
            running: of the arms that were served then, this one included.
        """
        share = self.arms[number].share
        control = 1 - sum(self.arms[served].share for served in running)
        return share / (share + max(control, 0.0))

    @property
    def percent(self) -> float:
        """Return the share of the starts with a served arm, in percent."""
        return round(100 * sum(self.arms[number].share for number in self.running), 3)

    def percent_of(self, recommendation: str) -> float:
        """Return the share of the starts that get a revision now, in percent."""
        served = (self.arms[number] for number in self.running)
        return round(100 * sum(arm.share for arm in served if arm.recommendation == recommendation), 3)

    @property
    def winner(self) -> str:
        """Return the id of the winning revision; empty = none."""
        return next((arm.recommendation for arm in self.arms if arm.state is ArmState.WON), "")

    @property
    def is_open(self) -> bool:
        """Return True if it has not ended."""
        return self.state in OPEN_STATES


def prove_by_jobs(
    untried: Recommendation, gain: PairedGain, *, min_effect: float, default_us: float, policy_us: float
) -> Recommendation:
    """Return a revision without evidence as the winner of its roll-out, with the step times of jobs as evidence.

    Args:
        untried: revision without evidence.
        default_us, policy_us: median step time of the control's jobs, and of the revision's jobs, µs.
    """
    low, high = gain.interval
    verdict = Verdict(
        decision=Decision.TUNED,
        reason=f"{gain.estimate:.2f}x faster steps (95 % CI {low:.2f} to {high:.2f}) over "
        f"{count_noun(gain.pairs, 'pair')} of job starts",
        speedup=gain.estimate,
        interval=gain.interval,
        blocks=max(gain.pairs // 2, 1),
        default_us=default_us,
        policy_us=policy_us,
        min_effect=min_effect,
    )
    return untried.with_verdict(verdict)


RolledOut = tuple[RollOut, tuple[Recommendation, ...]]
"""A roll-out with the revisions of its arms, in their order."""


def group_arms(pairs: Iterable[tuple[RollOut, Recommendation]]) -> tuple[RolledOut, ...]:
    """Return roll-outs with the revisions of their arms, from one pair for each arm."""
    revisions: dict[RollOut, dict[str, Recommendation]] = {}
    for rollout, revision in pairs:
        revisions.setdefault(rollout, {})[revision.id] = revision
    return tuple(
        (rollout, tuple(arms[arm.recommendation] for arm in rollout.arms)) for rollout, arms in revisions.items()
    )


def share_equally(arms: int) -> int:
    """Return the percentage of jobs with an arm if the control gets as many jobs as each arm."""
    return 100 * arms // (arms + 1)


@lru_cache(maxsize=1 << 14)
def draw(seed: str, job: str) -> float:
    """Hash a seed and a job's name to a number in [0, 1), uniform over names."""
    digest = hashlib.sha256(f"{seed}\0{job}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """Start of a job in a roll-out.

    Attributes:
        rollout: id of the roll-out.
        job: name of the job.
        recommendation: id of the revision that the job was given; empty = none.
        issued_s: Unix time of its ticket.
        running: numbers of the arms that were served then, which the chance of getting each one follows from.
    """

    rollout: str
    job: str
    recommendation: str
    issued_s: float
    running: tuple[int, ...] = ()


def find_same_start(start: JobStart | None, now_s: float) -> JobStart | None:
    """Return the noted start of a name if a request at a Unix time is of it; None = of none, or of a later start.

    A second start of a name never gets the arm of the first one.
    """
    return start if start is not None and abs(now_s - start.issued_s) < SAME_START_S else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime(Documented):
    """Step time of one job in a roll-out.

    Attributes:
        rollout: id of the roll-out.
        job: name of the job.
        recommendation: id of the job's revision; empty = none.
        step_us: mean time of its measured steps on the slowest rank, µs.
        steps: number of measured steps.
        waited_s: seconds from the job's start to this report.
        who, address: of the reporter.
        created: ISO time at which it was stored.

    Raises:
        InputError: a name or a number that no job has.
    """

    SHAPE: ClassVar = Shape(name="a step time", hint="see docs/operator/rollout.md", schema=1)

    rollout: str
    job: str
    recommendation: str
    step_us: float
    steps: int
    waited_s: float = 0.0
    who: str = ""
    address: str = ""
    created: str = ""

    def __post_init__(self) -> None:
        if not 0 < len(self.job) <= MOST_JOB_NAME or not self.job.isprintable() or not self.job.strip():
            raise InputError(f"a job's name has 1 to {MOST_JOB_NAME} printable characters", hint=self.SHAPE.hint)
        if not (math.isfinite(self.step_us) and 0 < self.step_us <= _LONGEST_STEP_US):
            raise InputError(
                f"a step takes above 0 µs and at most a day, not {self.step_us:g} µs", hint=self.SHAPE.hint
            )
        if not 1 <= self.steps <= _MOST_STEPS:
            raise InputError(f"a step time is that of 1 step at least, not {self.steps}", hint=self.SHAPE.hint)

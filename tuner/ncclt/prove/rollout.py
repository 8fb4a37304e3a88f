"""The guard of a roll-out: started jobs and their step times, compared at any time, and the consequences.

A job that got an arm is paired with one that got the control, and bets on the log ratios of their step times decide
(`prove.confidence`): the error rates hold however often they are looked at, for noise of any tails, and for all arms
together, since each one has its part of them. Jobs are paired by their order of arrival alone. A coin that its name and
the roll-out's seed toss says of each job whether its partner is a later or an earlier one, and the last free one is
taken, as brackets are matched. That looks the same from both ends of time, so no drift of the cluster favours a side.
An arm meets only the controls that started while it was served.

A job that hangs reports no step time, so started jobs count too. Two more bets, at the same level and as valid at any
time, are made on those that started long enough ago to have reported: one on the share of the arm among the jobs
without a report, each with the chance that it had at its start, and one on pairs of starts, against arms that report
less often than the control.
"""

from __future__ import annotations

import math
import statistics
import time as clocks
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ncclt.core.documents import Documented
from ncclt.core.plural import count_noun
from ncclt.core.revision import Actor
from ncclt.core.rollout import (
    FIRST_STARTS,
    ArmState,
    JobStart,
    JobTime,
    PairedGain,
    RollOut,
    RollOutArm,
    RollOutState,
    draw,
)
from ncclt.core.ticket import TICKET_LIFE_S, read_ticket
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.errors import ConflictError
from ncclt.nccl.numerics import SameBits
from ncclt.prove.confidence import estimate_centre, estimate_interval, log_capital
from ncclt.prove.experiment import SAVED_ERRORS, estimate_unseen
from ncclt.prove.levels import INTERVAL_ERROR
from ncclt.prove.verdict import format_change
from ncclt.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

FALSE_ROLL_BACK = 0.01
"""Max probability of each wrong end of an arm, over any number of jobs and all arms of a roll-out: lost although it is
within the limit, lost although it hangs no job, futile although it has the minimum effect."""

FALSE_WIN = 0.01
"""Max probability, likewise, that an arm wins without a gain, or whose jobs report less often by `MISSING_MARGIN`."""

MISSING_MARGIN = 0.05
"""Max share of missing reports of a winner's jobs against other jobs. At 0, no number of jobs could prove a win."""

GUARD = "guard"
"""Actor of the automatic end of a roll-out, in the history."""

_GRACE_FACTOR, _GRACE_QUANTILE = 2.0, 0.95
_LEAST_GRACE_S, _LEAST_REPORTS = 60.0, 8

_HANG_ODDS = (1.5, 3.0, 10.0, 100.0)
"""Alternatives of the bet on missing jobs: how much likelier a job with the arm is to be missing than another one."""

_RETURN_STAKES = (0.1, 0.3, 0.95)
"""Of the bet on reports: the last one decides with the fewest jobs if all report, the first ones if many do not."""

_EXCESS_ERRORS = 2.0
"""Standard errors of the expected number by which missing jobs must exceed it to count as a cost of the arm."""

_Job = TypeVar("_Job", JobStart, JobTime)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmVerdict(Documented):
    """Verdict on one arm of a roll-out by the jobs so far.

    Attributes:
        recommendation: id of the revision.
        share: of the starts, while it runs.
        state: conclusion from the jobs.
        reason: one sentence, with numbers.
        starts, reports: of jobs that got it.
        missing: of its starts, those long ago without a report.
        most_unreported: starts without a report at which it pauses.
        gain: of its pairs; None = there is none yet.
        cost_gpu_h: estimated cost so far, GPU hours.
    """

    recommendation: str
    share: float
    state: ArmState
    reason: str
    starts: int
    reports: int
    missing: int
    most_unreported: int
    gain: PairedGain | None
    cost_gpu_h: float

    def to_arm(self) -> RollOutArm:
        """Return the arm in this state."""
        return RollOutArm(
            recommendation=self.recommendation,
            share=self.share,
            state=self.state,
            reason=self.reason,
            most_unreported=self.most_unreported,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutVerdict(Documented):
    """Verdict on a roll-out by the jobs so far.

    Attributes:
        state: `won`, `lost` or `ended` where that follows, else `running`.
        reason: one sentence, with numbers.
        arms: in their order.
        controls: reports of jobs without an arm.
        missing_controls: of their starts, those long ago without a report.
        gpu_h: GPU hours of all starts so far.
        cost_gpu_h: of them, the estimated cost of the arms.
        budget_gpu_h: what they may cost by now.
    """

    state: RollOutState
    reason: str
    arms: tuple[ArmVerdict, ...]
    controls: int
    missing_controls: int
    gpu_h: float
    cost_gpu_h: float
    budget_gpu_h: float


def judge_roll_out(
    rollout: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart], *, now_s: float
) -> RollOutVerdict:
    """Decide from its jobs which arms of a roll-out are lost, futile, won or paused, and which continue.

    Lost: at the level `FALSE_ROLL_BACK`, steps take longer than in the other jobs by more than `loss_limit`, or more
    of its jobs are missing. Futile: at the same level, its gain is below `min_effect`. Won: at the level `FALSE_WIN`,
    steps are faster, and its jobs report as often as others, but for `MISSING_MARGIN`. The levels are divided by the
    number of arms. Paused: its starts without a report are as many as its reports allow, or its cost exceeds its part
    of the budget. Ended: its starts can no longer report.

    Args:
        rollout: open or ended.
        times: in their order of arrival, one per job.
        starts: in their order, one per job.
        now_s: Unix time.
    """
    jobs = _Jobs(rollout, times, starts, now_s=now_s)
    arms = [_Arm(jobs, number) for number in range(len(rollout.arms))]
    budget = rollout.max_cost * jobs.hours
    spent = sum(arm.cost for arm in arms if not arm.arm.is_open)
    each = max(budget - spent, 0.0) / max(sum(arm.arm.is_open for arm in arms), 1)
    verdicts = [arm.judge(each) for arm in arms]
    winner = next((arm for arm in verdicts if arm.state is ArmState.WON), None)
    is_over = not any(arm.state in (ArmState.RUNNING, ArmState.PAUSED, ArmState.WON) for arm in verdicts)
    state = RollOutState.RUNNING
    if winner is not None:
        state = RollOutState.WON
    elif is_over:
        state = RollOutState.LOST if all(arm.state is ArmState.LOST for arm in verdicts) else RollOutState.ENDED
    reasons = [arm.reason if len(verdicts) == 1 else f"{arm.recommendation}: {arm.reason}" for arm in verdicts]
    hours = rollout.gpus / 3600
    return RollOutVerdict(
        state=state,
        reason=winner.reason if winner is not None else "; ".join(reasons),
        arms=tuple(verdicts),
        controls=sum(time.recommendation == rollout.control for time in times),
        missing_controls=jobs.count_missing(rollout.control),
        gpu_h=jobs.hours * hours,
        cost_gpu_h=sum(arm.cost for arm in arms) * hours,
        budget_gpu_h=budget * hours,
    )


class _Jobs:
    """Starts and reports of a roll-out, and what is the same for all arms.

    Attributes:
        due: starts long enough ago to have reported.
        hours: of all starts so far, in seconds: those that reported until then, those that are not due until now.
    """

    def __init__(self, rollout: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart], *, now_s: float) -> None:
        self.rollout, self.times, self.starts, self.now_s = rollout, times, starts, now_s
        self.reported = {time.job: time for time in times}
        self.running = {start.job: start.running for start in starts}
        grace_s = find_grace(times)
        self.due = [start for start in starts if now_s - start.issued_s >= grace_s]
        self._due_jobs = {start.job for start in self.due}
        self.hours = sum(map(self.spent_s, starts))

    def spent_s(self, start: JobStart) -> float:
        """Return the known run time of a job, in seconds; 0 if it is missing."""
        if (time := self.reported.get(start.job)) is not None:
            return time.waited_s
        return 0.0 if start.job in self._due_jobs else max(self.now_s - start.issued_s, 0.0)

    def count_missing(self, recommendation: str) -> int:
        """Count the missing jobs with a revision."""
        return sum(start.recommendation == recommendation and start.job not in self.reported for start in self.due)

    def count_due(self, recommendation: str) -> int:
        """Count the jobs with a revision and an overdue report."""
        return sum(start.recommendation == recommendation for start in self.due)

    def compared(self, jobs: Sequence[_Job], number: int) -> list[_Job]:
        """Return the jobs with an arm, and those with the control that could have got the arm when they started.

        While an arm is paused its interval gets the control too: such jobs would say when it was paused, not what it
        does.
        """
        compared = (self.rollout.arms[number].recommendation, self.rollout.control)
        return [job for job in jobs if job.recommendation in compared and number in self.running.get(job.job, ())]


class _Arm:
    """One arm of a roll-out, compared with the control."""

    def __init__(self, jobs: _Jobs, number: int) -> None:
        self.jobs, self.number = jobs, number
        rollout = jobs.rollout
        self.arm = rollout.arms[number]
        id = self.arm.recommendation
        self.starts = [start for start in jobs.starts if start.recommendation == id]
        self.reports = sum(start.job in jobs.reported for start in self.starts)
        self.due, self.missing = jobs.count_due(id), jobs.count_missing(id)
        self.due_controls = jobs.count_due(rollout.control)
        self.missing_controls = jobs.count_missing(rollout.control)
        self.gains = paired_gains(rollout, number, jobs.compared(jobs.times, number))
        self.cost = self._estimate_cost()

    def _estimate_cost(self) -> float:
        """Return the cost of its starts, in seconds: their loss, and the missing ones beyond the control's.

        One that still runs counts with the mean time of a job at least: it will cost that though the arm pauses.
        """
        loss = max(-float(estimate_centre(np.array(self.gains))), 0.0) if self.gains else 0.0
        mean_s = statistics.fmean(time.waited_s for time in self.jobs.times) if self.jobs.times else 0.0
        excess = count_excess(self.missing, self.due, self.missing_controls, self.due_controls)
        spent_s = [
            self.jobs.spent_s(start) if start.job in self.jobs.reported else max(self.jobs.spent_s(start), mean_s)
            for start in self.starts
        ]
        return -math.expm1(-loss) * sum(spent_s) + excess * mean_s

    def judge(self, budget: float) -> ArmVerdict:
        """Return the verdict; the budget is what it may cost, in seconds."""
        arm, gains = self.arm, np.array(self.gains, dtype=np.float64)
        rollout, arms = self.jobs.rollout, len(self.jobs.rollout.arms)
        unreported = len(self.starts) - self.reports
        most_unreported = max(FIRST_STARTS, self._allow_unreported())
        gain = self._find_gain()
        refuted, won = -math.log(FALSE_ROLL_BACK / arms), -math.log(FALSE_WIN / arms)
        state, reason = ArmState.RUNNING, _describe_open(gain, self.reports)
        missing = self._describe_missing()
        has_won = len(gains) > 0 and float(log_capital(gains)) >= won
        is_faster = has_won and self._saves_time(gains)
        may_win = arm.is_open
        if len(gains) and float(log_capital(-gains, math.log1p(rollout.loss_limit))) >= refuted:
            state, reason = ArmState.LOST, _decided(f"slower by more than {rollout.loss_limit * 100:g} %", gain)
        elif self._log_hang_capital() >= refuted:
            state, reason = ArmState.LOST, f"jobs with it hang or fail: {missing}"
        elif may_win and is_faster and self._log_return_capital() >= won:
            state, reason = ArmState.WON, f"{_decided('faster', gain)}; {missing}"
        elif may_win and len(gains) and float(log_capital(-gains, -math.log1p(rollout.min_effect))) >= refuted:
            state = ArmState.FUTILE
            reason = f"no gain of {rollout.min_effect * 100:g} % or more: {_decided('about as fast', gain)}"
        elif has_won and not is_faster:
            reason = f"most jobs are faster, but slow ones may cancel the gain: {_describe_open(gain, self.reports)}"
        elif is_faster:
            reason = f"steps are faster, but its jobs may report less often than others: {missing}"
        elif self.missing or self.missing_controls:
            reason += f"; {missing}"
        if state is ArmState.RUNNING and unreported >= most_unreported:
            if self._can_report():
                state = ArmState.PAUSED
                reason = f"paused: {count_noun(unreported, 'start')} without a report yet; {reason}"
            else:
                state, reason = ArmState.ENDED, f"{count_noun(unreported, 'start')} never reported; {reason}"
        elif state is ArmState.RUNNING and self.cost > budget:
            hours = rollout.gpus / 3600
            state = ArmState.PAUSED
            reason = f"paused: cost {self.cost * hours:.3g} of {budget * hours:.3g} GPU hours so far; {reason}"
        if not arm.is_open and not (arm.state is ArmState.WON and state is ArmState.LOST):
            state, reason = arm.state, arm.reason
        return ArmVerdict(
            recommendation=arm.recommendation,
            share=arm.share,
            state=state,
            reason=reason,
            starts=len(self.starts),
            reports=self.reports,
            missing=self.missing,
            most_unreported=most_unreported,
            gain=gain,
            cost_gpu_h=self.cost * rollout.gpus / 3600,
        )

    def _saves_time(self, gains: NDArray[np.float64]) -> bool:
        """Check for a mean saving over all pairs, with enough steps to rule out stalls that would cancel it.

        A majority of jobs wins the bets, but all jobs cost time. A pair counts by its difference over its mean.
        """
        savings = 2 * np.tanh(gains / 2)
        steps = sum(time.steps for time in self.jobs.times if time.recommendation == self.arm.recommendation)
        error = float(savings.std()) / math.sqrt(len(savings))
        return float(savings.mean()) - SAVED_ERRORS * error - estimate_unseen(steps) > 0

    def _allow_unreported(self) -> int:
        """Return the number of starts that as many reports would need at the control's rate of reports."""
        reporting = max(self.due_controls - self.missing_controls, 1)
        return int(self.reports * max(self.due_controls, 1) / reporting)

    def _can_report(self) -> bool:
        """Return True if the ticket of a start without a report is still valid."""
        issued = [start.issued_s for start in self.starts if start.job not in self.jobs.reported]
        return self.jobs.now_s - max(issued) <= TICKET_LIFE_S

    def _find_gain(self) -> PairedGain | None:
        return _estimate_gain(len(self.jobs.rollout.arms), tuple(self.gains)) if self.gains else None

    def _describe_missing(self) -> str:
        return (
            f"no report from {self.missing} of {count_noun(self.due, 'job')} with it, and from {self.missing_controls} "
            f"of {self.due_controls} without it"
        )

    def _log_hang_capital(self) -> float:
        """Return the log of the capital won by betting that jobs with the arm are more than their share of the missing.

        The likelihood ratio of Bernoulli trials, averaged over `_HANG_ODDS`: a test martingale while each missing job
        had the arm with the chance that it had at its start, and a supermartingale while with less.
        """
        missing = [start for start in self.jobs.due if start.job not in self.jobs.reported]
        counts = Counter(
            (self.jobs.rollout.chance(self.number, start.running), start.recommendation != self.jobs.rollout.control)
            for start in self.jobs.compared(missing, self.number)
        )
        capitals = []
        for odds in _HANG_ODDS:
            won = 0.0
            for (share, has_arm), number in counts.items():
                if share < 1:
                    likelier = odds * share / (1 - share + odds * share)
                    won += number * math.log(likelier / share if has_arm else (1 - likelier) / (1 - share))
            capitals.append(won)
        best = max(capitals)
        return best + math.log(sum(math.exp(capital - best) for capital in capitals) / len(capitals))

    def _log_return_capital(self) -> float:
        """Return the log of the capital won by betting that jobs with the arm report nearly as often as others.

        A pair pays 1 + stake * (R - (1 - margin) * S), with R and S 1 where the job with the arm and the other one have
        reported: at most 1 on average if those with it report less often than others by `MISSING_MARGIN` or more.
        """
        least, reported = 1 - MISSING_MARGIN, self.jobs.reported
        pairs = _pairs(self.jobs.rollout, self.number, self.jobs.compared(self.jobs.due, self.number))
        returns = np.array(
            [(job.job in reported) - least * (partner.job in reported) for job, partner in pairs], dtype=np.float64
        )
        if not len(returns):
            return 0.0
        won = np.log1p(np.array(_RETURN_STAKES)[:, None] * returns).sum(axis=1)
        best = float(won.max())
        return best + math.log(float(np.exp(won - best).mean()))


def judge_stored(store: Store, rollout: RollOut) -> RollOutVerdict:
    """Judge a stored roll-out by its jobs so far."""
    return _judge(store, rollout, now_s=clocks.time())


def _judge(store: Store, rollout: RollOut, *, now_s: float) -> RollOutVerdict:
    # Reports before starts: each report has its start then.
    times = store.revisions.job_times(rollout.id)
    return judge_roll_out(rollout, times, store.revisions.job_starts(rollout.id), now_s=now_s)


def count_excess(missing: int, starts: int, missing_controls: int, controls: int) -> float:
    """Return the number of an arm's jobs without a report beyond the control's rate and chance; 0 = none.

    Args:
        missing: jobs with the arm without a report.
        starts: of jobs with the arm.
        missing_controls, controls: likewise, of jobs with the control.
    """
    expected = starts * (missing_controls + 1) / (controls + 2)
    return max(missing - expected - _EXCESS_ERRORS * math.sqrt(expected), 0.0)


def fewest_pairs(arms: int) -> int:
    """Return the minimum number of pairs of started jobs that can prove a win, if all of them report."""
    pairs = np.arange(1, 1000)[:, None]
    capital = np.logaddexp.reduce(pairs * np.log1p(np.array(_RETURN_STAKES) * MISSING_MARGIN), axis=1)
    return int(np.argmax(capital - math.log(len(_RETURN_STAKES)) >= -math.log(FALSE_WIN / arms))) + 1


def trace_gains(
    rollout: RollOut, number: int, times: Sequence[JobTime], starts: Sequence[JobStart], *, most: int
) -> list[tuple[int, PairedGain]]:
    """Return the gain of an arm after increasing numbers of reports, as the guard computed it then.

    Args:
        times, starts: as of `judge_roll_out`.
        most: max number of gains; the last one covers all reports, and each at least one pair.
    """
    compared = _Jobs(rollout, times, starts, now_s=0.0).compared(times, number)
    trace = []
    # A power of two, so that later calls have the same points, which the cache holds.
    step = 1 << max(math.ceil(len(compared) / most) - 1, 0).bit_length()
    for reports in (*range(step, len(compared), step), len(compared)):
        if gains := paired_gains(rollout, number, compared[:reports]):
            trace.append((reports, _estimate_gain(len(rollout.arms), tuple(gains))))
    return trace


def describe_cohort_bits(store: Store, rollout: RollOut) -> str:
    """Warn that jobs of a roll-out may differ in the last bits; empty where all keep those of the NCCL default."""
    for id in filter(None, (*(arm.recommendation for arm in rollout.arms), rollout.control)):
        recommendation = store.recommendations.get(id)
        forms = ((recommendation.table, False), (recommendation.variables, True))
        compared = [
            compare_numerics(recommendation, form.effective, by_variables=plain) for form, plain in forms if form
        ]
        if why := next((numerics.why for numerics in compared if numerics.same_bits is not SameBits.YES), ""):
            return f"jobs of this roll-out may differ in the last bits: {why}"
    return ""


def find_grace(times: Sequence[JobTime]) -> float:
    """Return the age at which a job without a report counts as missing, in seconds.

    Twice as long as nearly all reports took; with few of them, the life of a ticket.
    """
    if len(times) < _LEAST_REPORTS:
        return TICKET_LIFE_S
    waits_s = sorted(time.waited_s for time in times)
    slow_s = waits_s[math.ceil(_GRACE_QUANTILE * len(waits_s)) - 1]
    return min(max(_GRACE_FACTOR * slow_s, _LEAST_GRACE_S), TICKET_LIFE_S)


def paired_gains(rollout: RollOut, number: int, times: Sequence[JobTime]) -> list[float]:
    """Return the log speed-up of each job with an arm over its partner, in order.

    Each job counts once; one whose partner has not arrived yet is left out.

    Args:
        times: of jobs with the arm and of those that are compared with them, in their order of arrival.
    """
    return [math.log(partner.step_us / job.step_us) for job, partner in _pairs(rollout, number, times)]


def _pairs(rollout: RollOut, number: int, jobs: Sequence[_Job]) -> list[tuple[_Job, _Job]]:
    """Return pairs of a job with an arm and another one."""
    coin, id = f"{rollout.seed} order", rollout.arms[number].recommendation
    free: list[int] = []
    waiting: list[int] = []
    partner: dict[int, int] = {}
    for place, job in enumerate(jobs):
        has_arm = job.recommendation == id
        if draw(coin, job.job) < 0.5:
            (waiting if has_arm else free).append(place)
        elif has_arm and free:
            partner[place] = free.pop()
        elif not has_arm and waiting:
            partner[waiting.pop()] = place
    return [(jobs[place], jobs[other_place]) for place, other_place in sorted(partner.items())]


def report_job_time(store: Store, ticket: str, time: JobTime, *, now_s: float | None = None) -> RollOutVerdict:
    """Keep the step time of a job and act on all of them: arms pause, continue or are dropped, and one may win.

    Called again with the same job it changes nothing: the first step time of a job counts.

    Args:
        ticket: of the answer that the job started with.
        time: of the job and the revision that the ticket names; `waited_s` is set here.
        now_s: Unix time; None = now.

    Raises:
        InputError: no valid ticket of this job, or steps that do not fit into the time since it started.
        NotFoundError: there is no such roll-out.
        ConflictError: the job was given something else than it reports.
        StoreError: the store cannot be written.
    """
    now_s = clocks.time() if now_s is None else now_s
    rollout = store.revisions.rollout(time.rollout)
    started = read_ticket(ticket, store.ticket_secret(), now_s=now_s)
    started.require_job(time.job)
    start = JobStart(
        rollout=started.rollout,
        job=time.job,
        recommendation=started.recommendation,
        issued_s=started.issued_s,
        running=started.running,
    )
    noted = store.revisions.find_start(rollout.id, time.job) or start
    if {(record.rollout, record.recommendation) for record in (start, noted)} != {(rollout.id, time.recommendation)}:
        by_ticket, by_store, reported = (record.recommendation or "nothing" for record in (start, noted, time))
        raise ConflictError(
            f"the job started with {by_ticket} by its ticket, and with {by_store} in the roll-out {rollout.id}; it "
            f"reports {reported}",
            hint="a job that started from an older answer is no part of the comparison",
        )
    started.require_time_for(steps=time.steps, step_us=time.step_us, now_s=now_s)
    if rollout.is_open:
        store.revisions.add_job_starts([start])
        store.revisions.add_job_time(replace(time, waited_s=now_s - started.issued_s))
    verdict = _judge(store, rollout, now_s=now_s)
    if rollout.is_open:
        winner = next((arm for arm in verdict.arms if arm.state is ArmState.WON), None)
        arms = [
            replace(arm.to_arm(), reason=_sign(store, rollout, arm.reason, verdict))
            if arm.state is not before.state and not arm.to_arm().is_open
            else arm.to_arm()
            for before, arm in zip(rollout.arms, verdict.arms, strict=True)
        ]
        store.revisions.settle_arms(rollout.id, arms, Actor(who=GUARD), gain=winner.gain if winner else None)
    return verdict


def _sign(store: Store, rollout: RollOut, reason: str, verdict: RollOutVerdict) -> str:
    """Return a reason with the cost so far and the senders of the reports."""
    times = store.revisions.job_times(rollout.id)
    keys, addresses = len({report.who for report in times}), len({report.address for report in times})
    senders = f"{count_noun(keys, 'key')} and {count_noun(addresses, 'address', 'addresses')}"
    return f"{reason}; {describe_cost(verdict)}; reported by {senders}"


def describe_cost(verdict: RollOutVerdict) -> str:
    """Describe the cost of a roll-out, against its budget."""
    return f"cost {verdict.cost_gpu_h:.3g} of {verdict.budget_gpu_h:.3g} GPU hours"


@lru_cache(maxsize=512)
def _estimate_gain(arms: int, gains: tuple[float, ...]) -> PairedGain:
    interval = estimate_interval(gains, error=INTERVAL_ERROR / arms)
    return PairedGain(estimate=interval.estimate, interval=(interval.low, interval.high), pairs=len(gains))


def _describe_open(gain: PairedGain | None, reports: int) -> str:
    """Describe an undecided arm, and the open condition where its interval already excludes a loss."""
    if gain is None:
        return f"no pair of jobs to compare yet, {count_noun(reports, 'report')} from jobs with it"
    needed = f"; a win needs {100 * (1 - FALSE_WIN):g} % confidence that steps are faster"
    return f"undecided: {_describe_gain(gain)}{needed if gain.interval[0] > 1 else ''}"


def _decided(verb: str, gain: PairedGain | None) -> str:
    assert gain is not None, "only pairs decide"
    return f"steps are {verb}: {_describe_gain(gain)}"


def _describe_gain(gain: PairedGain) -> str:
    # An interval of speed-ups is one of step times upside down.
    low, high = (1 / end if end > 0 else math.inf for end in reversed(gain.interval))
    bounds = f"95 % CI {format_change(low)} to {format_change(high)}"
    change = format_change(1 / gain.estimate)
    shown = f" ({bounds})" if low > 0 and math.isfinite(high) else ""
    return f"{change} time{shown} in {count_noun(gain.pairs, 'pair')} of jobs"

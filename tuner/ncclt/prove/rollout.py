"""The guard of a roll-out: started jobs and their step times, compared at any time, and the consequences.

A job that got the candidate is paired with one that did not, and bets on the log ratio of their step times decide
(`prove.confidence`): the error rates hold however often they are looked at, for noise of any tails. Jobs are paired by
their order of arrival alone. A coin that its name and the roll-out's seed toss says of each job whether its partner is
a later or an earlier one, and the last free one is taken, as brackets are matched. That looks the same from both ends
of time, so no drift of the cluster favours a side.

A job that hangs reports no step time, so started jobs count too. Two more bets, at the same level and as valid at any
time, are made on those that started long enough ago to have reported: one on the share of candidates among the jobs
without a report, which is the roll-out's own share if the candidate hangs no job, and one on pairs of starts, against
candidates that report less often than the others.
"""

from __future__ import annotations

import math
import statistics
import time as clocks
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ncclt.core.plural import count_noun
from ncclt.core.revision import Actor
from ncclt.core.rollout import JobStart, JobTime, RollOut, RollOutState, draw
from ncclt.core.ticket import TICKET_LIFE_S, read_ticket
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.errors import ConflictError
from ncclt.nccl.numerics import SameBits
from ncclt.prove.confidence import estimate_interval, log_capital
from ncclt.prove.verdict import INTERVAL_ERROR, format_change
from ncclt.store import Store

FALSE_ROLL_BACK = 0.01
"""Probability, over any number of jobs, that a revision is rolled back which loses no more than the limit; the same
again that one is which hangs no job."""

FALSE_WIN = 0.01
"""The same that a revision wins which has no gain, or whose jobs report less often by `MISSING_MARGIN`."""

MISSING_MARGIN = 0.05
"""Share of the reports of other jobs that a winner's jobs may lack. At 0 no number of jobs would prove anything."""

GUARD = "guard"
"""Actor of the automatic end of a roll-out, in the history."""

_GRACE_FACTOR, _GRACE_QUANTILE = 2.0, 0.95
_LEAST_GRACE_S, _LEAST_REPORTS = 60.0, 8

_HANG_ODDS = (1.5, 3.0, 10.0, 100.0)
"""Alternatives of the bet on missing jobs: how much likelier a candidate is to be missing than another job."""

_RETURN_STAKES = (0.1, 0.3, 0.95)
"""Of the bet on reports: the last one decides with the fewest jobs if all report, the first ones if many do not."""

_Job = TypeVar("_Job", JobStart, JobTime)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutVerdict:
    """Verdict on a roll-out by its jobs so far.

    Attributes:
        state: `won` or `lost` where that is certain, else `running`.
        reason: one sentence, with numbers.
        candidates, controls: reports of jobs that got the candidate, and of the others.
        missing_candidates, missing_controls: jobs of both that started long ago and have not reported.
        pairs: of reports, one of each.
    """

    state: RollOutState
    reason: str
    candidates: int
    controls: int
    missing_candidates: int
    missing_controls: int
    pairs: int


def judge_roll_out(
    rollout: RollOut, times: Sequence[JobTime], starts: Sequence[JobStart], *, now_s: float
) -> RollOutVerdict:
    """Decide from its jobs whether a roll-out is lost, won, or continues.

    Lost: it is refuted, at `FALSE_ROLL_BACK`, that steps take at most `loss_limit` longer than in the other jobs, or
    that no more candidates than others are missing. Won: it is refuted, at `FALSE_WIN`, that steps are no faster, and
    that candidates report less often by `MISSING_MARGIN`.

    Args:
        rollout: open or ended.
        times: in their order of arrival, one per job.
        starts: in their order, one per job.
        now_s: Unix time.
    """
    gains = np.array(paired_gains(rollout, times), dtype=np.float64)
    candidates = sum(time.recommendation == rollout.recommendation for time in times)
    reported = {time.job for time in times}
    grace_s = find_grace(times)
    due = [start for start in starts if now_s - start.issued_s >= grace_s]
    missing = [start for start in due if start.job not in reported]
    hung = sum(start.recommendation == rollout.recommendation for start in missing)
    others = len(missing) - hung
    state, reason = RollOutState.RUNNING, _reason(rollout, RollOutState.RUNNING, gains.tolist(), len(times))
    is_faster = len(gains) > 0 and float(log_capital(gains)) >= -math.log(FALSE_WIN)
    if len(gains) and float(log_capital(-gains, math.log1p(rollout.loss_limit))) >= -math.log(FALSE_ROLL_BACK):
        state = RollOutState.LOST
        reason = _reason(rollout, state, gains.tolist(), len(times))
    elif _log_hang_capital(hung, others, rollout.percent / 100) >= -math.log(FALSE_ROLL_BACK):
        state = RollOutState.LOST
        reason = f"jobs with it hang or fail: {_describe_missing(rollout, due, hung, others)}"
    elif is_faster and _log_return_capital(rollout, due, reported) >= -math.log(FALSE_WIN):
        state = RollOutState.WON
        reason = (
            f"{_reason(rollout, state, gains.tolist(), len(times))}; {_describe_missing(rollout, due, hung, others)}"
        )
    elif is_faster:
        reason = (
            f"steps are faster, but its jobs may report less often than others: "
            f"{_describe_missing(rollout, due, hung, others)}"
        )
    elif missing:
        reason += f"; {_describe_missing(rollout, due, hung, others)}"
    return RollOutVerdict(
        state=state,
        reason=reason,
        candidates=candidates,
        controls=len(times) - candidates,
        missing_candidates=hung,
        missing_controls=others,
        pairs=len(gains),
    )


def judge_stored(store: Store, rollout: RollOut) -> RollOutVerdict:
    """Judge a stored roll-out by its jobs so far."""
    starts = store.revisions.job_starts(rollout.id)
    return judge_roll_out(rollout, store.revisions.job_times(rollout.id), starts, now_s=clocks.time())


def describe_cohort_bits(store: Store, rollout: RollOut) -> str:
    """Warn that jobs of a roll-out may differ in the last bits; empty where all keep those of the NCCL default."""
    for id in filter(None, (rollout.recommendation, rollout.control)):
        found = store.recommendations.get(id)
        forms = ((found.table, False), (found.variables, True))
        compared = [compare_numerics(found, form.effective, by_variables=plain) for form, plain in forms if form]
        if why := next((one.why for one in compared if one.same_bits is not SameBits.YES), ""):
            return f"jobs with and without this revision may differ in the last bits: {why}"
    return ""


def find_grace(times: Sequence[JobTime]) -> float:
    """Return the time after which a job without a report counts as missing, in seconds.

    Twice as long as nearly all reports took; with few of them, the life of a ticket.
    """
    if len(times) < _LEAST_REPORTS:
        return TICKET_LIFE_S
    waits_s = sorted(time.waited_s for time in times)
    slow_s = waits_s[math.ceil(_GRACE_QUANTILE * len(waits_s)) - 1]
    return min(max(_GRACE_FACTOR * slow_s, _LEAST_GRACE_S), TICKET_LIFE_S)


def paired_gains(rollout: RollOut, times: Sequence[JobTime]) -> list[float]:
    """Return the log speed-up of each candidate's job over the job that it is paired with, in the order of candidates.

    Each job counts once; a candidate whose partner has not arrived yet is left out.
    """
    return [math.log(other.step_us / one.step_us) for one, other in _pairs(rollout, times)]


def _pairs(rollout: RollOut, jobs: Sequence[_Job]) -> list[tuple[_Job, _Job]]:
    """Return pairs of a candidate's job and another one."""
    coin = f"{rollout.seed} order"
    free: list[int] = []
    waiting: list[int] = []
    partner: dict[int, int] = {}
    for place, job in enumerate(jobs):
        is_candidate = job.recommendation == rollout.recommendation
        if draw(coin, job.job) < 0.5:
            (waiting if is_candidate else free).append(place)
        elif is_candidate and free:
            partner[place] = free.pop()
        elif not is_candidate and waiting:
            partner[waiting.pop()] = place
    return [(jobs[one], jobs[other]) for one, other in sorted(partner.items())]


def _log_hang_capital(hung: int, others: int, share: float) -> float:
    """Return the log of the capital won by betting that candidates are more than their share of the missing jobs.

    The likelihood ratio of Bernoulli trials, averaged over `_HANG_ODDS`: a test martingale while each missing job is a
    candidate with the probability of the share, and a supermartingale while with less.
    """
    found = []
    for odds in _HANG_ODDS:
        likelier = odds * share / (1 - share + odds * share)
        found.append(hung * math.log(likelier / share) + others * math.log((1 - likelier) / (1 - share)))
    best = max(found)
    return best + math.log(sum(math.exp(one - best) for one in found) / len(found))


def _log_return_capital(rollout: RollOut, due: Sequence[JobStart], reported: set[str]) -> float:
    """Return the log of the capital won by betting that candidates report at least nearly as often as others.

    A pair pays 1 + stake * (R - (1 - margin) * S), with R and S 1 where candidate and other job have reported: at most
    1 on average if candidates report less often than others by `MISSING_MARGIN` or more.
    """
    kept = 1 - MISSING_MARGIN
    returns = np.array(
        [(one.job in reported) - kept * (other.job in reported) for one, other in _pairs(rollout, due)],
        dtype=np.float64,
    )
    if not len(returns):
        return 0.0
    won = np.log1p(np.array(_RETURN_STAKES)[:, None] * returns).sum(axis=1)
    best = float(won.max())
    return best + math.log(float(np.exp(won - best).mean()))


def report_job_time(store: Store, ticket: str, time: JobTime, *, now_s: float | None = None) -> RollOutVerdict:
    """Keep the step time of a job and act on all of them: a loss rolls the revision back, a win finishes it.

    Called again with the same job it changes nothing: the first step time of a job counts.

    Args:
        store: which issued the ticket.
        ticket: of the answer that the job started with.
        time: of the job and the revision that the ticket names; `waited_s` is set here.
        now_s: Unix time; None = now.

    Raises:
        InputError: no valid ticket of this job, or steps that do not fit into the time since it started.
        NotFoundError: there is no such roll-out.
        ConflictError: the job was given something else than the roll-out gives it.
        StoreError: the store cannot be written.
    """
    now_s = clocks.time() if now_s is None else now_s
    found = store.revisions.rollout(time.rollout)
    started = read_ticket(ticket, store.ticket_secret(), now_s=now_s)
    started.require_job(time.job)
    given = found.revision_for(time.job)
    if started.rollout != time.rollout or {time.recommendation, started.recommendation} != {given}:
        had = next((one for one in (time.recommendation, started.recommendation) if one != given), given)
        raise ConflictError(
            f"the roll-out {found.id} gives this job {given or 'nothing'}, and it had {had or 'nothing'}",
            hint="a job that started from an older answer is no part of the comparison",
        )
    started.require_time_for(steps=time.steps, step_us=time.step_us, now_s=now_s)
    if found.is_open:
        start = JobStart(
            rollout=time.rollout, job=time.job, recommendation=time.recommendation, issued_s=started.issued_s
        )
        store.revisions.add_job_starts([start])
        store.revisions.add_job_time(replace(time, waited_s=now_s - started.issued_s))
    times = store.revisions.job_times(time.rollout)
    verdict = judge_roll_out(found, times, store.revisions.job_starts(time.rollout), now_s=now_s)
    wins = found.state is RollOutState.RUNNING and verdict.state is RollOutState.WON
    if wins or (found.is_open and verdict.state is RollOutState.LOST):
        keys, addresses = len({one.who for one in times}), len({one.address for one in times})
        senders = f"{count_noun(keys, 'key')} and {count_noun(addresses, 'address', 'addresses')}"
        store.revisions.end_rollout(
            time.rollout, verdict.state, f"{verdict.reason}; reported by {senders}", Actor(who=GUARD)
        )
    if found.state is RollOutState.WON and verdict.state is RollOutState.RUNNING:
        return replace(verdict, state=RollOutState.WON)  # until a person decides, or a loss is proven
    return verdict


def _describe_missing(rollout: RollOut, due: Sequence[JobStart], hung: int, others: int) -> str:
    candidates = sum(start.recommendation == rollout.recommendation for start in due)
    return f"no report of {hung} of {candidates} jobs with it, and of {others} of {len(due) - candidates} without"


def _reason(rollout: RollOut, state: RollOutState, gains: Sequence[float], jobs: int) -> str:
    if not gains:
        return f"no two jobs to compare yet, {jobs} reported"
    ratio = math.exp(statistics.median(gains))
    seen = f"step times of {len(gains)} pairs of jobs, {jobs} reported: {format_change(1 / ratio)} in the middle"
    if state is RollOutState.RUNNING:
        return f"undecided: {seen}"
    found = estimate_interval(list(gains), error=INTERVAL_ERROR)
    # An interval of speed-ups is one of step times upside down.
    low, high = (1 / end if end > 0 else math.inf for end in (found.high, found.low))
    bounds = f"95 % CI {format_change(low)} to {format_change(high)}"
    verb = f"slower by more than {rollout.loss_limit * 100:g} %" if state is RollOutState.LOST else "faster"
    return f"steps are {verb}: {format_change(1 / found.estimate)} time ({bounds}) in {len(gains)} pairs of {jobs} jobs"

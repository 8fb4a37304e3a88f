"""The guard of a roll-out: step times of real jobs, compared at any time, and what follows from them.

A job that got the candidate is paired with one that did not, and bets on the log ratio of their step times decide
(`prove.confidence`): the error rates hold however often they are looked at, for noise of any tails. Jobs are paired by
their order of arrival alone. A coin that its name and the roll-out's seed toss says of each job whether its partner is
a later or an earlier one, and the last free one is taken, as brackets are matched. That looks the same from both ends
of time, so no drift of the cluster favours a side.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ncclt.core.life import By
from ncclt.core.rollout import JobTime, RollOut, RollOutState, Variant, draw
from ncclt.errors import ConflictError
from ncclt.prove.confidence import interval_of, log_capital
from ncclt.prove.verdict import INTERVAL_ERROR
from ncclt.store import Store

FALSE_ROLL_BACK = 0.01
"""Probability, over any number of jobs, that a revision which loses no more than the limit is rolled back."""

FALSE_WIN = 0.01
"""The same that a revision without any gain goes to all jobs."""

GUARD = "guard"
"""Who ends a roll-out, in the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutVerdict:
    """What the jobs of a roll-out show so far.

    Attributes:
        state: `won` or `lost` where that is certain, else `running`.
        reason: one sentence, with numbers.
        candidates, controls: jobs that got the candidate, and the others.
        pairs: of one of each.
    """

    state: RollOutState
    reason: str
    candidates: int
    controls: int
    pairs: int


def judge_roll_out(rollout: RollOut, times: Sequence[JobTime]) -> RollOutVerdict:
    """Decide from the step times of its jobs whether a roll-out is lost, won, or continues.

    Lost: it is refuted, at `FALSE_ROLL_BACK`, that steps take at most `loss_limit` longer than in the other jobs. Won:
    it is refuted, at `FALSE_WIN`, that they are no faster.

    Args:
        rollout: running or ended.
        times: in their order of arrival, one per job.
    """
    gains = np.array(paired_gains(rollout, times), dtype=np.float64)
    candidates = sum(time.recommendation == rollout.recommendation for time in times)
    state = RollOutState.RUNNING
    if len(gains):
        if float(log_capital(-gains, math.log1p(rollout.loss_limit))) >= -math.log(FALSE_ROLL_BACK):
            state = RollOutState.LOST
        elif float(log_capital(gains)) >= -math.log(FALSE_WIN):
            state = RollOutState.WON
    counts = {"candidates": candidates, "controls": len(times) - candidates, "pairs": len(gains)}
    return RollOutVerdict(state=state, reason=_reason(rollout, state, gains.tolist(), len(times)), **counts)


def paired_gains(rollout: RollOut, times: Sequence[JobTime]) -> list[float]:
    """Return the log speed-up of each candidate's job over the job that it is paired with, in the order of candidates.

    Each job counts once; a candidate whose partner has not arrived yet is left out.
    """
    free: list[int] = []
    waiting: list[int] = []
    partner: dict[int, int] = {}
    for place, time in enumerate(times):
        is_candidate = time.recommendation == rollout.recommendation
        if draw(f"{rollout.seed} order", time.job) < 0.5:
            (waiting if is_candidate else free).append(place)
        elif is_candidate and free:
            partner[place] = free.pop()
        elif not is_candidate and waiting:
            partner[waiting.pop()] = place
    return [math.log(times[other].step_us / times[one].step_us) for one, other in sorted(partner.items())]


def report_job_time(store: Store, time: JobTime) -> RollOutVerdict:
    """Keep the step time of a job and act on what all of them show: a loss rolls the revision back, a win finishes it.

    Called again with the same job it changes nothing: the first step time of a job counts.

    Raises:
        NotFoundError: there is no such roll-out.
        ConflictError: the job was given something else than the roll-out gives it.
        StoreError: the store cannot be written.
    """
    rollout = store.rollout(time.rollout)
    wanted = {Variant.CANDIDATE: rollout.recommendation, Variant.ACTIVE: rollout.control, Variant.DEFAULT: ""}
    if time.recommendation != wanted[rollout.variant(time.job)]:
        raise ConflictError(
            f"the roll-out {rollout.id} gives this job {wanted[rollout.variant(time.job)] or 'nothing'}, and it had "
            f"{time.recommendation or 'nothing'}",
            hint="a job that started from an older answer is no part of the comparison",
        )
    if rollout.state is RollOutState.RUNNING:
        store.add_job_time(time)
    verdict = judge_roll_out(rollout, store.job_times(rollout.id))
    if rollout.state is RollOutState.RUNNING and verdict.state is not RollOutState.RUNNING:
        store.end_rollout(rollout.id, verdict.state, verdict.reason, By(who=GUARD))
    return verdict


def _reason(rollout: RollOut, state: RollOutState, gains: Sequence[float], jobs: int) -> str:
    if not gains:
        return f"no two jobs to compare yet, {jobs} reported"
    ratio = math.exp(statistics.median(gains))
    seen = f"step times of {len(gains)} pairs of jobs, {jobs} reported: {_percent(1 / ratio)} in the middle"
    if state is RollOutState.RUNNING:
        return f"undecided: {seen}"
    found = interval_of(list(gains), error=INTERVAL_ERROR)
    # An interval of speed-ups is one of step times upside down.
    low, high = (1 / end if end > 0 else math.inf for end in (found.high, found.low))
    bounds = f"95 % interval {_percent(low)} to {_percent(high)}"
    verb = f"slower by more than {rollout.loss_limit * 100:g} %" if state is RollOutState.LOST else "faster"
    return f"steps are {verb}: {_percent(1 / found.estimate)} time ({bounds}) in {len(gains)} pairs of {jobs} jobs"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %" if math.isfinite(ratio) else "unknown"

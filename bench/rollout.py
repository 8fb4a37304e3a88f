"""How many jobs until a guarded roll-out rolls back a loss, how often does it without one, and who wins by hanging?

The decisions are the real ones: who gets the candidate, and what the guard says after every report. The first roll-outs
of each case (--stored) go through a store as well: published there, each start noted, each job reported with its
ticket, ended there by the guard. Only the jobs are invented, so the truth is known. One starts every minute and reports
when it ends, after 10 minutes in the middle. Its step time has noise of its own (its nodes, its neighbours, its input),
one job in fifty takes 1.5 times as long, and all times drift by 5 %. In the cases `hung` a share of the candidate's
jobs never reports: any of them, or the slowest ones, whose absence makes the rest look faster.

Beside it, on the same jobs in the same order: Welch's t-test of the logs at the same 1 % level, looked at after every
report from the sixth of each side on, as one would look at a dashboard. "Decided" shares of a case without a loss are
false roll-backs; `to all` is a win, also one that awaits approval, and false where there is no gain or jobs hang.

    python bench/rollout.py [--json] [--quick] [--rollouts N] [--jobs N] [--stored N] [--seed N] [--case PATTERN]
"""

from __future__ import annotations

import argparse
import bisect
import fnmatch
import json
import math
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from scipy.special import stdtr

from ncclt.core.revision import Actor
from ncclt.core.rollout import JobStart, JobTime, RollOut, RollOutArm, RollOutState
from ncclt.core.ticket import sign_ticket
from ncclt.deliver.variant import ServedRevision, build_ticket
from ncclt.prove.rollout import RollOutVerdict, judge_roll_out, report_job_time
from ncclt.store import Store, open_store
from ncclt.testing.samples import sample_recommendation

LEVEL = 0.01
LEAST_OF_EACH = 6
"""Jobs of each side before the t-test is looked at: with fewer it would be wrong still more often."""

OUTLIERS, OUTLIER, DRIFT = 0.02, 1.5, 0.05
BEGIN_S, EVERY_S, MEDIAN_JOB_S = 1e9, 60.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One truth.

    Attributes:
        name: as it is printed.
        loss: true loss of step time, as a share; below 0 = a gain.
        noise: standard deviation of the log of a job's step time.
        percent: of the jobs that get the candidate.
        loss_limit: beyond which a roll-out ends.
        hung: share of the candidate's jobs that hang.
        slow_hang: these are the slowest ones.
    """

    name: str
    loss: float
    noise: float = 0.02
    percent: int = 50
    loss_limit: float = 0.01
    hung: float = 0.0
    slow_hang: bool = False


CASES = (
    *(
        Case(name=f"equal, noise {s:.0%}, {p} % of jobs", loss=0.0, noise=s, percent=p)
        for s in (0.01, 0.02, 0.05)
        for p in (10, 50)
    ),
    Case(name="equal, noise 2%, 50 % of jobs, no limit", loss=0.0, loss_limit=0.0),
    Case(name="loss at the limit, noise 2%, 50 % of jobs", loss=0.01),
    *(
        Case(name=f"loss 3%, noise {s:.0%}, {p} % of jobs", loss=0.03, noise=s, percent=p)
        for s in (0.01, 0.02, 0.05)
        for p in (10, 50)
    ),
    Case(name="loss 3%, noise 2%, 50 % of jobs, no limit", loss=0.03, loss_limit=0.0),
    Case(name="loss 10%, noise 2%, 10 % of jobs", loss=0.10, percent=10),
    Case(name="gain 3%, noise 2%, 50 % of jobs", loss=-0.03),
    *(
        Case(name=f"hung {h:.0%}, {'slowest' if slow else 'any'}, gain {gain:.0%}", loss=-gain, hung=h, slow_hang=slow)
        for gain in (0.0, 0.03)
        for h in (0.0, 0.1, 0.3, 0.5, 0.9)
        for slow in ((False, True) if h else (False,))
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What many roll-outs of one case came to.

    Attributes:
        case: its name.
        by: `guard`, or the t-test.
        rollouts: how many.
        lost, won: shares that were rolled back, and that went to all jobs.
        jobs_median, jobs_p90: until they ended, over those that did as they should: lost where there is a loss beyond
            the limit or jobs hang, won where there is a gain; None where fewer than half, or nine tenths, did.
        jobs: most jobs of a roll-out.
    """

    case: str
    by: str
    rollouts: int
    lost: float
    won: float
    jobs_median: int | None
    jobs_p90: int | None
    jobs: int


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--quick", action="store_true", help="10 roll-outs of each case")
    parser.add_argument("--rollouts", type=int, default=200, help="roll-outs of each case (default 200)")
    parser.add_argument("--jobs", type=int, default=600, help="jobs of each roll-out at most (default 600)")
    parser.add_argument("--stored", type=int, default=1, help="of them through a store, job by job (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the first roll-out (default 0)")
    parser.add_argument("--case", default="*", help="only the cases that match")
    args = parser.parse_args()
    if args.rollouts < 1 or args.jobs < 2 * LEAST_OF_EACH or args.stored < 0:
        parser.error(f"--rollouts must be at least 1, --jobs {2 * LEAST_OF_EACH}, --stored 0")
    cases = [case for case in CASES if fnmatch.fnmatch(case.name, args.case)]
    if not cases:
        parser.error(f"no case matches {args.case!r}")
    if args.quick:
        args.rollouts = min(args.rollouts, 10)
    rows, began_s = [], time.monotonic()
    for case in cases:
        ends: dict[str, list[tuple[str, int]]] = {"guard": [], "t-test after every job": []}
        for number in range(args.rollouts):
            guard, t_test = _ended(case, seed=args.seed + number, jobs=args.jobs, stored=number < args.stored)
            ends["guard"].append(guard)
            ends["t-test after every job"].append(t_test)
        for by, found in ends.items():
            row = _row(case, by, found, args.jobs)
            rows.append(row)
            if not args.json:
                _print(row)
    if args.json:
        sys.stdout.write(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    else:
        print(f"{len(cases)} cases of {args.rollouts} roll-outs in {time.monotonic() - began_s:.0f} s")
    return 0


def _ended(case: Case, *, seed: int, jobs: int, stored: bool) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return how guard and t-test ended one roll-out, and after how many jobs."""
    if not stored:
        return _rolled_out(_roll_out(case, f"s{seed}"), None, case, seed=seed, jobs=jobs)
    me = Actor(who="bench")
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/a.db") as store:
        store.revisions.publish(sample_recommendation("a"), by=me)
        store.revisions.publish(sample_recommendation("b"), by=me, for_rollout=True)
        limits = {"percent": case.percent, "loss_limit": case.loss_limit, "max_cost": 1.0}
        rollout = store.revisions.rollout(store.revisions.approve("b", me, **limits))
        return _rolled_out(rollout, store, case, seed=seed, jobs=jobs)


def _roll_out(case: Case, seed: str) -> RollOut:
    return RollOut(
        id="r",
        cluster="pair",
        model="toy",
        arms=(RollOutArm(recommendation="b", share=case.percent / 100),),
        control="a",
        gpus=8,
        seed=seed,
        loss_limit=case.loss_limit,
        max_cost=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An invented job: its start, and its report, which a hung one never sends."""

    start: JobStart
    is_candidate: bool
    step_us: float
    ends_s: float


def _jobs(rollout: RollOut, case: Case, *, seed: int, jobs: int) -> list[Job]:
    """Return the jobs of a roll-out in the order of their starts."""
    dice = random.Random(seed)
    slow = _slow_noise(case)
    found = []
    for number in range(jobs):
        name = f"job {seed}.{number}"
        is_candidate = rollout.find_arm(name) is not None
        noise = _noise(case, dice)
        hangs = noise > slow if case.slow_hang else dice.random() < case.hung
        step_us = 2e5 * math.exp(noise) * (1 + DRIFT * number / jobs) * (1 + case.loss if is_candidate else 1.0)
        issued_s = BEGIN_S + number * EVERY_S
        ends_s = issued_s + MEDIAN_JOB_S * math.exp(dice.gauss(0.0, 0.5))
        start = rollout.start(name, issued_s=issued_s)
        found.append(
            Job(
                start=start,
                is_candidate=is_candidate,
                step_us=step_us,
                ends_s=math.inf if is_candidate and hangs else ends_s,
            )
        )
    return found


def _noise(case: Case, dice: random.Random) -> float:
    """Return the log of what a job takes longer than usual."""
    return dice.gauss(0.0, case.noise) + (math.log(OUTLIER) if dice.random() < OUTLIERS else 0.0)


def _slow_noise(case: Case) -> float:
    """Return the noise above which a job is among the slow ones that hang."""
    if not case.slow_hang:
        return math.inf
    dice = random.Random("slow")
    found = sorted(_noise(case, dice) for _ in range(10_000))
    return found[min(int((1 - case.hung) * len(found)), len(found) - 1)]


def _rolled_out(
    rollout: RollOut, store: Store | None, case: Case, *, seed: int, jobs: int
) -> tuple[tuple[str, int], tuple[str, int]]:
    """Report job after job of a roll-out, to a store if there is one, else to the guard alone."""
    coming = _jobs(rollout, case, seed=seed, jobs=jobs)
    starts = [job.start for job in coming]
    issued_s = [start.issued_s for start in starts]
    times: list[JobTime] = []
    guard, t_test = None, None
    test = _Welch()
    for job in sorted((job for job in coming if math.isfinite(job.ends_s)), key=lambda job: job.ends_s):
        started = starts[: bisect.bisect_right(issued_s, job.ends_s)]
        if guard is None:
            judged = _reported(store, rollout, job, started, times)
            if judged.state is not RollOutState.RUNNING:
                guard = (judged.state.value, len(started))
                assert not store or store.revisions.rollout(rollout.id).state is judged.state
        if t_test is None and (said := test.add(math.log(job.step_us), job.is_candidate)):
            t_test = (said, len(started))
        if guard and t_test:
            break
    return guard or ("running", jobs), t_test or ("running", jobs)


def _reported(
    store: Store | None, rollout: RollOut, job: Job, started: list[JobStart], times: list[JobTime]
) -> RollOutVerdict:
    """Add the report of a job to those before, and return what the guard says."""
    told = {
        "rollout": rollout.id,
        "job": job.start.job,
        "recommendation": job.start.recommendation,
        "steps": 20,
        "step_us": job.step_us,
    }
    if store is None:
        times.append(JobTime(**told, waited_s=job.ends_s - job.start.issued_s))
        return judge_roll_out(rollout, times, started, now_s=job.ends_s)
    known = {start.job for start in store.revisions.job_starts(rollout.id)}
    store.revisions.add_job_starts([start for start in started if start.job not in known])
    answer = ServedRevision(
        recommendation=sample_recommendation(job.start.recommendation),
        rollout=rollout.id,
        running=job.start.running,
    )
    ticket = build_ticket(answer, job.start.job, issued_s=job.start.issued_s)
    assert ticket is not None
    time = JobTime(**told, who="bench", address="::1")
    return report_job_time(store, sign_ticket(ticket, store.ticket_secret()), time, now_s=job.ends_s)


class _Welch:
    """Welch's t-test of two running samples."""

    def __init__(self) -> None:
        self._sums = {True: (0, 0.0, 0.0), False: (0, 0.0, 0.0)}

    def add(self, log_time: float, is_candidate: bool) -> str:
        """Add a job; return `lost` or `won` where the difference is significant, two-sided."""
        number, mean, squares = self._sums[is_candidate]
        step = log_time - mean  # Welford's update
        mean += step / (number + 1)
        self._sums[is_candidate] = (number + 1, mean, squares + step * (log_time - mean))
        sides = (self._sums[True], self._sums[False])
        if min(number for number, _, _ in sides) < LEAST_OF_EACH:
            return ""
        shares = [squares / (number - 1) / number for number, _, squares in sides]
        freedom = sum(shares) ** 2 / sum(
            share**2 / (number - 1) for share, (number, _, _) in zip(shares, sides, strict=True)
        )
        difference = sides[0][1] - sides[1][1]
        if 2 * float(stdtr(freedom, -abs(difference) / math.sqrt(sum(shares)))) > LEVEL:
            return ""
        return "lost" if difference > 0 else "won"


def _row(case: Case, by: str, ends: list[tuple[str, int]], jobs: int) -> Row:
    right = "lost" if case.loss > case.loss_limit or case.hung else "won" if case.loss < 0 else ""
    took = sorted(number for state, number in ends if state == right)

    def quantile(share: float) -> int | None:
        place = math.ceil(share * len(ends)) - 1
        return took[place] if right and place < len(took) else None

    shares = {word: sum(state == word for state, _ in ends) / len(ends) for word in ("lost", "won")}
    return Row(
        case=case.name,
        by=by,
        rollouts=len(ends),
        jobs_median=quantile(0.5),
        jobs_p90=quantile(0.9),
        jobs=jobs,
        **shares,
    )


def _print(row: Row) -> None:
    took = f"after {row.jobs_median} jobs, 9 of 10 after {row.jobs_p90}" if row.jobs_median else ""
    print(f"{row.case:46} {row.by:24} rolled back {row.lost:6.1%}  to all {row.won:6.1%}  {took}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

"""Does a roll-out of several arms find a gain on real jobs, how often a false one, and what does it cost?

Simulated fleets of 2,000 job starts, one every 10 minutes, with one to four candidates. The decisions are the real
ones: the arm of a start, the pause of an arm, and the verdict of the guard, on each of the first 60 reports and then
on every 50th. Only the jobs are invented, so the truth is known. A job runs for 2 hours in the middle, from minutes to
days; its step time has noise of its own (2 %), one job in fifty takes 1.5 times as long, all times drift by 5 %, and
one job in a hundred reports nothing. A job that hangs holds its GPUs for half an hour, until a watchdog ends it.

Beside it, on the same jobs: each candidate in its turn on half of the starts of a quarter of the fleet, with the same
guard but no budget; equal shares and Welch's t-test at the 1 % level, looked at after every 50th report; and a Thompson
bandit with Gaussian posteriors that knows the noise, where a probability of 99 % to beat the control is a win.

`false` counts fleets whose winner has no gain or hangs jobs, `found` those whose winner gains, `cost` is the mean share
of the GPU hours of the whole fleet that candidates lost: longer steps and hangs, no credit for faster ones.

    python bench/on_jobs.py [--json] [--quick] [--fleets N] [--starts N] [--seed N] [--fleet PATTERN]
"""

from __future__ import annotations

import fnmatch
import heapq
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy.special import ndtr, stdtr

from ncclt.core.rollout import ArmState, JobStart, JobTime, RollOut, RollOutArm
from ncclt.prove.rollout import judge_roll_out
from output import Rows, build_parser

LEVEL = 0.01
LEAST_OF_EACH = 6
"""Jobs of each side before the t-test is looked at: with fewer it would be wrong still more often."""

LOOK_EVERY, YOUNG_REPORTS = 50, 60
NOISE, OUTLIERS, OUTLIER, DRIFT, SILENT = 0.02, 0.02, 1.5, 0.05, 0.01
SLOW_NOISE = 0.039
"""About the noise, drift included, above which 30 % of the jobs are."""

BEGIN_S, EVERY_S, MEDIAN_JOB_S, JOB_SPREAD, HANG_S = 1e9, 600.0, 7200.0, 1.0, 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """True effect of a candidate: loss of step time, below 0 = a gain, and the share of its jobs that hang."""

    loss: float = 0.0
    hung: float = 0.0
    slow_hang: bool = False


FLEETS: dict[str, tuple[Arm, ...]] = {
    "all equal": (Arm(),) * 4,
    "losses of 1, 3, 5 and 10 %": (Arm(loss=0.01), Arm(loss=0.03), Arm(loss=0.05), Arm(loss=0.1)),
    "one gains 3 %": (Arm(), Arm(loss=-0.03), Arm(loss=0.02), Arm()),
    "one gains 3 %, one hangs": (Arm(hung=1.0), Arm(loss=-0.03), Arm(loss=0.02), Arm()),
    "one gains 5 % and hangs 30 %": (Arm(loss=-0.05, hung=0.3), Arm(), Arm(), Arm()),
    "one hangs its slowest 30 %": (Arm(hung=0.3, slow_hang=True), Arm(), Arm(), Arm()),
    "all hang": (Arm(hung=1.0),) * 4,
    "alone, equal": (Arm(),),
    "alone, loses 3 %": (Arm(loss=0.03),),
    "alone, gains 3 %": (Arm(loss=-0.03),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An invented job, before it has an arm.

    Attributes:
        name, starts_s: of its start.
        hours: that it runs.
        noise: log of the factor of its step time.
        is_silent: it reports nothing, whatever it gets.
        luck: from 0 to 1, below the share of an arm that hangs it does.
    """

    name: str
    starts_s: float
    hours: float
    noise: float
    is_silent: bool
    luck: float

    def hangs(self, arm: Arm | None) -> bool:
        """Return True if the job hangs with an arm."""
        if arm is None or not arm.hung:
            return False
        return self.noise > SLOW_NOISE if arm.slow_hang else self.luck < arm.hung

    def report(self, arm: Arm | None) -> tuple[float, float] | None:
        """Return the time of its report and its step time in µs; None = it sends none."""
        if self.is_silent or self.hangs(arm):
            return None
        longer = 1 + (arm.loss if arm else 0.0)
        return self.starts_s + self.hours * 3600 * longer, 2e5 * math.exp(self.noise) * longer

    def cost(self, arm: Arm | None) -> float:
        """Return the hours that an arm costs it."""
        if self.hangs(arm):
            return HANG_S / 3600
        return self.hours * max(arm.loss, 0.0) if arm else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one fleet: number of the winner, None = none; hours that arms cost; starts until the end."""

    winner: int | None
    cost: float
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Outcomes of a method on fleets of one kind.

    Attributes:
        method, fleet: names.
        fleets: how many.
        false_tuned: share whose winner has no gain or hangs jobs.
        found: share whose winner gains; None = there is no gain to find.
        cost: mean share of the GPU hours of the fleet.
        cost_most: the largest one.
        starts: median number of starts until the end.
    """

    method: str
    fleet: str
    fleets: int
    false_tuned: float
    found: float | None
    cost: float
    cost_most: float
    starts: float


def main() -> int:
    """Print the rows."""
    parser = build_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="3 fleets of each kind")
    parser.add_argument("--fleets", type=int, default=50, help="fleets of each kind (default 50)")
    parser.add_argument("--starts", type=int, default=2000, help="job starts of each fleet (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first fleet (default 0)")
    parser.add_argument("--fleet", default="*", help="only the kinds of fleets that match")
    args = parser.parse_args()
    if args.fleets < 1 or args.starts < 100:
        parser.error("--fleets must be at least 1, --starts 100")
    kinds = [name for name in FLEETS if fnmatch.fnmatch(name, args.fleet)]
    if not kinds:
        parser.error(f"no fleet matches {args.fleet!r}")
    if args.quick:
        args.fleets = min(args.fleets, 3)
    rows, began_s = Rows(as_json=args.json), time.monotonic()
    for kind in kinds:
        results: dict[str, list[Outcome]] = {method: [] for method in METHODS}
        hours = []
        for seed in range(args.seed, args.seed + args.fleets):
            jobs = invent_jobs(seed, args.starts)
            hours.append(sum(job.hours for job in jobs))
            for method, run in METHODS.items():
                results[method].append(run(FLEETS[kind], jobs, seed))
        for method, outcomes in results.items():
            rows.add(_row(method, kind, outcomes, hours))
    rows.end(f"{args.fleets} fleets of each kind in {time.monotonic() - began_s:.0f} s")
    return 0


def invent_jobs(seed: int, starts: int) -> list[Job]:
    """Return the jobs of a fleet in the order of their starts."""
    dice = random.Random(seed)
    return [
        Job(
            name=f"job {seed}.{number}",
            starts_s=BEGIN_S + number * EVERY_S,
            hours=MEDIAN_JOB_S / 3600 * math.exp(dice.gauss(0.0, JOB_SPREAD)),
            noise=dice.gauss(0.0, NOISE)
            + (math.log(OUTLIER) if dice.random() < OUTLIERS else 0.0)
            + math.log1p(DRIFT * number / starts),
            is_silent=dice.random() < SILENT,
            luck=dice.random(),
        )
        for number in range(starts)
    ]


def run_roll_out(arms: Sequence[Arm], jobs: Sequence[Job], seed: int) -> Outcome:
    """Roll all arms out together, with ramp and budget."""
    share = 1 / (len(arms) + 1)
    rollout = _begin([RollOutArm(recommendation=str(n), share=share) for n in range(len(arms))], seed)
    cost, last, ended = _roll_out(rollout, arms, jobs)
    return Outcome(winner=int(ended.winner) if ended.winner else None, cost=cost, starts=last)


def run_in_turn(arms: Sequence[Arm], jobs: Sequence[Job], seed: int) -> Outcome:
    """Roll the arms out one after the other, each on half of its part of the jobs, without ramp and budget."""
    cost, starts = 0.0, 0
    for number, part in enumerate(_parts(jobs, len(arms))):
        unlimited = RollOutArm(recommendation=str(number), share=0.5, most_unreported=len(jobs))
        rollout = replace(_begin([unlimited], seed), max_cost=1.0)
        part_cost, last, ended = _roll_out(rollout, arms, part, has_ramp=False)
        cost, starts = cost + part_cost, starts + last
        if ended.winner:
            return Outcome(winner=number, cost=cost, starts=starts)
    return Outcome(winner=None, cost=cost, starts=starts)


def _parts(jobs: Sequence[Job], count: int) -> list[Sequence[Job]]:
    size = len(jobs) // count
    return [jobs[number * size : (number + 1) * size] for number in range(count)]


def _begin(arms: Sequence[RollOutArm], seed: int) -> RollOut:
    return RollOut(
        id="r", cluster="pair", model="toy", arms=tuple(arms), control="", gpus=8, seed=f"s{seed}", loss_limit=0.01
    )


def _roll_out(
    rollout: RollOut, arms: Sequence[Arm], jobs: Sequence[Job], *, has_ramp: bool = True
) -> tuple[float, int, RollOut]:
    """Return the cost of a roll-out, its starts and its end."""
    starts: list[JobStart] = []
    times: list[JobTime] = []
    coming: list[tuple[float, JobTime]] = []
    unreported = {arm.recommendation: 0 for arm in rollout.arms}
    cost = 0.0
    for job in jobs:
        while coming and coming[0][0] <= job.starts_s:
            now_s, report = heapq.heappop(coming)
            times.append(report)
            unreported[report.recommendation] = unreported.get(report.recommendation, 0) - 1
            if len(times) < YOUNG_REPORTS or len(times) % LOOK_EVERY == 0:
                rollout = _look(rollout, times, starts, unreported, now_s=now_s, has_ramp=has_ramp)
                if not rollout.is_open or rollout.winner:
                    return cost, len(starts), rollout
        start = rollout.start(job.name, issued_s=job.starts_s)
        starts.append(start)
        arm = arms[int(start.recommendation)] if start.recommendation else None
        cost += job.cost(arm)
        if start.recommendation:
            unreported[start.recommendation] += 1
            rollout = rollout.settle((), unreported, now="")
        if (report := job.report(arm)) is not None:
            heapq.heappush(coming, (report[0], _time(start, *report)))
    return cost, len(starts), rollout


def _time(start: JobStart, ends_s: float, step_us: float) -> JobTime:
    return JobTime(
        rollout=start.rollout,
        job=start.job,
        recommendation=start.recommendation,
        step_us=step_us,
        steps=20,
        waited_s=ends_s - start.issued_s,
    )


def _look(
    rollout: RollOut,
    times: Sequence[JobTime],
    starts: Sequence[JobStart],
    unreported: dict[str, int],
    *,
    now_s: float,
    has_ramp: bool,
) -> RollOut:
    """Return the roll-out after a verdict of the guard."""
    verdict = judge_roll_out(rollout, times, starts, now_s=now_s)
    arms = [arm.to_arm() for arm in verdict.arms]
    if not has_ramp:
        arms = [
            replace(arm, state=ArmState.RUNNING, most_unreported=len(starts) + 10**6)
            if arm.state is ArmState.PAUSED or arm.state is ArmState.RUNNING
            else arm
            for arm in arms
        ]
    return rollout.settle(arms, unreported, now="")


@dataclass(slots=True)
class Sample:
    """A running sample of logs of step times."""

    number: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value, by Welford's update."""
        step = value - self.mean
        self.number += 1
        self.mean += step / self.number
        self.squares += step * (value - self.mean)


def run_t_test(arms: Sequence[Arm], jobs: Sequence[Job], seed: int) -> Outcome:
    """Give equal shares, and look at Welch's t-test again and again."""
    dice = random.Random(f"t-test {seed}")
    dropped: set[int] = set()

    def choose(_samples: Sequence[Sample]) -> int:
        place = dice.randrange(len(arms) + 1)
        return 0 if place in dropped else place

    def decide(samples: Sequence[Sample]) -> int | None:
        for place in range(1, len(samples)):
            if place in dropped or min(samples[0].number, samples[place].number) < LEAST_OF_EACH:
                continue
            shares = [sample.squares / (sample.number - 1) / sample.number for sample in (samples[0], samples[place])]
            numbers = (samples[0].number, samples[place].number)
            freedom = sum(shares) ** 2 / sum(
                share**2 / (number - 1) for share, number in zip(shares, numbers, strict=True)
            )
            difference = samples[place].mean - samples[0].mean
            if 2 * float(stdtr(freedom, -abs(difference) / math.sqrt(sum(shares)))) <= LEVEL:
                if difference < 0:
                    return place
                dropped.add(place)
        return None

    return _allot(arms, jobs, choose, decide)


def run_bandit(arms: Sequence[Arm], jobs: Sequence[Job], seed: int) -> Outcome:
    """Choose by Thompson sampling from Gaussian posteriors with a flat prior of 5 % and the true noise."""
    dice = random.Random(f"bandit {seed}")
    noise = math.hypot(NOISE, math.sqrt(OUTLIERS) * math.log(OUTLIER))
    prior = 0.05

    def posterior(sample: Sample, centre: float) -> tuple[float, float]:
        precision = 1 / prior**2 + sample.number / noise**2
        return centre + (sample.mean - centre) * sample.number / noise**2 / precision, precision**-0.5

    def choose(samples: Sequence[Sample]) -> int:
        centre = samples[0].mean
        draws = [dice.gauss(*posterior(sample, centre)) for sample in samples]
        return draws.index(min(draws))

    def decide(samples: Sequence[Sample]) -> int | None:
        if not samples[0].number:
            return None
        mean, deviation = posterior(samples[0], samples[0].mean)
        for place in range(1, len(samples)):
            arm_mean, arm_deviation = posterior(samples[place], samples[0].mean)
            if float(ndtr((mean - arm_mean) / math.hypot(deviation, arm_deviation))) >= 1 - LEVEL:
                return place
        return None

    return _allot(arms, jobs, choose, decide)


def _allot(
    arms: Sequence[Arm],
    jobs: Sequence[Job],
    choose: Callable[[Sequence[Sample]], int],
    decide: Callable[[Sequence[Sample]], int | None],
) -> Outcome:
    """Give each job a place, 0 = the control, until one is decided to win."""
    samples = [Sample() for _ in range(len(arms) + 1)]
    coming: list[tuple[float, int, float]] = []
    cost, reports = 0.0, 0
    for number, job in enumerate(jobs):
        while coming and coming[0][0] <= job.starts_s:
            _, place, step_us = heapq.heappop(coming)
            samples[place].add(math.log(step_us))
            reports += 1
            if reports % LOOK_EVERY == 0 and (winner := decide(samples)) is not None:
                return Outcome(winner=winner - 1, cost=cost, starts=number)
        place = choose(samples)
        arm = arms[place - 1] if place else None
        cost += job.cost(arm)
        if (report := job.report(arm)) is not None:
            heapq.heappush(coming, (report[0], place, report[1]))
    return Outcome(winner=None, cost=cost, starts=len(jobs))


METHODS: dict[str, Callable[[Sequence[Arm], Sequence[Job], int], Outcome]] = {
    "arms": run_roll_out,
    "50/50 in turn": run_in_turn,
    "t-test": run_t_test,
    "bandit": run_bandit,
}


def _row(method: str, kind: str, outcomes: Sequence[Outcome], hours: Sequence[float]) -> Row:
    arms = FLEETS[kind]
    good = {number for number, arm in enumerate(arms) if arm.loss < 0 and arm.hung == 0}
    winners = [outcome.winner for outcome in outcomes if outcome.winner is not None]
    shares = [outcome.cost / fleet_hours for outcome, fleet_hours in zip(outcomes, hours, strict=True)]
    return Row(
        method=method,
        fleet=kind,
        fleets=len(outcomes),
        false_tuned=sum(winner not in good for winner in winners) / len(outcomes),
        found=sum(winner in good for winner in winners) / len(outcomes) if good else None,
        cost=statistics.fmean(shares),
        cost_most=max(shares),
        starts=statistics.median(outcome.starts for outcome in outcomes),
    )


if __name__ == "__main__":
    raise SystemExit(main())

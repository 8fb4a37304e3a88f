"""Simulated trainings for `bench/live.py`: which arm does live tuning choose, how soon, and at what cost?

The product's director (`ncclt.prove.live_director`) decides at every boundary. Step times are simulated, so the true
gains are known. Jobs have 1,000 steps of 0.7 s, or 10,000 in cases with stalls. Every case runs without and with
interruptions: every 50th step evaluates (20 times as long), every 200th saves a checkpoint (50 times as long) and slows
the next four steps by 30 %. By default, step noise has a deviation of 1 % and is correlated over one step, and times
drift by 10 % per 1,000 steps. A switch takes effect with the third step of a block, which takes 2 % longer, or 50 % at
the first use of an arm.

Rows of `part` decisions: case, jobs, method, leading (share of jobs with the best arm leading within limit_steps),
median_steps until then, tuned (share with a tuned arm at any time), false_tuned (share with a tuned arm at the end that
does not shorten the mean step), in_force (share with such an arm leading at the end), cost and cost_max (time added by
arms and switches, as a share of the job, in the mean and the worst job). Peers: `t-test` alternates
arms in blocks of six steps and switches at p < 0.05 and a mean gain of 2 %, `halving` doubles the steps of each round,
keeps the faster half, and switches to the last arm if its median is faster by 2 %.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from scipy.stats import ttest_ind

from ncclt.prove.experiment import CONTROL
from ncclt.prove.live_director import ARMS_FILE, MIN_COUNTED, SWITCH_STEPS, LiveDirector

STEP_US = 700e3
BOUNDARY = SWITCH_STEPS + MIN_COUNTED
FIRST_BOUNDARY = 4 * BOUNDARY
SWITCH, FIRST_USE = 0.02, 0.5
EVALUATION, CHECKPOINT, UPLOAD = 20.0, 50.0, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Simulated training with known gains.

    Attributes:
        name: printed name.
        gains: true speed-up of each arm's usual steps minus 1.
        stalls: share of stalls among the first arm's steps, and their length in steps.
        after: slowdown of the six steps of the default after an arm, as a share.
        limit: max steps until the best arm leads; 0 = none should lead.
        sigma, memory: deviation of the log of a step, and its correlation with the previous step.
        hiccups: share of steps that take five times as long.
        garbage: distance of steps that a garbage collection doubles; 0 = none.
        neighbour: slowdown by a neighbour that comes and goes about every 40 steps, as a share.
        wave: amplitude of a thermal wave of 300 steps.
        lengths: deviation of the log of the steps' sequence lengths.
        interrupted: with evaluations and checkpoints.
        steps: length of the job.
    """

    name: str
    gains: tuple[float, ...] = (0.0,)
    stalls: tuple[float, float] = (0.0, 1.0)
    after: float = 0.0
    limit: int = 0
    sigma: float = 0.01
    memory: float = 0.5
    hiccups: float = 0.0
    garbage: int = 0
    neighbour: float = 0.0
    wave: float = 0.0
    lengths: float = 0.0
    interrupted: bool = False
    steps: int = 1000

    def mean_gain(self, arm: int) -> float:
        """Return the true gain of an arm's mean step."""
        share, factor = self.stalls if arm == 1 else (0.0, 1.0)
        return (1 + self.gains[arm - 1]) / (1 + share * (factor - 1)) - 1


QUIET = (
    Case(name="flat"),
    Case(name="flat, 3 arms", gains=(0.0, 0.0, 0.0)),
    Case(name="flat, 3 arms, noise 5%", gains=(0.0, 0.0, 0.0), sigma=0.05),
    Case(name="flat, noise 20%", sigma=0.2),
    Case(name="flat, memory 0.95", sigma=0.03, memory=0.95),
    Case(name="flat, hiccups in 2%", hiccups=0.02),
    Case(name="flat, garbage collection", garbage=37),
    Case(name="flat, neighbour", neighbour=0.1),
    Case(name="flat, thermal wave", wave=0.05),
    Case(name="flat, lengths", lengths=0.12),
    Case(name="3%", gains=(0.03,), limit=300),
    Case(name="3%, noise 5%", gains=(0.03,), limit=300, sigma=0.05),
    Case(name="3%, garbage collection", gains=(0.03,), limit=300, garbage=37),
    Case(name="3%, thermal wave", gains=(0.03,), limit=300, wave=0.05),
    Case(name="10%", gains=(0.10,), limit=100),
    Case(name="10%, noise 5%", gains=(0.10,), limit=150, sigma=0.05),
    Case(name="10% of 3 arms", gains=(0.0, 0.10, -0.05), limit=150),
    Case(name="10%, hiccups in 2%", gains=(0.10,), limit=150, hiccups=0.02),
    Case(name="-5%, -10%, -30%", gains=(-0.05, -0.10, -0.30)),
    Case(name="slows what follows by 6%", after=0.06),
)
STALLS = tuple(
    Case(name=f"5%, {share:.1%} x{factor:g}", gains=(0.05,), stalls=(share, factor), steps=10_000)
    for share, factor in ((0.04, 3), (0.02, 6), (0.1, 2), (0.01, 20), (0.005, 40))
)
CASES = tuple(
    replace(case, name=f"{case.name}, interrupted" * interrupted or case.name, interrupted=interrupted)
    for case in (*QUIET, *STALLS)
    for interrupted in (False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Outcome of one job.

    Attributes:
        led: arm -> first step with it leading.
        tuned: arms that were tuned at any time.
        arm, claimed: leading arm and tuned arm at the end; 0 = none.
        cost: cost as in the rows.
    """

    led: dict[int, int]
    tuned: frozenset[int]
    arm: int
    claimed: int
    cost: float


class Job:
    """Invented training.

    Args:
        case: the truth.
        seed: of its noise.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self._case, self._random = case, random.Random(seed)
        self._phase = self._random.randrange(1000)
        self._noise, self._arm, self._used = 0.0, CONTROL, {CONTROL}
        self._since_arm, self._has_neighbour = 1000, False
        self._lost_us = [0.0] * (len(case.gains) + 1)
        self.step, self._elapsed_us = 0, 0.0

    def run(self, arm: int) -> float:
        """Make a step, and return its time in µs."""
        case, rng, when = self._case, self._random, self.step + self._phase
        self._noise = case.memory * self._noise + math.sqrt(1 - case.memory**2) * rng.gauss(0.0, case.sigma)
        self._has_neighbour ^= rng.random() < 1 / 40
        log_time = self._noise + math.log1p(1e-4 * self.step) + case.wave * math.sin(2 * math.pi * when / 300)
        log_time += rng.gauss(0.0, case.lengths) + math.log1p(case.neighbour * self._has_neighbour)
        log_time += math.log(5.0) * (rng.random() < case.hiccups)
        log_time += math.log(2.0) * (case.garbage > 0 and when % case.garbage == 0)
        log_time += math.log1p(UPLOAD) * (case.interrupted and 0 < when % 200 <= 4)
        usual_us = STEP_US * math.exp(log_time)
        self._since_arm = 0 if arm else self._since_arm + 1
        factor = 1 / (1 + case.gains[arm - 1]) if arm else 1 + case.after * (self._since_arm <= BOUNDARY)
        if arm == 1 and rng.random() < case.stalls[0]:
            factor *= case.stalls[1]
        factor += FIRST_USE if arm not in self._used else SWITCH * (arm != self._arm)
        # An evaluation or a checkpoint comes on top: no arm makes it faster.
        pause_us = STEP_US * EVALUATION * (case.interrupted and when % 50 == 0)
        pause_us += STEP_US * CHECKPOINT * (case.interrupted and when % 200 == 0)
        self._lost_us[arm] += usual_us * (factor - 1)
        self._elapsed_us += usual_us * factor + pause_us
        self.step, self._arm = self.step + 1, arm
        self._used.add(arm)
        return usual_us * factor + pause_us

    def block(self, arm: int) -> list[float]:
        """Return the counted steps of a block, µs."""
        before = self._arm
        for number in range(SWITCH_STEPS):
            self.run(before if number < SWITCH_STEPS - 1 else arm)
        return [self.run(arm) for _ in range(MIN_COUNTED)]

    def end(self, arm: int, *, led: dict[int, int] | None = None) -> JobResult:
        """Run the rest with an arm, which is claimed to be faster."""
        led = {arm: self.step} if led is None and arm else led or {}
        while self.step < self._case.steps:
            self.run(arm)
        cost = sum(max(0.0, lost_us) for lost_us in self._lost_us) / self._elapsed_us
        return JobResult(led=led, tuned=frozenset([arm]), arm=arm, claimed=arm, cost=cost)


class Outcome(NamedTuple):
    """Outcome of a proposal: no rank refuses one."""

    committed: bool = True


class Boundary(NamedTuple):
    """Boundary of a job of one rank, as its director gets it."""

    step: int
    plan: str
    plan_since: int
    can_propose: bool
    outcome: Outcome | None
    times_us: dict[int, list[float]]


def tune(case: Case, seed: int) -> JobResult:
    """Tune a job with the director of live tuning."""
    job = Job(case, seed)
    plans = ["", *(f"plan {number}" for number in range(len(case.gains)))]
    arms = [{"name": plan, "table": plan} for plan in plans[1:]]
    led: dict[int, int] = {}
    tuned: set[int] = set()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        request = {"arms": arms, "min_effect": 0.02, "max_cost": 0.005, "min_block_s": 2.0}
        Path(folder, ARMS_FILE).write_text(json.dumps(request))
        director = LiveDirector(Path(folder), backend="nccl", ranks=1, coin=random.Random(-1 - seed))
        plan, since, agreed, outcome = "", 0, "", None
        while job.step < case.steps:
            times_us = []
            for number in range(BOUNDARY):
                if number == SWITCH_STEPS - 1 and plan != agreed:
                    plan, since = agreed, job.step + 1
                times_us.append(job.run(plans.index(plan)))
            if director.finished:
                continue
            can_propose = job.step >= FIRST_BOUNDARY
            proposed = director.decide(Boundary(job.step, plan, since, can_propose, outcome, {0: times_us}))
            agreed, outcome = (plan, None) if proposed is None else (proposed, Outcome())
            if (leading := director.experiment.leading) is not None:
                led.setdefault(leading, job.step)
                tuned |= {director.experiment.tuned or CONTROL}
        leading, claimed = director.experiment.leading or CONTROL, director.experiment.tuned or CONTROL
    return replace(job.end(leading, led=led), claimed=claimed, tuned=frozenset(tuned))


def tune_by_t_test(case: Case, seed: int) -> JobResult:
    """Tune a job by t-tests after each round."""
    job, arms = Job(case, seed), list(range(len(case.gains) + 1))
    times_us: dict[int, list[float]] = {arm: [] for arm in arms}
    while job.step + BOUNDARY * len(arms) <= case.steps // 2:
        for arm in arms:
            times_us[arm] += job.block(arm)
        for arm in arms[1:]:
            is_faster = statistics.fmean(times_us[CONTROL]) / statistics.fmean(times_us[arm]) >= 1.02
            if is_faster and ttest_ind(times_us[CONTROL], times_us[arm]).pvalue < 0.05:
                return job.end(arm)
    return job.end(CONTROL)


def tune_by_halving(case: Case, seed: int) -> JobResult:
    """Tune a job by successive halving."""
    job, arms, blocks = Job(case, seed), list(range(1, len(case.gains) + 1)), 1
    while True:
        medians_us = {
            arm: statistics.median([time_us for _ in range(blocks) for time_us in job.block(arm)])
            for arm in (CONTROL, *arms)
        }
        arms = sorted(arms, key=medians_us.__getitem__)[: max(1, len(arms) // 2)]
        blocks *= 2
        if blocks > 8:
            return job.end(arms[0] if medians_us[CONTROL] / medians_us[arms[0]] >= 1.02 else CONTROL)


METHODS: dict[str, Callable[[Case, int], JobResult]] = {
    "ncclt": tune,
    "t-test": tune_by_t_test,
    "halving": tune_by_halving,
}


def summarize(case: Case, method: str, results: Sequence[JobResult]) -> dict[str, object]:
    """Return one row about the jobs of a case."""
    best = max(range(1, len(case.gains) + 1), key=case.mean_gain)
    led = [result.led[best] for result in results if best in result.led]

    def share(jobs: Sequence[object]) -> float:
        return len(jobs) / len(results)

    def is_slower(arm: int) -> bool:
        return arm != CONTROL and case.mean_gain(arm) <= 0

    return {
        "part": "decisions",
        "case": case.name,
        "method": method,
        "jobs": len(results),
        "leading": share([step for step in led if step <= case.limit]) if case.limit else None,
        "limit_steps": case.limit or None,
        "median_steps": statistics.median(led) if led and case.limit else None,
        "tuned": share([result for result in results if result.tuned - {CONTROL}]),
        "false_tuned": share([result for result in results if is_slower(result.claimed)]),
        "in_force": share([result for result in results if is_slower(result.arm)]),
        "cost": statistics.fmean(result.cost for result in results),
        "cost_max": max(result.cost for result in results),
    }


def run_case(case: Case, method: str, jobs: int, seed: int = 0) -> dict[str, object]:
    """Simulate the jobs of one case with one method."""
    return summarize(case, method, [METHODS[method](case, seed * 1_000_003 + number) for number in range(jobs)])


def run_cases(jobs: int) -> Iterator[dict[str, object]]:
    """Simulate the jobs of every case with every method."""
    for case in CASES:
        for method in METHODS:
            yield run_case(case, method, jobs)

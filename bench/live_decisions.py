"""Simulated trainings for `bench/live.py`: which arm does live tuning choose, how soon, and at what cost?

The truth is known, since only step times are invented. A job has `STEPS` steps of 0.7 s. Its first plan can be proposed
at the fourth boundary; the steps before show the level of the default. Blocks are as the director makes them
(`ncclt.prove.live_director`): three steps for the switch, three that count, 2.1 s. All steps of the job count as time
to a decision. Unless a case says otherwise the noise of steps has a deviation of 1 %, with a memory of one step; one
step in a hundred takes five times as long, all times drift by 10 % per 1,000 steps, every 50th step evaluates (20
times as long) and every 200th saves a checkpoint (50 times as long). A switch takes effect with the third step of a
block, which takes 2 % longer, and 50 % where an arm is used for the first time.

`cost` is the time that slower arms, first steps and the hook have added to a job of `STEPS` steps, as a share of it;
time that faster arms have saved is not set off against it. Peers: `t-test` alternates arms in the same blocks and
switches at p < 0.05 and a mean gain of 2 %, `halving` doubles the steps of each round, keeps the faster half, and
switches to the last arm if its median is faster by 2 %.

Rows of `part` decisions: case, method, jobs, false_tuned (share of the jobs that chose an arm without a gain), found,
found_in_time (share that chose the best arm, at all and within limit_steps), median_steps until then, cost, cost_p95.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scipy.stats import ttest_ind

from ncclt.prove.live_director import MIN_COUNTED, SWITCH_STEPS
from ncclt.prove.live_proof import DEFAULT, LiveProof, StepBlock

STEPS, STEP_US = 1000, 700e3
UNCOUNTED, BLOCK = SWITCH_STEPS, SWITCH_STEPS + MIN_COUNTED
SETTLING, FIRST_BOUNDARY = 4, 4 * BLOCK
SWITCH, FIRST_USE = 0.02, 0.5
HOOK_US = 100.0
"""Per step, in the training's own thread: twice the optimizer hook's 39 µs, for the snapshot of counters."""

EVALUATION, CHECKPOINT, OUTLIER = 20.0, 50.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One truth.

    Attributes:
        name: as it is printed.
        gains: true speed-up of each arm minus 1.
        limit: steps within which the best arm shall be chosen; 0 = none shall be.
        sigma: deviation of the log of a step.
        memory: correlation of a step's noise with that before.
        drift: share by which times have risen at a step.
        outliers: share of steps that take `OUTLIER` times as long.
        evaluation, checkpoint: steps between them; 0 = never.
        rhythm: disturbance of every other block-long stretch of steps.
    """

    name: str
    gains: tuple[float, ...] = (0.0,)
    limit: int = 0
    sigma: float = 0.01
    memory: float = 0.5
    drift: Callable[[int], float] = lambda step: 1e-4 * step
    outliers: float = 0.01
    evaluation: int = 50
    checkpoint: int = 200
    rhythm: float = 0.0


FLAT = (
    Case(name="flat"),
    Case(name="flat, 3 arms", gains=(0.0, 0.0, 0.0)),
    Case(name="flat, noise 5%", sigma=0.05),
    Case(name="flat, 3 arms, noise 5%", gains=(0.0, 0.0, 0.0), sigma=0.05),
    Case(name="flat, noise 20%", sigma=0.2),
    Case(name="flat, AR(1) of 0.95", sigma=0.03, memory=0.95),
    Case(name="flat, outliers in 10%", outliers=0.1),
    Case(name="flat, drift 100%", drift=lambda step: 1e-3 * step),
    Case(name="flat, one jump of 20%", drift=lambda step: 0.2 * (step > 60)),
    Case(name="flat, every other block +10%", rhythm=0.10),
)
GAINS = (
    Case(name="3%", gains=(0.03,), limit=300),
    Case(name="3%, noise 2%", gains=(0.03,), limit=300, sigma=0.02),
    Case(name="3%, noise 5%", gains=(0.03,), limit=300, sigma=0.05),
    Case(name="3% of 3 arms", gains=(0.0, 0.03, -0.05), limit=300),
    Case(name="10%", gains=(0.10,), limit=100),
    Case(name="10%, noise 2%", gains=(0.10,), limit=100, sigma=0.02),
    Case(name="10%, noise 5%", gains=(0.10,), limit=100, sigma=0.05),
    Case(name="10% of 2 arms", gains=(0.0, 0.10), limit=100),
    Case(name="10% of 3 arms", gains=(0.0, 0.10, -0.05), limit=100),
)
LOSSES = (
    Case(name="-5%", gains=(-0.05,)),
    Case(name="-20%", gains=(-0.20,)),
    Case(name="-50%", gains=(-0.50,)),
    Case(name="-5%, -10%, -30%", gains=(-0.05, -0.10, -0.30)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Outcome of one job: the arm chosen (0 = the default), the step at which that was, and the share it cost."""

    arm: int
    step: int
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
        self._noise, self._arm, self._used = 0.0, DEFAULT, {DEFAULT}
        self.step, self.elapsed_us, self.lost_us = 0, 0.0, 0.0

    def run(self, arm: int) -> float:
        """Make a step, and return its time in µs."""
        case, rng = self._case, self._random
        self._noise = case.memory * self._noise + math.sqrt(1 - case.memory**2) * rng.gauss(0.0, case.sigma)
        log_time = self._noise + math.log1p(case.drift(self.step))
        when = self.step + self._phase
        log_time += math.log(OUTLIER) * (rng.random() < case.outliers)
        log_time += math.log1p(case.rhythm) * (when // BLOCK % 2)
        base_us = STEP_US * math.exp(log_time)
        factor = 1.0 if arm == DEFAULT else 1 / (1 + case.gains[arm - 1])
        factor += FIRST_USE if arm not in self._used else SWITCH * (arm != self._arm)
        # An evaluation or a checkpoint comes on top: no arm makes it faster.
        pause_us = STEP_US * (EVALUATION * (case.evaluation > 0 and when % case.evaluation == 0))
        pause_us += STEP_US * (CHECKPOINT * (case.checkpoint > 0 and when % case.checkpoint == 0))
        time_us = base_us * factor + pause_us
        self.lost_us += max(0.0, base_us * (factor - 1)) + HOOK_US
        self.elapsed_us += time_us + HOOK_US
        self.step, self._arm = self.step + 1, arm
        self._used.add(arm)
        return time_us

    def block(self, arm: int, before: int) -> tuple[list[float], float]:
        """Return the counted steps of a block and the longest uncounted one, µs."""
        uncounted_us = max(*(self.run(before) for _ in range(UNCOUNTED - 1)), self.run(arm))
        return [self.run(arm) for _ in range(BLOCK - UNCOUNTED)], uncounted_us

    def begin(self) -> list[float]:
        """Return the counted steps before the first plan, µs."""
        for _ in range(SETTLING):
            self.run(DEFAULT)
        return [self.run(DEFAULT) for _ in range(FIRST_BOUNDARY - SETTLING)]

    def end(self, arm: int) -> JobResult:
        """Run the rest with an arm."""
        step = self.step
        while self.step < STEPS:
            self.run(arm)
        return JobResult(arm=arm, step=step, cost=self.lost_us / self.elapsed_us)


def tune(case: Case, seed: int) -> JobResult:
    """Tune a job as ncclt does."""
    job, proof, before = Job(case, seed), LiveProof(arms=len(case.gains), coin=random.Random(-1 - seed)), DEFAULT
    proof.add(StepBlock(draw=proof.draw(), step_us=tuple(job.begin())), elapsed_us=job.elapsed_us)
    while not proof.has_ended and job.step + BLOCK <= STEPS:
        draw = proof.draw()
        times_us, first_us = job.block(draw.arm, before)
        before = draw.arm
        proof.add(
            StepBlock(draw=draw, step_us=tuple(times_us), first_us=first_us, steps=BLOCK), elapsed_us=job.elapsed_us
        )
    return job.end(proof.winner or DEFAULT)


def tune_by_t_test(case: Case, seed: int) -> JobResult:
    """Tune a job by t-tests after each round."""
    job, arms, before = Job(case, seed), list(range(len(case.gains) + 1)), DEFAULT
    times_us: dict[int, list[float]] = {arm: [] for arm in arms}
    times_us[DEFAULT] += job.begin()
    while job.step + BLOCK * len(arms) <= STEPS // 2:
        for arm in arms:
            times_us[arm] += job.block(arm, before)[0]
            before = arm
        for arm in arms[1:]:
            faster = statistics.fmean(times_us[DEFAULT]) / statistics.fmean(times_us[arm]) >= 1.02
            if faster and ttest_ind(times_us[DEFAULT], times_us[arm]).pvalue < 0.05:
                return job.end(arm)
    return job.end(DEFAULT)


def tune_by_halving(case: Case, seed: int) -> JobResult:
    """Tune a job by successive halving."""
    job, arms, before, steps = Job(case, seed), list(range(1, len(case.gains) + 1)), DEFAULT, BLOCK
    for _ in range(SETTLING):
        job.run(DEFAULT)
    while True:
        medians_us: dict[int, float] = {}
        for arm in (DEFAULT, *arms):
            job.run(before)
            before = arm
            medians_us[arm] = statistics.median([job.run(arm) for _ in range(steps)][1:])
        arms.sort(key=medians_us.__getitem__)
        arms = arms[: max(1, len(arms) // 2)]
        steps *= 2
        if steps > 8 * BLOCK:
            return job.end(arms[0] if medians_us[DEFAULT] / medians_us[arms[0]] >= 1.02 else DEFAULT)


METHODS: dict[str, Callable[[Case, int], JobResult]] = {
    "ncclt": tune,
    "t-test": tune_by_t_test,
    "halving": tune_by_halving,
}


def summarize(case: Case, method: str, results: Sequence[JobResult]) -> dict[str, object]:
    """Return one row about the jobs of a case."""
    best = max(range(len(case.gains)), key=case.gains.__getitem__) + 1
    costs = sorted(result.cost for result in results)
    steps_until = [result.step for result in results if case.limit and result.arm == best]
    return {
        "part": "decisions",
        "case": case.name,
        "method": method,
        "jobs": len(results),
        "false_tuned": sum(r.arm != DEFAULT and case.gains[r.arm - 1] <= 0 for r in results) / len(results),
        "found": len(steps_until) / len(results) if case.limit else None,
        "found_in_time": sum(step <= case.limit for step in steps_until) / len(results) if case.limit else None,
        "limit_steps": case.limit or None,
        "median_steps": statistics.median(steps_until) if steps_until else None,
        "cost": statistics.fmean(costs),
        "cost_p95": costs[int(0.95 * (len(costs) - 1))],
    }


def run_case(case: Case, method: str, jobs: int, seed: int = 0) -> dict[str, object]:
    """Simulate the jobs of one case with one method."""
    return summarize(case, method, [METHODS[method](case, seed * 1_000_003 + number) for number in range(jobs)])


def run_cases(jobs: int) -> Iterator[dict[str, object]]:
    """Simulate the jobs of every case with every method."""
    for case in (*FLAT, *GAINS, *LOSSES):
        for method in METHODS:
            yield run_case(case, method, jobs)

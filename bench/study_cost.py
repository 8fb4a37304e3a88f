"""What does a whole study cost in launches until its verdict, and what does its result gain?

Every study runs through the pipeline of `ncclt tune` with its own store: search, confirmation, proof, publication. Only
the launches are replayed, from recorded times with lognormal noise, one factor for each message of each launch and
half as much for the launch as a whole. The deployed gain is what the published policy truly gains per step on the
recording, 0 where the default is kept. Workloads: those of bench/search.py.

    python bench/study_cost.py --landscape FILE.csv [--landscape ...] [--noise 0.02 --noise 0.05] [--seeds N] [--json]
    python bench/study_cost.py --landscape FILE.csv --workload bert --workload small
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import optuna

from landscapes import FEWEST_FOR_P95, FEWEST_GIVEN, Case, percentile_95, recorded_cases
from ncclt.core.budget import Budget
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.setting import Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import NccltError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.tune import TuneRequest, tune
from ncclt.store import open_store
from ncclt.testing.fakes import SilentWatcher
from output import Rows, build_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What all studies of one workload on one landscape came to; launches are means over the seeds."""

    landscape: str
    workload: str
    method: str
    seeds: int
    noise: float
    search: float
    confirm: float
    prove: float
    total_mean: float
    total_p95: int | None
    total_max: int
    totals: tuple[int, ...]
    tuned_rate: float
    deployed_gain: float
    best_gain: float
    worst_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One study: its launches by phase, and what it deployed."""

    launches: dict[Phase, int]
    tuned: bool
    gain: float


class Replayed:
    """A runner of recorded times with noise, of single settings and of whole policies."""

    name = "replay"
    simulated = False

    def __init__(self, case: Case, *, sigma: float, seed: int) -> None:
        self.cluster = case.cluster
        self._case, self._sigma, self._seed = case, sigma, seed
        self._launches = 0

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that whole policies are launched."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:  # noqa: ARG002
        """Draw one launch of a policy."""
        return self._draw(policy.setting_for, messages)

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:  # noqa: ARG002
        """Draw one launch of a setting."""
        return self._draw(lambda _message: setting, messages)

    def _draw(self, setting_for: Callable[[Message], Setting], messages: Sequence[Message]) -> TrialResult:
        self._launches += 1
        draw = random.Random(f"{self._seed}|{self._launches}")
        launch_noise = draw.gauss(0.0, self._sigma / 2)
        return TrialResult(
            outcome=Outcome.OK,
            measurements=tuple(
                Measurement(
                    message=message,
                    samples_us=(
                        self._case.time_us(setting_for(message), message)
                        * math.exp(launch_noise + draw.gauss(0.0, self._sigma)),
                    ),
                    wrong=None,
                )
                for message in messages
            ),
            wall_s=1.0,
        )


def run_tune(case: Case, testbed: Testbed, *, seed: int) -> tuple[Recommendation, tuple[Trial, ...]]:
    """Run one study to its verdict in a store of its own; return its result and its trials."""
    request = TuneRequest(workload=case.workload, budget=Budget(process_wide=(), seed=seed))
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/ncclt.db") as store:
        result = tune(
            request,
            testbed,
            store,
            watcher=SilentWatcher(),
            interrupted=lambda: "",
            clock=time.monotonic,
            now=lambda: "2026-01-01T00:00:00+00:00",
        )
    assert result.recommendation is not None, "it is not interrupted"
    return result.recommendation, result.trials


def run_study(case: Case, *, sigma: float, seed: int) -> Cost:
    """Run one study to its verdict."""
    testbed = Testbed(
        runner=Replayed(case, sigma=sigma, seed=seed),
        reason="bench",
        covers=case.covers,
        recorded=tuple(setting for setting in case.settings if not setting.is_default),
    )
    recommendation, trials = run_tune(case, testbed, seed=seed)
    return Cost(
        launches={phase: sum(trial.phase is phase for trial in trials) for phase in Phase},
        tuned=recommendation.table.verdict.decision is Decision.TUNED,
        gain=case.default_us / case.policy_us(recommendation.table.effective) - 1,
    )


def row_of(case: Case, *, sigma: float, seeds: int) -> Row:
    """Return what the studies of all seeds came to."""
    costs = [run_study(case, sigma=sigma, seed=seed) for seed in range(seeds)]
    totals = sorted(sum(cost.launches.values()) for cost in costs)
    return Row(
        landscape=case.landscape,
        workload=case.mix,
        method="ours",
        seeds=seeds,
        noise=sigma,
        search=statistics.fmean(cost.launches[Phase.SEARCH] for cost in costs),
        confirm=statistics.fmean(cost.launches[Phase.CONFIRM] for cost in costs),
        prove=statistics.fmean(cost.launches[Phase.PROVE] for cost in costs),
        total_mean=statistics.fmean(totals),
        total_p95=percentile_95(totals),
        total_max=totals[-1],
        totals=tuple(totals),
        tuned_rate=statistics.fmean(cost.tuned for cost in costs),
        deployed_gain=statistics.fmean(cost.gain for cost in costs),
        best_gain=case.default_us / case.ideal_us - 1,
        worst_gain=min(cost.gain for cost in costs),
    )


def main(argv: Sequence[str]) -> int:
    """Print the table, or one JSON document."""
    parser = build_parser(__doc__)
    parser.add_argument("--landscape", action="append", type=Path, required=True, metavar="FILE.csv", help="repeatable")
    parser.add_argument("--workload", action="append", help="only these mixes; repeatable")
    parser.add_argument(
        "--noise", action="append", type=float, help="sigma of the log of a time; default 0.02 and 0.05"
    )
    parser.add_argument("--seeds", type=int, default=20, help="studies of each row (default 20)")
    options = parser.parse_args(argv)
    if options.seeds < 1 or any(not 0 <= sigma < 1 for sigma in options.noise or ()):
        parser.error("--seeds must be at least 1, and --noise 0 to below 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cases: list[Case] = []
    for path in options.landscape:
        try:
            recorded, left_out = recorded_cases(path, fewest=FEWEST_GIVEN)
        except NccltError as error:
            recorded, left_out = [], [f"{path.name}: {error.message}"]
        cases += recorded
        for reason in [*left_out, *dict.fromkeys(f"{case.landscape}: {case.note}" for case in recorded if case.note)]:
            print(f"bench/study_cost.py: {reason}", file=sys.stderr)
    cases = [case for case in cases if case.mix in (options.workload or [case.mix])]
    if not cases:
        print("bench/study_cost.py: nothing of that can be used", file=sys.stderr)
        return 2
    rows, notes = Rows(as_json=options.json), []
    for sigma in options.noise or (0.02, 0.05):
        for case in cases:
            rows.add(row_of(case, sigma=sigma, seeds=options.seeds))
        totals = [total for row in rows[-len(cases) :] for total in row["totals"]]
        p95 = percentile_95(totals)
        notes.append(
            f"{len(totals)} studies of {sigma:.0%} noise: {statistics.fmean(totals):.1f} launches in the mean, "
            f"{f'{p95} in 95 % of them' if p95 else f'too few studies for p95 (fewer than {FEWEST_FOR_P95})'}, "
            f"{max(totals)} at most"
        )
    rows.end(*notes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

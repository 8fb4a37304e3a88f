"""How many launches does one study of several workloads save against a study of each, and what does that cost in gain?

Both run through the pipeline of `ncclt tune`, with stores of their own, on the same recorded times with the same noise
(bench/study_cost.py). A launch counts once, however many workloads it serves. The deployed gain is what the published
policies truly gain per step on the recording, as the mean over the workloads.

    python bench/many_models.py --landscape FILE.csv [--landscape ...] [--noise 0.02] [--seeds N] [--json]
    python bench/many_models.py --landscape FILE.csv --workload bert --workload nasnet
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import optuna

from landscapes import FEWEST_GIVEN, Case, by_landscape, recorded_cases
from ncclt.core.effort import Effort
from ncclt.core.recommendation import Decision
from ncclt.errors import NccltError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.many_models import tune_models
from ncclt.pipeline.tune import TuneRequest
from ncclt.store import open_store
from study_cost import Replayed, Unwatched, run_study

USUAL = ("bert", "nasnet", "small")
"""Mixes that are tuned together, where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRow:
    """What one way came to on one landscape; launches are means over the seeds."""

    landscape: str
    workloads: str
    method: str
    seeds: int
    noise: float
    launches: float
    tuned_rate: float
    deployed_gain: float
    saved: float


def together(cases: Sequence[Case], *, sigma: float, seed: int) -> tuple[int, float, float]:
    """Run one study of all workloads; return its launches, and tuned rate and gain in the mean."""
    common = [s for s in cases[0].settings if not s.is_default and all(s in case.settings for case in cases)]
    testbed = Testbed(
        runner=Replayed(cases[0], sigma=sigma, seed=seed), reason="bench", covers=cases[0].covers,
        recorded=tuple(common),
    )  # fmt: skip
    effort = Effort(process_wide=(), seed=seed, warm=False)
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/ncclt.db") as store:
        found = tune_models(
            [TuneRequest(workload=case.workload, effort=effort) for case in cases], testbed, store,
            watcher=Unwatched(), interrupted=lambda: "", clock=time.monotonic, now=lambda: repr(time.monotonic_ns()),
        )  # fmt: skip
    tables = [result.recommendation.table for result in found.results if result.recommendation is not None]
    assert len(tables) == len(cases), "it is not interrupted"
    gains = [c.default_us / c.policy_us(t.effective) - 1 for c, t in zip(cases, tables, strict=True)]
    tuned = statistics.fmean(t.verdict.decision is Decision.TUNED for t in tables)
    return found.launches, tuned, statistics.fmean(gains)


def apart(cases: Sequence[Case], *, sigma: float, seed: int) -> tuple[int, float, float]:
    """Run a study of each workload; return the same."""
    costs = [run_study(case, sigma=sigma, seed=seed) for case in cases]
    return (
        sum(sum(cost.launches.values()) for cost in costs),
        statistics.fmean(cost.tuned for cost in costs),
        statistics.fmean(cost.gain for cost in costs),
    )


def rows_of(name: str, cases: Sequence[Case], *, sigma: float, seeds: int) -> list[ManyRow]:
    """Return the row of separate studies and that of one for all."""
    mixes, rows = "+".join(case.mix for case in cases), []
    for method, run in (("apart", apart), ("together", together)):
        ends = [run(cases, sigma=sigma, seed=seed) for seed in range(seeds)]
        launches, tuned, gain = (statistics.fmean(column) for column in zip(*ends, strict=True))
        before = rows[0].launches if rows else launches
        rows.append(
            ManyRow(
                landscape=name, workloads=mixes, method=method, seeds=seeds, noise=sigma, launches=launches,
                tuned_rate=tuned, deployed_gain=gain, saved=1 - launches / before,
            )
        )  # fmt: skip
    return rows


def main(argv: Sequence[str]) -> int:
    """Print the table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", action="append", type=Path, required=True, metavar="FILE.csv", help="repeatable")
    parser.add_argument("--workload", action="append", help=f"mixes, two or more; default {', '.join(USUAL)}")
    parser.add_argument("--noise", type=float, default=0.02, help="sigma of the log of a time (default 0.02)")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each row (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    if options.seeds < 1 or not 0 <= options.noise < 1:
        parser.error("--seeds must be at least 1, and --noise 0 to below 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    wanted, rows = options.workload or list(USUAL), []
    if not options.json:
        print(f"{'landscape':<34}{'workloads':<24}{'method':<10}{'launches':>9}{'saved':>7}{'tuned':>7}{'deployed':>9}")
    for path in options.landscape:
        try:
            cases, left_out = recorded_cases(path, fewest=FEWEST_GIVEN)
        except NccltError as error:
            cases, left_out = [], [f"{path.name}: {error.message}"]
        for reason in left_out:
            print(f"bench/many_models.py: {reason}", file=sys.stderr)
        for name, mine in by_landscape([case for case in cases if case.mix in wanted]).items():
            if len(mine) < 2:
                print(f"bench/many_models.py: {name}: fewer than two of the workloads were recorded", file=sys.stderr)
                continue
            for row in rows_of(name, mine, sigma=options.noise, seeds=options.seeds):
                rows.append(row)
                if not options.json:
                    share = f"{row.saved:>7.0%}{row.tuned_rate:>7.0%}{row.deployed_gain:>9.2%}"
                    print(f"{name[:33]:<34}{row.workloads:<24}{row.method:<10}{row.launches:>9.1f}{share}", flush=True)
    if not rows:
        print("bench/many_models.py: nothing of that can be used", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

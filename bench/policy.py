"""What is a policy worth? Time per step of the default, the best single setting, our policy and the ideal one.

Every recorded landscape with at least 12 settings and simulated clusters, or the files given; the mixes of
`bench/search.py`. Ours is the policy that would be recommended after some launches with noise, default and repeats
included, averaged over the seeds; its true time counts, not the measured one.

    python bench/policy.py [--json] [--launches N] [--seeds N] [--mixes small,...] [--landscape FILE.csv ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna

from landscapes import Case, Noise, all_cases
from ncclt.errors import NccltError
from search import search


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Times per step, µs."""

    landscape: str
    workload: str
    default_us: float
    global_us: float
    ours_us: float
    ideal_us: float
    launches: int
    seeds: int


def line(case: Case, *, launches: int, seeds: int, noise: Noise) -> Line:
    """Return the times of one case."""
    runs = [search(case, "ours", seed=seed, budget=launches, noise=noise) for seed in range(seeds)]
    return Line(
        landscape=case.landscape,
        workload=case.mix,
        default_us=case.default_us,
        global_us=case.global_us,
        ours_us=case.ideal_us * (1 + statistics.fmean(run.regrets[-1] for run in runs)),
        ideal_us=case.ideal_us,
        launches=launches,
        seeds=seeds,
    )


def table(lines: Sequence[Line]) -> str:
    """Return the lines as text; the columns after the default's are relative to it."""
    rows = [f"{'landscape':52} {'mix':7} {'default':>12} {'best single':>12} {'our policy':>11} {'ideal':>8}"]
    for x in lines:
        single, ours, ideal = (f"{(us / x.default_us - 1) * 100:+.1f} %" for us in (x.global_us, x.ours_us, x.ideal_us))
        rows.append(f"{x.landscape[:52]:52} {x.workload:7} {x.default_us:9.0f} µs {single:>12} {ours:>11} {ideal:>8}")
    rows.append(f"time per step; the others relative to the NCCL default; ours after {lines[0].launches} launches")
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one document with rows")
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sigma", type=float, default=0.02, help="noise: standard deviation of the log of a time")
    parser.add_argument("--mixes", default="", help="only these, by comma")
    parser.add_argument("--landscape", action="append", type=Path, default=[], metavar="FILE.csv")
    options = parser.parse_args(argv)
    if min(options.launches, options.seeds) < 1 or not options.sigma >= 0:
        parser.error("--launches and --seeds must be at least 1, and --sigma 0 or more")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        cases, left_out = all_cases(options.landscape)
    except NccltError as error:
        print(f"bench/policy.py: {error.message}", file=sys.stderr)
        return 2
    wanted = {word for word in options.mixes.split(",") if word}
    cases = [case for case in cases if not wanted or case.mix in wanted]
    for reason in [*left_out, *dict.fromkeys(f"{c.landscape}: {c.note}" for c in cases if c.note)]:
        print(reason, file=sys.stderr)
    if not cases:
        print("bench/policy.py: no landscape to search in", file=sys.stderr)
        return 2
    lines = [
        line(case, launches=options.launches, seeds=options.seeds, noise=Noise(sigma=options.sigma)) for case in cases
    ]
    print(json.dumps({"rows": [asdict(x) for x in lines]}, indent=1) if options.json else table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

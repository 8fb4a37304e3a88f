"""How many launches does a search need to find a good policy?

Methods: ours; Optuna's TPE (4 start-up trials) and random, with one setting for everything. Landscapes: all recorded
ones with at least 12 settings, or the given files. Each launch measures all messages of a mix with lognormal noise,
independent between launches and messages; every launch counts, including the default and repeats. For the cost of a
whole study, with confirmation and proof, see bench/study_cost.py.

All methods build the policy from their launches in the same way: for each message the fastest setting by ncclt's model
of these launches (`posterior_mean`), if it beats the default by 0.5 %, else the default. Regret = true time per step of
this policy over the ideal policy, minus 1.

    python bench/search.py [--json] [--quick] [--seeds N] [--methods ours,tpe,...] [--mixes small,...]
    python bench/search.py --noise 0.02 --noise 0.05 --noise 0.1      rows for each of them
    python bench/search.py --landscape FILE.csv [--landscape ...]
    python bench/search.py --methods ours --without picks      ours without one of its parts (adr/0007); repeatable
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# One thread: the matrices are small, and libraries that share the cores disturb each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import optuna

from landscapes import Case, all_cases
from ncclt.core.score import score_us
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.errors import NccltError
from ncclt.search import gaussian_process, prior, sampler
from ncclt.search.assemble import assemble, collect_times
from ncclt.search.gaussian_process import posterior_mean
from output import Rows, build_parser
from peers import METHODS, make

COUNTS = (5, 8, 12, 20)
NOISES = (0.02,)
MEAN_AFTER_8, WORST_AFTER_12 = 0.005, 0.03
"""Targets: mean and worst regret over the seeds."""

PARTS = {
    "picks": (sampler.GaussianProcessSampler, "_first_picks", lambda *_: ([], [])),
    "few-channels": (sampler, "_FEWEST_CHANNELS", 0),
    "default-doubt": (sampler, "_DEFAULT_DOUBT", 1.0),
    "cost-model": (prior, "_CLIP", 0.0),
    "channels": (prior, "_BANDWIDTH_POWER", math.inf),
    "own": (gaussian_process, "_OWN", 1e-3),
    "compressed-losses": (gaussian_process, "_HOPELESS", 1e6),
}
"""Part for `--without` -> module or class, attribute, and its value without the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Regret of one method on one mix of one landscape after some launches; 0.01 = 1 %."""

    landscape: str
    workload: str
    method: str
    noise: float
    launches: int
    regret_mean: float
    regret_worst: float
    seeds: int
    default_regret: float


def search(case: Case, method: str, *, seed: int, budget: int, sigma: float) -> list[float]:
    """Search a case with a method for some launches, and return the regret after each."""
    chooser = make(method, case.space, case.workload, case.cluster, seed=seed)
    trials = [_launch(case, DEFAULT, [], seed=seed, sigma=sigma)]
    regrets = [_regret(case, trials)]
    while len(trials) < budget and (setting := chooser.ask(trials)) is not None:
        trials.append(_launch(case, setting, trials, seed=seed, sigma=sigma))
        chooser.tell(trials[-1])
        regrets.append(_regret(case, trials))
    # A search that has ended keeps what it found.
    return regrets + [regrets[-1]] * (budget - len(regrets))


def _launch(case: Case, setting: Setting, trials: Sequence[Trial], *, seed: int, sigma: float) -> Trial:
    repeat = sum(t.setting == setting for t in trials)
    result = case.launch(setting, repeat, seed=seed, sigma=sigma)
    return Trial(
        number=len(trials),
        phase=Phase.SEARCH,
        setting=setting,
        repeat=repeat,
        result=result,
        score_us=score_us(result, case.workload),
    )


def _regret(case: Case, trials: Sequence[Trial]) -> float:
    times = posterior_mean(collect_times(trials), case.workload, case.cluster)
    policy = assemble(times, case.workload, version=case.cluster.version)
    return case.policy_us(policy) / case.ideal_us - 1


def compare(case: Case, methods: Sequence[str], *, seeds: int, budget: int, sigma: float) -> Iterator[Line]:
    """Run all methods on one case, and yield their lines."""
    for method in methods:
        runs = [search(case, method, seed=seed, budget=budget, sigma=sigma) for seed in range(seeds)]
        for launches in [n for n in COUNTS if n <= budget]:
            regrets = [run[launches - 1] for run in runs]
            yield Line(
                landscape=case.landscape,
                workload=case.mix,
                method=method,
                noise=sigma,
                launches=launches,
                regret_mean=statistics.fmean(regrets),
                regret_worst=max(regrets),
                seeds=seeds,
                default_regret=case.default_us / case.ideal_us - 1,
            )


def summarize(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the means over all cases, and the cases of ours that miss the targets."""
    for method, noise, launches in dict.fromkeys((line.method, line.noise, line.launches) for line in lines):
        group = [line for line in lines if (line.method, line.noise, line.launches) == (method, noise, launches)]
        mean = statistics.fmean(line.regret_mean for line in group)
        yield (
            f"{method} at {noise:.0%} noise after {launches}: {mean:.2%} regret in the mean of {len(group)} cases, "
            f"{max(line.regret_worst for line in group):.2%} at worst"
        )
    for line in lines:
        missed = (line.launches == 8 and line.regret_mean > MEAN_AFTER_8) or (
            line.launches == 12 and line.regret_worst > WORST_AFTER_12
        )
        if line.method == "ours" and missed:
            yield (
                f"  target missed: {line.landscape} {line.workload} after {line.launches}: "
                f"{line.regret_mean:.2%} in the mean, {line.regret_worst:.2%} at worst"
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="3 seeds, 12 launches")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=max(COUNTS), help="launches of each search")
    parser.add_argument(
        "--noise",
        "--sigma",
        action="append",
        type=float,
        metavar="SIGMA",
        help="standard deviation of the log of a time; repeatable, default 0.02",
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mixes", default="", help="only these, by comma")
    parser.add_argument("--without", action="append", choices=PARTS, default=[], help="a part that ours does without")
    parser.add_argument("--only", default="", help="only landscapes whose name contains this")
    parser.add_argument("--landscape", action="append", type=Path, default=[], metavar="FILE.csv")
    options = parser.parse_args(argv)
    methods = [word for word in options.methods.split(",") if word]
    unknown = sorted(set(methods) - {*METHODS})
    if unknown:
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    noises = tuple(options.noise or NOISES)
    if any(not 0 <= sigma < 1 for sigma in noises):
        parser.error("--noise must be 0 to below 1")
    seeds, budget = options.seeds, options.budget
    if options.quick:
        seeds, budget = min(seeds, 3), min(budget, 12)
    for part in options.without:
        module, name, value = PARTS[part]
        setattr(module, name, value)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _use_one_thread()
    try:
        cases, left_out = all_cases(options.landscape)
    except NccltError as error:
        print(f"bench/search.py: {error.message}", file=sys.stderr)
        return 2
    mixes = {word for word in options.mixes.split(",") if word}
    cases = [c for c in cases if options.only in c.landscape and (not mixes or c.mix in mixes)]
    for reason in [*left_out, *dict.fromkeys(f"{c.landscape}: {c.note}" for c in cases if c.note)]:
        print(reason, file=sys.stderr)
    if not cases:
        print("bench/search.py: no landscape to search in", file=sys.stderr)
        return 2
    rows, lines = Rows(as_json=options.json), []
    for sigma, case in itertools.product(noises, cases):
        for line in compare(case, methods, seeds=seeds, budget=budget, sigma=sigma):
            lines.append(line)
            rows.add(line)
        print(f"done: {case.landscape}, {case.mix}, noise {sigma:.0%}", file=sys.stderr, flush=True)
    rows.end(*summarize(lines))
    return 0


def _use_one_thread() -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())

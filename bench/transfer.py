"""What do earlier studies bring to the next one, and what do they cost where they mislead?

Every pair of landscapes of like hardware that differ in workload, nodes, GPUs, version or condition: a study of the
first is kept in a store, then the second is tuned there through the pipeline of `ncclt tune`. Methods, in the same run
and with the same launches: `ours` begins from the first study; `none` begins from the cost model; `copy` launches the
three settings that mattered most in the first study's policy before anything else, as ncclt 0.4 did. Launches are
replayed with noise, as in bench/study_cost.py; the simulated clusters, where asked for, are named so.

Regret = true time per step over that of the ideal policy, minus 1: of what the search would choose after some
launches, and of what is deployed. Negative transfer = regret of a method minus that of `none`, and the same of
launches; beside it twice the standard error of that difference over the seeds.

    python bench/transfer.py [--json] [--seeds N] [--noise 0.02] [--mixes small,bert] [--simulated] [--quick]
    python bench/transfer.py --landscape FILE.csv [--landscape ...]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import optuna

from landscapes import DATA, FEWEST_GIVEN, FEWEST_SETTINGS, Case, percentile_95, recorded_cases, simulated_cases
from ncclt.core.effort import Effort
from ncclt.core.recommendation import Decision
from ncclt.core.setting import Setting
from ncclt.core.study import Phase, Trial
from ncclt.errors import NccltError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.tune import TuneRequest, tune
from ncclt.search.assemble import assemble, collect_times
from ncclt.search.earlier import LEAST_TRUST, trust_in
from ncclt.search.posterior import believed
from ncclt.search.space import space_of
from ncclt.store import open_store
from study_cost import Replayed, Unwatched

METHODS = ("none", "ours", "copy")
MIXES = "small,middle,bert,nasnet,own"
MOST_COPIED = 3
EARLY = (3, 8)
"""Launches after which the search's choice is judged, the default's first one included."""

SOURCE, TARGET = "source", "target"
SIMULATED = (("aws-g6e", 1), ("aws-g6e", 2), ("aws-g6e", 3), ("dgx-h100", 1), ("dgx-h100", 2), ("dgx-h100", 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one pair; launches, regrets and weight are means over the seeds, `excess` is over `none`."""

    source: str
    source_workload: str
    target: str
    workload: str
    differs: str
    method: str
    seeds: int
    noise: float
    search: float
    confirm: float
    prove: float
    total_mean: float
    total_p95: int | None
    tuned_rate: float
    regret_3: float
    regret_8: float
    deployed_regret: float
    weight: float
    excess_regret_8: float
    excess_regret_8_noise: float
    excess_deployed: float
    excess_deployed_noise: float
    excess_launches: float
    excess_launches_noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One study."""

    launches: dict[Phase, int]
    tuned: bool
    early: tuple[float, ...]
    deployed: float
    weight: float

    @property
    def total(self) -> int:
        return sum(self.launches.values())


def run_study(
    case: Case, folder: Path, *, name: str, sigma: float, seed: int, warm: bool, copied: Sequence[Setting] = ()
) -> tuple[Outcome, tuple[Trial, ...]]:
    """Run one study to its verdict in the store of a folder."""
    testbed = Testbed(
        runner=Replayed(case, sigma=sigma, seed=seed),
        reason="bench",
        covers=case.covers,
        recorded=tuple(setting for setting in case.settings if not setting.is_default),
    )
    request = TuneRequest(
        workload=case.workload, effort=Effort(process_wide=(), seed=seed, warm=warm, study=f"{name}-{seed}")
    )
    with open_store(_url(folder)) as store:
        space = space_of(testbed, case.workload, ())
        enqueued = [setting for setting in copied if setting in space.distinct]
        if enqueued:
            waiting = optuna.create_study(storage=store.optuna_url, study_name=f"{name}-{seed}")
            for setting in enqueued:
                waiting.enqueue_trial(space.values(setting))
        result = tune(
            request, testbed, store,
            watcher=Unwatched(), interrupted=lambda: "", clock=time.monotonic, now=lambda: "2026-01-01T00:00:00+00:00",
        )  # fmt: skip
    found = result.recommendation
    assert found is not None, "it is not interrupted"
    searched = [trial for trial in result.trials if trial.phase is Phase.SEARCH]
    outcome = Outcome(
        launches={phase: sum(trial.phase is phase for trial in result.trials) for phase in Phase},
        tuned=found.table.verdict.decision is Decision.TUNED,
        early=tuple(_regret(case, searched[:launches]) for launches in EARLY),
        deployed=case.policy_us(found.table.effective) / case.ideal_us - 1,
        weight=sum(begun.weight for begun in result.study.begun_from),
    )
    return outcome, result.trials


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/ncclt.db"


def _regret(case: Case, trials: Sequence[Trial]) -> float:
    times = believed(collect_times(trials), case.workload, case.cluster)
    return case.policy_us(assemble(times, case.workload, version=case.cluster.version)) / case.ideal_us - 1


def best_of(case: Case, trials: Sequence[Trial]) -> list[Setting]:
    """Return the settings of the policy that the trials support, those of most time per step first."""
    times = collect_times(trial for trial in trials if trial.policy is None)
    policy = assemble(believed(times, case.workload, case.cluster), case.workload, version=case.cluster.version)
    cost: dict[Setting, float] = {}
    for calls in case.workload.messages:
        setting = policy.setting_for(calls.message)
        if not setting.is_default:
            cost[setting] = cost.get(setting, 0.0) + calls.calls_per_step * times.default[calls.message]
    return sorted(cost, key=lambda setting: (-cost[setting], setting.digest()))[:MOST_COPIED]


def differs(one: Case, other: Case) -> str:
    """Say in what two cases differ; empty where one says nothing of the other, or they are the same."""
    here, there = one.cluster, other.cluster
    if one is other or trust_in(there, here) <= LEAST_TRUST:
        return ""
    words = {
        "workload": one.mix != other.mix,
        "nodes": here.nodes != there.nodes,
        "gpus": here.gpus_per_node != there.gpus_per_node,
        "version": here.nccl_version != there.nccl_version,
    }
    found = [word for word, holds in words.items() if holds]
    if one.landscape != other.landscape and not any(words[word] for word in ("nodes", "gpus", "version")):
        found.append("condition")
    return "+".join(found)


def compare(cases: Sequence[Case], *, sigma: float, seeds: int) -> Iterator[Row]:
    """Yield the rows of every pair, the method without transfer first."""
    pairs = [(source, target, what) for target in cases for source in cases if (what := differs(target, source))]
    used = {id(case) for pair in pairs for case in pair[:2]}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        first: dict[int, list[list[Setting]]] = {}
        alone: dict[int, list[Outcome]] = {}
        for number, case in enumerate(cases):
            if id(case) not in used:
                continue
            first[id(case)], alone[id(case)] = [], []
            for seed in range(seeds):
                folder = root / f"{number}-{seed}"
                folder.mkdir()
                # The source has noise of its own.
                _, trials = run_study(case, folder, name=SOURCE, sigma=sigma, seed=1000 + seed, warm=False)
                first[id(case)].append(best_of(case, trials))
                blank = root / "blank"
                blank.mkdir()
                alone[id(case)].append(run_study(case, blank, name=TARGET, sigma=sigma, seed=seed, warm=False)[0])
                shutil.rmtree(blank)
        places = {id(case): number for number, case in enumerate(cases)}
        for source, target, what in pairs:
            for method in METHODS:
                found = alone[id(target)]
                if method != "none":
                    found = []
                    for seed in range(seeds):
                        folder = root / "second"
                        shutil.copytree(root / f"{places[id(source)]}-{seed}", folder)
                        copied = first[id(source)][seed] if method == "copy" else ()
                        ours = method == "ours"
                        found.append(
                            run_study(target, folder, name=TARGET, sigma=sigma, seed=seed, warm=ours, copied=copied)[0]
                        )
                        shutil.rmtree(folder)
                yield row_of(source, target, what, method, found, alone[id(target)], sigma=sigma)


def row_of(
    source: Case, target: Case, what: str, method: str, found: Sequence[Outcome], alone: Sequence[Outcome], *,
    sigma: float,
) -> Row:  # fmt: skip
    """Return what the studies of a method came to."""
    totals = sorted(one.total for one in found)
    both = list(zip(found, alone, strict=True))
    regret, regret_noise = _mean([mine.early[1] - none.early[1] for mine, none in both])
    deployed, deployed_noise = _mean([mine.deployed - none.deployed for mine, none in both])
    launches, launches_noise = _mean([float(mine.total - none.total) for mine, none in both])
    return Row(
        source=source.landscape,
        source_workload=source.mix,
        target=target.landscape,
        workload=target.mix,
        differs=what,
        method=method,
        seeds=len(found),
        noise=sigma,
        search=statistics.fmean(one.launches[Phase.SEARCH] for one in found),
        confirm=statistics.fmean(one.launches[Phase.CONFIRM] for one in found),
        prove=statistics.fmean(one.launches[Phase.VERIFY] for one in found),
        total_mean=statistics.fmean(totals),
        total_p95=percentile_95(totals),
        tuned_rate=statistics.fmean(one.tuned for one in found),
        regret_3=statistics.fmean(one.early[0] for one in found),
        regret_8=statistics.fmean(one.early[1] for one in found),
        deployed_regret=statistics.fmean(one.deployed for one in found),
        weight=statistics.fmean(one.weight for one in found),
        excess_regret_8=regret,
        excess_regret_8_noise=regret_noise,
        excess_deployed=deployed,
        excess_deployed_noise=deployed_noise,
        excess_launches=launches,
        excess_launches_noise=launches_noise,
    )


def _mean(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and twice its standard error; 0 where there is one difference."""
    if len(differences) < 2:
        return differences[0], 0.0
    return statistics.fmean(differences), 2 * statistics.stdev(differences) / math.sqrt(len(differences))


def show(row: Row) -> None:
    """Print one row of the table."""
    pair = f"{row.source[-30:]:<31}{row.source_workload:<8}{row.target[-30:]:<31}{row.workload:<8}{row.differs:<19}"
    launches = f"{row.search:>7.1f}{row.confirm:>8.1f}{row.prove:>7.1f}{row.total_mean:>7.1f}{row.total_p95 or '-':>5}"
    regrets = f"{row.regret_3:>9.2%}{row.regret_8:>9.2%}{row.deployed_regret:>10.2%}"
    print(f"{pair}{row.method:<6}{launches}{row.tuned_rate:>7.0%}{regrets}{row.weight:>8.2f}", flush=True)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the means of each method, and the worst negative transfer."""
    for method in METHODS:
        mine = [row for row in rows if row.method == method]
        yield (
            f"{method}: {len(mine)} pairs, {statistics.fmean(r.total_mean for r in mine):.1f} launches in all, "
            f"regret {statistics.fmean(r.regret_3 for r in mine):.2%} after 3, "
            f"{statistics.fmean(r.regret_8 for r in mine):.2%} after 8, "
            f"{statistics.fmean(r.deployed_regret for r in mine):.2%} deployed; "
            f"{statistics.fmean(r.total_mean <= 15 for r in mine):.0%} of the pairs need at most 15 launches"
        )
    for method in METHODS[1:]:
        for field, form in (("regret_8", "{:+.2%}"), ("deployed", "{:+.2%}"), ("launches", "{:+.1f}")):
            row = max((r for r in rows if r.method == method), key=lambda r: getattr(r, f"excess_{field}"))
            worst, noise = getattr(row, f"excess_{field}"), getattr(row, f"excess_{field}_noise")
            yield (
                f"worst negative transfer of {method}, {field}: {form.format(worst)} (noise {form.format(noise)[1:]}): "
                f"{row.source} {row.source_workload} -> {row.target} {row.workload}"
            )


def main(argv: Sequence[str]) -> int:
    """Print the table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", action="append", type=Path, default=[], metavar="FILE.csv", help="repeatable")
    parser.add_argument("--mixes", default=MIXES, help=f"workloads by comma, or all (default {MIXES})")
    parser.add_argument("--only", default="", help="only landscapes whose name contains this")
    parser.add_argument("--simulated", action="store_true", help="simulated clusters too")
    parser.add_argument("--noise", type=float, default=0.02, help="sigma of the log of a time")
    parser.add_argument("--seeds", type=int, default=4, help="studies of each row (default 4)")
    parser.add_argument("--quick", action="store_true", help="one seed, two workloads")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    if options.seeds < 1 or not 0 <= options.noise < 1:
        parser.error("--seeds must be at least 1, and --noise 0 to below 1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeds, mixes = (1, "small,bert") if options.quick else (options.seeds, options.mixes)
    cases, left_out = _cases(options.landscape, simulated=options.simulated)
    wanted = set(mixes.split(","))
    cases = [case for case in cases if options.only in case.landscape and ("all" in wanted or case.mix in wanted)]
    for reason in [*left_out, *dict.fromkeys(f"{case.landscape}: {case.note}" for case in cases if case.note)]:
        print(f"bench/transfer.py: {reason}", file=sys.stderr)
    rows = []
    for row in compare(cases, sigma=options.noise, seeds=seeds):
        if not rows and not options.json:
            launches = f"{'search':>7}{'confirm':>8}{'prove':>7}{'total':>7}{'p95':>5}{'tuned':>7}"
            pair = f"{'from':<31}{'':<8}{'to':<31}{'':<8}{'differs in':<19}{'method':<6}"
            print(f"{pair}{launches}{'after 3':>9}{'after 8':>9}{'deployed':>10}{'weight':>8}")
        rows.append(row)
        if not options.json:
            show(row)
    if not rows:
        print("bench/transfer.py: no two of these landscapes are of like hardware", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print("\n".join(summary(rows)))
    return 0


def _cases(files: Sequence[Path], *, simulated: bool) -> tuple[list[Case], list[str]]:
    """Return the cases of the files, of all public tables where none is given, and what was left out."""
    cases: list[Case] = []
    left_out: list[str] = []
    if not files and not DATA.is_dir():
        left_out.append(f"no recorded landscape: there is no {DATA.parent.name}/{DATA.name} beside the repository")
    for path in files or sorted(DATA.glob("*.csv")):
        try:
            found, reasons = recorded_cases(path, fewest=FEWEST_GIVEN if files else FEWEST_SETTINGS)
        except (NccltError, OSError) as error:
            found, reasons = [], [f"{path.name}: skipped: {error}"]
        cases += found
        left_out += reasons
    return [*cases, *(simulated_cases(SIMULATED) if simulated else ())], left_out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

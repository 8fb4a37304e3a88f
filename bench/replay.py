"""A stored study or a recorded landscape, searched again on its own measurements: would another sampler be sooner?

A launch gives what was measured in the launches of that setting, in turn. Regret = expected time per step of the
policy that a search would recommend over the one of the best policy that the recording allows, minus 1.

    python bench/replay.py STUDY [--storage URL] [--method ours --method tpe ...] [--seeds N] [--launches N] [--json]
    python bench/replay.py --landscape FILE.csv [--landscape ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from landscapes import Noise, all_cases
from ncclt.cli.output import print_table
from ncclt.core.cluster import Cluster
from ncclt.core.policy import Policy
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.score import score_us
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Outcome, TrialResult
from ncclt.core.workload import Workload
from ncclt.errors import NccltError, UsageError
from ncclt.search.assemble import Times, assemble, collect_times, expected_us
from ncclt.search.posterior import posterior_mean
from ncclt.search.space import recorded_space
from ncclt.store import open_to_read
from peers import METHODS, make

AFTER = (5, 8, 12, 20)
WITHIN = (0.03, 0.01)
FEWEST_SETTINGS = 4
"""Settings beside the default below which there is nothing to search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was measured, as the landscape of other searches.

    Attributes:
        name: of the study, or of landscape and mix.
        cluster, workload: of the study.
        results: setting -> its launches that measured every message, or failed; the default is among them.
        truth: median times of the settings that never failed.
        ideal_us: time per step of the best policy that the recording allows.
        printed_costs: NCCL's own tables that the study began from, where it had them.
    """

    name: str
    cluster: Cluster
    workload: Workload
    results: Mapping[Setting, tuple[TrialResult, ...]]
    truth: Times
    ideal_us: float
    printed_costs: PrintedCosts | None = None

    def regret(self, policy: Policy) -> float:
        """Return by which share a policy is slower than the ideal one."""
        return expected_us(policy, self.truth, self.workload, version=self.cluster.version) / self.ideal_us - 1

    @property
    def best_single_regret(self) -> float:
        """Return the regret of the best single setting for all messages."""
        calls = {c.message: c.calls_per_step for c in self.workload.messages}
        totals = (sum(calls[m] * us for m, us in times.items()) for times in self.truth.by_setting.values())
        return min(totals) / self.ideal_us - 1


def recorded(
    name: str, cluster: Cluster, workload: Workload, trials: Sequence[Trial], costs: PrintedCosts | None = None
) -> Recording:
    """Return a recording of some trials; those of the proof are left out, as they measure parts.

    Raises:
        UsageError: too few settings were measured, or the default was not.
    """
    wanted = {calls.message for calls in workload.messages}
    results: dict[Setting, list[TrialResult]] = {}
    whole: list[Trial] = []
    for trial in trials:
        measured = {m.message for m in trial.result.measurements}
        if not trial.tries_setting or (trial.result.outcome is Outcome.OK and measured != wanted):
            continue
        whole.append(trial)
        results.setdefault(trial.setting, []).append(trial.result)
    good_default = [r for r in results.get(DEFAULT, []) if r.outcome is Outcome.OK]
    if len(results) < FEWEST_SETTINGS + 1 or not good_default:
        raise UsageError(f"{name} measured {len(results)} settings: too few to search among", hint="give it --trials")
    truth = collect_times(whole)
    ideal = assemble(truth, workload, version=cluster.version)
    return Recording(
        name=name,
        cluster=cluster,
        workload=workload,
        results={s: tuple(found) for s, found in results.items()} | {DEFAULT: tuple(good_default)},
        truth=truth,
        ideal_us=expected_us(ideal, truth, workload, version=cluster.version),
        printed_costs=costs,
    )


def replay(recording: Recording, method: str, *, seed: int, launches: int) -> tuple[float, ...]:
    """Search a recording once and return the regret of the policy after each launch, the default's first."""
    space, version = recorded_space(recording.results), recording.cluster.version
    asked = make(method, space, recording.workload, recording.cluster, seed=seed, printed_costs=recording.printed_costs)
    trials = [_launch(recording, DEFAULT, [])]
    regrets = [recording.regret(Policy())]
    while len(trials) < launches and (setting := asked.ask(trials)) is not None:
        trials.append(_launch(recording, setting, trials))
        asked.tell(trials[-1])
        known = collect_times(trials)
        # What fails in any launch of the recording cannot be judged by it, however well it looked in one of them.
        usable = {s: times for s, times in known.by_setting.items() if s in recording.truth.by_setting}
        times = posterior_mean(replace(known, by_setting=usable), recording.workload, recording.cluster)
        regrets.append(recording.regret(assemble(times, recording.workload, version=version)))
    return tuple(regrets)


def _launch(recording: Recording, setting: Setting, trials: Sequence[Trial]) -> Trial:
    repeat = sum(trial.setting == setting for trial in trials)
    launches = recording.results[setting]
    return _trial(len(trials), setting, repeat, launches[repeat % len(launches)], recording.workload)


def _trial(number: int, setting: Setting, repeat: int, result: TrialResult, workload: Workload) -> Trial:
    score = score_us(result, workload) if result.outcome is Outcome.OK else None
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=repeat, result=result, score_us=score)


def launches_within(regrets: Sequence[float], share: float) -> int | None:
    """Return the launches after which the regret stays within a share; None = never."""
    outside = [number for number, regret in enumerate(regrets, start=1) if regret > share]
    needed = max(outside, default=0) + 1
    return needed if needed <= len(regrets) else None


def row(recording: Recording, method: str, *, seeds: int, launches: int) -> dict[str, Any]:
    """Return what a method comes to over its seeds."""
    runs = [replay(recording, method, seed=seed, launches=launches) for seed in range(seeds)]
    longest = max(map(len, runs))
    marks = (*(a for a in AFTER if a < longest), longest)
    # A search that found nothing more to launch keeps what it had.
    regrets = {after: [run[min(after, len(run)) - 1] for run in runs] for after in marks}
    return {
        "recording": recording.name,
        "settings": len(recording.results),
        "default_regret": recording.regret(Policy()),
        "best_setting_regret": recording.best_single_regret,
        "method": method,
        "seeds": seeds,
        "launches": longest,
        "regret": {str(after): {"mean": statistics.fmean(r), "worst": max(r)} for after, r in regrets.items()},
        "launches_within": {f"{share:g}": [launches_within(run, share) for run in runs] for share in WITHIN},
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Write one table per recording, one line per method."""
    for name in dict.fromkeys(found["recording"] for found in rows):
        mine = [found for found in rows if found["recording"] == name]
        default, single = (f"{mine[0][key] * 100:.1f} %" for key in ("default_regret", "best_setting_regret"))
        print(f"{name}: {mine[0]['settings']} settings were measured; over the best policy that they allow,")
        print(f"the default has a regret of {default} and the best single setting one of {single}")
        marks = sorted({int(after) for found in mine for after in found["regret"]})
        titles = [f"after {mark}" for mark in marks]
        print_table(
            ("method", "seeds", *titles, *(f"launches to {share * 100:g} %" for share in WITHIN)),
            [
                (
                    found["method"],
                    str(found["seeds"]),
                    *(_regret(found["regret"].get(str(mark))) for mark in marks),
                    *(_launches(found["launches_within"][f"{share:g}"]) for share in WITHIN),
                )
                for found in mine
            ],
            numbers=("seeds", *titles),
            caption="regret: mean (worst) over seeds; launches: mean of the seeds that came to stay within",
        )


def _regret(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{found['mean'] * 100:.1f} % ({found['worst'] * 100:.1f} %)"


def _launches(found: Sequence[int | None]) -> str:
    reached = [launches for launches in found if launches is not None]
    if not reached:
        return f"never in {len(found)}"
    missing = f", never in {len(found) - len(reached)}" if len(reached) < len(found) else ""
    return f"{statistics.fmean(reached):.1f}{missing}"


def recordings(study: str | None, storage: str | None, files: Sequence[Path]) -> Iterator[Recording]:
    """Yield what to search: a stored study, or every mix on the landscapes of some tables.

    Raises:
        NccltError: a study or table that cannot be read or has too little.
    """
    if study is not None:
        with open_to_read(storage) as store:
            found = store.studies.get(study)
            trials = store.trials.find(found.id)
        yield recorded(f"study {found.name}", found.cluster, found.workload, trials, found.printed_costs)
        return
    cases, left_out = all_cases(files)
    for reason in [*left_out, *dict.fromkeys(f"{c.landscape}: {c.note}" for c in cases if c.note)]:
        print(reason, file=sys.stderr)
    for case in cases:
        launches = [case.launch(setting, 0, seed=0, noise=Noise(sigma=0)) for setting in case.settings]
        measured = [
            _trial(n, setting, 0, result, case.workload)
            for n, (setting, result) in enumerate(zip(case.settings, launches, strict=True))
        ]
        yield recorded(f"{case.landscape}, {case.mix}", case.cluster, case.workload, measured)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", help="id, start of an id, or name")
    parser.add_argument("--storage", help="URL of the store; default: as `ncclt studies list`")
    parser.add_argument("--landscape", action="append", type=Path, default=[], metavar="FILE.csv")
    parser.add_argument("--method", action="append", choices=METHODS, help="repeatable; default: ours and random")
    parser.add_argument("--seeds", type=int, default=10, help="searches of each method")
    parser.add_argument("--launches", type=int, default=20, help="of each search, the default's included")
    parser.add_argument("--json", action="store_true", help="one document with rows")
    options = parser.parse_args(argv)
    if (options.study is None) == (not options.landscape):
        parser.error("give a study, or --landscape FILE.csv")
    if options.seeds < 1 or options.launches < 2:
        parser.error("--seeds must be at least 1, and --launches at least 2")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    methods = dict.fromkeys(options.method or ("ours", "random"))
    try:
        rows = [
            row(recording, method, seeds=options.seeds, launches=options.launches)
            for recording in recordings(options.study, options.storage, options.landscape)
            for method in methods
        ]
    except NccltError as error:
        print(f"bench/replay.py: {error.message}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print_rows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

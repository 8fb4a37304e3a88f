"""Is a choice of the calibration good, or good for the systems that it was chosen on? And what do recordings allow?

`simulator.py` has one set of probes per system, and a single other probe may change tau by 0.1. Here every system with
default curves and twenty forced points or more is probed several times: with all of its points as candidates, then with
random halves of them. Variants of the calibration are compared on the same halves, as means over them:

    present       as it is
    sigma ...     what the fit takes for noise (0.08)
    channels 3    the NCCL default may also have three times the channels of its model
    misfit 0.4    the design takes the mechanisms for less exact (0.25)
    shares 0.5    rates of LL, LL128 and trees against those of Simple and rings vary half as much between machines

Held out: the systems in the order of their names are cut into even and odd ones. The variant of least mean regret on
one half is reported on the other. A variant that wins where it was chosen and loses there is chance.

Repeated: where each point was recorded twice, tau and regret of the one recording as a prediction of the other. No
model can be expected to be better. Launched (--launches): twelve whole settings are probed at all sizes, as `--probe`
does, and the other settings are scored; of systems with 24 settings or more.

    python bench/simulator_choices.py [--json] [--landscape FILE ...] [--designs 2] [--launches]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from landscapes import DATA, read_tables
from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.errors import NccltError
from ncclt.measure.simulated import calibrate as fitting
from ncclt.measure.simulated.calibrate import calibrate, choose_probes
from ncclt.measure.simulated.landscape import curves_of
from ncclt.measure.simulated.link_model import BETWEEN, WITHIN
from simulator import (
    FEWEST_SETTINGS,
    ITERATIONS,
    PROBES,
    ObservedPoint,
    Row,
    System,
    all_systems,
    calibrated,
    row_of,
)

FEWEST_POINTS, FEWEST_LAUNCHES = 20, 24
SHARES = [f"{of}.{what}" for of in ("link", "channel", "net", "net_channel") for what in ("ll", "ll128", "tree")]
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "present": {},
    "sigma 0.05": {"_SIGMA": 0.05},
    "sigma 0.12": {"_SIGMA": 0.12},
    "channels 3": {"_OWN_CHANNELS": (0.5, 1.0, 2.0, 3.0)},
    "misfit 0.4": {"_MISFIT": 0.4},
    "shares 0.5": {
        "_PRIOR": np.array(
            [usual * (0.5 if name in (*SHARES, "hop.tree") else 1) for name, usual in (WITHIN | BETWEEN).items()]
        )
    },
}
SCORES = ("error_median", "error_p90", "tau", "regret_mean")
Scores = dict[str, float]


@contextmanager
def constants(changed: Mapping[str, object]) -> Iterator[None]:
    """Run a block with other constants of the calibration."""
    kept = {name: getattr(fitting, name) for name in changed}
    for name, value in changed.items():
        setattr(fitting, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(fitting, name, value)


def _start(system: System) -> Cluster:
    return replace(system.cluster, calibration=calibrate(system.cluster, system.default))


def designed(system: System, design: int, changed: Mapping[str, object]) -> Row:
    """Return the scores of a variant after the probes of one design; design 0 has all points as candidates."""
    draw = random.Random(design)
    part = [one for one in system.forced if design == 0 or draw.random() < 0.5]
    with constants(changed):
        count = min(PROBES, len(part) // 2)
        chosen = choose_probes(_start(system), system.default, [[one] for one in part], count)
        probes = [part[position] for position in chosen]
        predict = calibrated(system, [*system.default, *probes])
    left = [one for one in system.forced if one not in probes]
    return row_of(system, "forced", "probed", [(one, predict(one.setting, one.message)) for one in left])


def launched(system: System) -> Row | None:
    """Return the scores of the settings that were not among a dozen whole launches; None if there are too few."""
    launches: dict[Setting, list[ObservedPoint]] = {}
    for one in system.forced:
        launches.setdefault(one.setting, []).append(one)
    if len(launches) < FEWEST_LAUNCHES:
        return None
    chosen = choose_probes(_start(system), system.default, list(launches.values()), PROBES)
    probed = {list(launches)[position] for position in chosen}
    seen = [one for one in system.forced if one.setting in probed]
    predict = calibrated(system, [*system.default, *seen])
    left = [one for one in system.forced if one.setting not in probed]
    return row_of(system, "forced", "launched", [(one, predict(one.setting, one.message)) for one in left])


def repeated(path: Path) -> list[dict[str, object]]:
    """Return how well the one recording of a system predicts the other, where there are two of each point."""
    found = []
    for original in read_tables(path)[0]:
        curves = curves_of(original.rows)
        pairs: dict[tuple[object, int], list[tuple[float, float]]] = {}
        for (collective, setting), curve in curves.items():
            for size, times in curve if not setting.is_default else ():
                if len(times) > 1:
                    pairs.setdefault((collective, size), []).append((times[0], times[1]))
        taus, regrets = [], []
        for ones in pairs.values():
            if len(ones) >= FEWEST_SETTINGS:
                taus.append(float(kendalltau(*zip(*ones, strict=True)).statistic))
                for first, second in ((0, 1), (1, 0)):
                    pick = min(ones, key=lambda times, by=first: times[by])
                    regrets.append(pick[second] / min(times[second] for times in ones) - 1)
        if taus:
            name = f"{path.stem} {original.rows[0].nodes}x{original.rows[0].gpus_per_node}"
            scores = {"tau": round(statistics.mean(taus), 3), "regret_mean": round(statistics.mean(regrets), 4)}
            found.append({"system": name, **scores})
    return found


def _mean(rows: Sequence[Row]) -> Scores:
    return {name: round(statistics.mean(getattr(row, name) or 0.0 for row in rows), 4) for name in SCORES}


def held_out(scores: Mapping[str, Mapping[str, Scores]]) -> list[dict[str, object]]:
    """Return, for each half of the systems, the variant that is best on the other half, and its scores here.

    Args:
        scores: system -> variant -> its scores.
    """
    names = sorted(scores)
    found = []
    for chosen_on, reported_on in ((names[::2], names[1::2]), (names[1::2], names[::2])):
        if not chosen_on or not reported_on:
            continue

        def over(part: Sequence[str], variant: str) -> Scores:
            return {
                name: round(statistics.mean(scores[system][variant][name] for system in part), 4) for name in SCORES
            }

        best = min(VARIANTS, key=lambda variant: over(chosen_on, variant)["regret_mean"])
        found.append(
            {
                "chosen_on": len(chosen_on),
                "reported_on": len(reported_on),
                "variant": best,
                "scores": over(reported_on, best),
                "present": over(reported_on, "present"),
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison, or with --json one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--landscape",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE.csv",
        help="tables of measurements instead of the public ones",
    )
    parser.add_argument("--designs", type=int, default=2, help="sets of probes of each system")
    parser.add_argument("--launches", action="store_true", help="also probe whole settings")
    arguments = parser.parse_args(argv)
    scores: dict[str, dict[str, Scores]] = {}
    launches = []
    for system in all_systems(arguments.landscape):
        if ITERATIONS in system.name or len(system.forced) < FEWEST_POINTS or not system.default:
            continue
        scores[system.name] = {
            variant: _mean([designed(system, design, changed) for design in range(max(1, arguments.designs))])
            for variant, changed in VARIANTS.items()
        }
        if arguments.launches and (row := launched(system)):
            launches.append({"system": system.name, **_mean([row])})
        print(f"{system.name}: done", file=sys.stderr)
    if not scores:
        print("no table has a default curve and twenty forced points\nhint: give --landscape FILE.csv", file=sys.stderr)
        return 1
    again = []
    for path in arguments.landscape or sorted(DATA.glob("*.csv")):
        try:
            again += repeated(path)
        except NccltError as error:
            print(f"{path.name}: skipped: {error.message}", file=sys.stderr)
    halves = held_out(scores)
    if arguments.json:
        print(json.dumps({"systems": scores, "held_out": halves, "repeated": again, "launched": launches}))
        return 0
    print(f"{'system':52} {'variant':12} {'error':>7} {'p90':>7} {'tau':>6} {'regret':>7}")
    rows = [(name, variant, found) for name, variants in scores.items() for variant, found in variants.items()]
    rows += [(str(one["system"]), "launched", one) for one in launches]  # type: ignore[misc]
    for half in halves:
        label = f"chosen on {half['chosen_on']} systems, on {half['reported_on']} others"
        rows += [(label, str(half["variant"]), half["scores"]), (label, "present", half["present"])]  # type: ignore[list-item]
    for name, variant, found in rows:
        error, p90, tau, regret = (found[score] for score in SCORES)
        print(f"{name[:52]:52} {variant:12} {error:7.1%} {p90:7.1%} {tau:6.2f} {regret:7.1%}")
    for one in again:
        print(f"{one['system']!s:52} {'repeated':12} {'':7} {'':7} {one['tau']:6.2f} {one['regret_mean']:7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

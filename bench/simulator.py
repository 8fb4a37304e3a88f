"""How far is the simulated cluster from real ones, in time and in the order of settings, and what does calibration add?

Every table is cut into systems (one machine, shape, version and condition). Per system, five models:

    preset        the simulated cluster as the table describes the machine
    calibrated    its constants fitted to the default's curves
    probed        and to a dozen forced points, chosen before their times are known, which no model is scored on
    nccl          NCCL's own cost model; it does not know channels
    alpha_beta    latency + size / bandwidth: of the default, and where two or more probes ran it, of each algorithm and
                  protocol

`default` rows: the default's times, five-fold over the sizes: no size is predicted by a fit that saw it. `forced` rows:
the settings that were not probed. tau is Kendall's rank correlation of predicted and measured times over the settings
of one size, regret how much slower than the best setting recorded at that size the model's pick is; both are averaged
over the sizes with four or more settings. Where a model ties settings, the mean of their times counts.

    python bench/simulator.py [--json] [--landscape FILE ...] [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from landscapes import DATA, Original, read_tables
from ncclt.core.calibration import Calibration
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.errors import NccltError
from ncclt.measure.simulated import SimulatedRunner
from ncclt.measure.simulated.calibrate import ObservedPoint, calibrate, choose_probes
from ncclt.measure.simulated.landscape import curves_of
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.search.space import cluster_space

PROBES, TRIALS, FOLDS = 12, 100_000, 5
FEWEST_SIZES, FEWEST_SETTINGS = 5, 4
MOST_SHAPES = 4  # default-only systems of one machine that are scored: the public tables hold a hundred of one

ITERATIONS = " (iterations)"
"""Part of the name where a time is that of an iteration, computation included: scored, and in a median of its own."""

SEEN = (
    "a100_alcf_",
    "abci2_",
    "gh200_alps_",
    "h100_aws_p5_",
    "h100_nvswitch_",
    "l40s_a100_",
    "mi355x_",
    "rtx4090x4_",
)
"""Tables from which `ncclt.measure.simulated` has constants; only the others show its accuracy on a new system."""

MODELS = ("preset", "calibrated", "probed", "nccl", "alpha_beta")
Predict = Callable[[Setting, Message], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What was measured on one machine under one condition."""

    name: str
    cluster: Cluster
    default: tuple[ObservedPoint, ...]
    forced: tuple[ObservedPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The scores of one model; errors, regrets: 0.1 = 10 %; None where too few settings were recorded."""

    system: str
    kind: str
    model: str
    error_median: float | None
    error_p90: float | None
    tau: float | None
    regret_mean: float | None
    regret_worst: float | None
    points: int


def systems_of(path: Path) -> tuple[list[System], list[str]]:
    """Return the systems of a table, and what of it was left out.

    Raises:
        NccltError: the table cannot be read.
    """
    originals, notes = read_tables(path)
    found: list[System] = []
    quiet: dict[str, list[System]] = {}
    left_out, small = list(notes), 0
    for original in originals:
        one = _system(original)
        if one is None:
            small += 1
        elif one.forced:
            found.append(one)
        else:
            quiet.setdefault(original.rows[0].system, []).append(one)
    for machine, ones in quiet.items():
        kept = [ones[i] for i in sorted(set(np.linspace(0, len(ones) - 1, min(len(ones), MOST_SHAPES)).astype(int)))]
        found += kept
        if len(kept) < len(ones):
            left_out.append(
                f"{path.stem}: {len(kept)} of {len(ones)} default-only systems of {machine[:40]} are scored"
            )
    if small:
        left_out.append(
            f"{path.stem}: {small} of {len(originals)} groups skipped: the default at fewer than {FEWEST_SIZES} sizes, "
            f"and fewer than {FEWEST_SETTINGS} forced settings at every size"
        )
    names: dict[str, int] = {}
    for position, one in enumerate(found):
        names[one.name] = names.get(one.name, 0) + 1
        if names[one.name] > 1:
            found[position] = replace(one, name=f"{one.name} #{names[one.name]}")
    return found, left_out


def _system(original: Original) -> System | None:
    first, cluster = original.rows[0], original.cluster
    shared = re.search(r"(\d+) (?:MPI )?ranks sharing", first.system)
    if shared:
        # Ranks that share a GPU over sockets are nodes of one.
        cluster = replace(
            cluster, nodes=int(shared[1]), gpus_per_node=1, fabric="ethernet", nics_per_node=1, nic_gbps=1.25
        )
    seen = [
        ObservedPoint(
            nodes=cluster.nodes,
            setting=setting,
            message=Message(collective=collective, dtype="float32", size_bytes=size),
            time_us=statistics.median(times),
        )
        for (collective, setting), curve in curves_of(original.rows).items()
        for size, times in curve
    ]
    default = tuple(one for one in seen if one.setting.is_default)
    forced = tuple(one for one in seen if not one.setting.is_default and _differs(one))
    sizes = {(one.message.collective, one.message.size_bytes) for one in default}
    if not any(len(g) >= FEWEST_SETTINGS for g in _grids(forced).values()):
        forced = ()
    if len(sizes) < FEWEST_SIZES:
        default = ()
    if not default and not forced:
        return None
    name = original.name + (ITERATIONS if "iteration" in original.condition else "")
    return System(name=name, cluster=cluster, default=default, forced=forced)


def _differs(one: ObservedPoint) -> bool:
    """Return whether a setting forces what the models know; sockets and queues are beyond all of them."""
    forced = one.setting.algorithm or one.setting.protocol or one.setting.channels
    return bool(forced) and {name for name, _ in one.setting.parameters} <= {"BUFFSIZE", "NTHREADS"}


def _grids(seen: Iterable[ObservedPoint]) -> dict[Message, list[ObservedPoint]]:
    found: dict[Message, list[ObservedPoint]] = {}
    for one in seen:
        found.setdefault(one.message, []).append(one)
    return found


def _simulated(cluster: Cluster, calibration: Calibration | None = None) -> Predict:
    return SimulatedRunner(replace(cluster, calibration=calibration), seed=0, sigma=0).expected_us


def calibrated(system: System, seen: Sequence[ObservedPoint]) -> Predict:
    """Return the model that is fitted to some times of a system."""
    return _simulated(system.cluster, calibrate(system.cluster, seen) if len(seen) >= FEWEST_SETTINGS else None)


def _nccl(cluster: Cluster) -> Predict:
    def predict(setting: Setting, message: Message) -> float:
        choice = nccl_choice(
            message.collective,
            message.size_bytes,
            build_topology(cluster),
            algorithm=setting.algorithm,
            protocol=setting.protocol,
        )
        return choice.time_us if choice else math.inf

    return predict


def _alpha_beta(default: Sequence[ObservedPoint], probes: Sequence[ObservedPoint]) -> Predict:
    """Return the fit of each collective's default, and of each algorithm and protocol with two probes or more."""
    points: dict[object, list[ObservedPoint]] = {}
    for one in default:
        points.setdefault(one.message.collective, []).append(one)
    for one in probes:
        points.setdefault((one.message.collective, one.setting.algorithm, one.setting.protocol), []).append(one)
    lines = {key: _line(found) for key, found in points.items() if len({o.message.size_bytes for o in found}) > 1}

    def predict(setting: Setting, message: Message) -> float:
        key = (message.collective, setting.algorithm, setting.protocol)
        line = lines.get(key) or lines.get(message.collective)
        return line[0] + line[1] * message.size_bytes if line else math.inf

    return predict


def _line(seen: Sequence[ObservedPoint]) -> tuple[float, float]:
    """Return (alpha, beta) of least relative error in the absolute sense, both at least 0."""
    sizes = np.array([one.message.size_bytes for one in seen], dtype=float)
    times = np.array([one.time_us for one in seen])
    weights = 1 / times
    for _ in range(20):
        rows = np.stack([weights, weights * sizes], axis=1)
        alpha, beta = np.linalg.lstsq(rows, weights * times, rcond=None)[0]
        alpha, beta = max(alpha, 0.5 * times.min()), max(beta, 1e-9)
        weights = 1 / times / np.sqrt(np.maximum(np.abs(alpha + beta * sizes - times) / times, 0.01))
    return float(alpha), float(beta)


def _probes(system: System) -> list[ObservedPoint]:
    """Return the forced points to launch: all that one can know beforehand is the fit to the default's times."""
    first = calibrate(system.cluster, system.default) if len(system.default) >= FEWEST_SETTINGS else None
    start = replace(system.cluster, calibration=first)
    # A system with few settings keeps most of them for the score.
    count = min(PROBES, len(system.forced) // 4)
    return [system.forced[i] for i in choose_probes(start, system.default, [[one] for one in system.forced], count)]


def score(system: System) -> list[Row]:
    """Return the rows of one system."""
    plain = {"preset": _simulated(system.cluster), "nccl": _nccl(system.cluster)}
    probes = _probes(system) if system.forced else []
    rows = []
    if system.default:
        pairs: dict[str, list[tuple[ObservedPoint, float]]] = {model: [] for model in MODELS}
        sizes = sorted({one.message.size_bytes for one in system.default})
        for fold in range(FOLDS):
            held = set(sizes[fold::FOLDS])
            rest = [one for one in system.default if one.message.size_bytes not in held]
            fits = {
                "calibrated": calibrated(system, rest),
                "alpha_beta": _alpha_beta(rest, ()),
                **({"probed": calibrated(system, [*rest, *probes])} if probes else {}),
                **plain,
            }
            for model, predict in fits.items():
                pairs[model] += [
                    (one, predict(one.setting, one.message)) for one in system.default if one.message.size_bytes in held
                ]
        rows += [row_of(system, "default", model, found) for model, found in pairs.items() if found]
    if system.forced:
        fits = {
            "calibrated": calibrated(system, system.default),
            "probed": calibrated(system, [*system.default, *probes]),
            "alpha_beta": _alpha_beta(system.default, probes),
            **plain,
        }
        left = [one for one in system.forced if one not in probes]
        for model in MODELS:
            rows.append(row_of(system, "forced", model, [(o, fits[model](o.setting, o.message)) for o in left]))
    return rows


def row_of(system: System, kind: str, model: str, found: Sequence[tuple[ObservedPoint, float]]) -> Row:
    """Return the scores of a model's (point, predicted time)."""
    errors = np.array([abs(guess / one.time_us - 1) for one, guess in found])
    whole = bool(np.isfinite(errors).all())
    guesses = {(one.setting, one.message): guess for one, guess in found}
    taus, regrets = [], []
    for message, ones in _grids(one for one, _ in found).items() if kind == "forced" else ():
        if len(ones) < FEWEST_SETTINGS:
            continue
        times = [one.time_us for one in ones]
        predicted = [guesses[one.setting, message] for one in ones]
        tau = float(kendalltau(times, predicted).statistic)
        taus.append(0.0 if math.isnan(tau) else tau)
        named = [t for t, guess in zip(times, predicted, strict=True) if guess <= min(predicted) * (1 + 1e-9)]
        regrets.append(statistics.mean(named) / min(times) - 1)
    return Row(
        system=system.name,
        kind=kind,
        model=model,
        error_median=round(float(np.median(errors)), 4) if whole else None,
        error_p90=round(float(np.quantile(errors, 0.9)), 4) if whole else None,
        tau=round(statistics.mean(taus), 3) if taus else None,
        regret_mean=round(statistics.mean(regrets), 4) if regrets else None,
        regret_worst=round(max(regrets), 4) if regrets else None,
        points=len(found),
    )


def medians(rows: Sequence[Row]) -> list[Row]:
    """Return the median of each kind and model over all systems, and over those without a constant from them."""
    found = []
    for kind, model in [(kind, model) for kind in ("default", "forced") for model in MODELS]:
        every = [row for row in rows if (row.kind, row.model) == (kind, model)]
        calls = [row for row in every if ITERATIONS not in row.system]
        unseen = [row for row in calls if not row.system.startswith(SEEN)]
        groups = ((every, "all", []), (calls, "without iterations", every), (unseen, "unseen of these", calls))
        for mine, what, wider in groups:
            if mine and mine != wider:
                names = ("error_median", "error_p90", "tau", "regret_mean", "regret_worst")
                columns = {name: _median(getattr(row, name) for row in mine) for name in names}
                points = sum(row.points for row in mine)
                found.append(
                    Row(system=f"median of {len(mine)}, {what}", kind=kind, model=model, points=points, **columns)  # type: ignore[arg-type]
                )
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None


def won(rows: Sequence[Row]) -> tuple[int, int]:
    """Return in how many systems the probed model's regret is no worse than that of both peers, and of how many."""
    regrets: dict[str, Mapping[str, float]] = {}
    for row in rows:
        if row.kind == "forced" and row.regret_mean is not None:
            regrets[row.system] = {**regrets.get(row.system, {}), row.model: row.regret_mean}
    better = [r for r in regrets.values() if r["probed"] <= min(r["nccl"], r["alpha_beta"])]
    return len(better), len(regrets)


def trials_s() -> float:
    """Return the processor time of 100,000 simulated launches of BERT on 16 ranks, s."""
    folder = Path(__file__).resolve().parents[1] / "profiles"
    document = tomllib.loads((folder / "clusters" / "dgx-a100.toml").read_text(encoding="utf-8"))
    cluster = Cluster.from_document(document).sized(nodes=2)
    workload = Workload.from_document(json.loads((folder / "workloads" / "bert.json").read_text(encoding="utf-8")))
    placed = workload.placed(nodes=2, gpus_per_node=8)
    messages = [calls.message for calls in placed.messages]
    settings = cluster_space(placed.collectives, cluster, parameters={}).distinct
    runner = SimulatedRunner(cluster, seed=0)
    start = time.process_time()
    for trial in range(TRIALS):
        runner.measure(settings[trial % len(settings)], messages, repeat=trial // len(settings))
    return round(time.process_time() - start, 2)


def all_systems(paths: Sequence[Path]) -> Iterator[System]:
    """Yield the systems of tables, or of the public ones; what of them is left out goes to stderr."""
    for path in paths or sorted(DATA.glob("*.csv")):
        try:
            systems, left_out = systems_of(path)
        except (NccltError, OSError) as error:
            systems, left_out = [], [f"{path.name}: skipped: {error}"]
        print(*left_out, sep="\n", end="\n" if left_out else "", file=sys.stderr)
        yield from systems


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or with --json one document."""
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
    parser.add_argument("--quick", action="store_true", help="only systems with forced settings")
    arguments = parser.parse_args(argv)
    rows: list[Row] = []
    for system in all_systems(arguments.landscape):
        if system.forced or not arguments.quick:
            try:
                rows += score(system)
            except NccltError as error:
                print(f"{system.name}: skipped: {error.message}", file=sys.stderr)
    if not rows:
        print("no table has times to compare with\nhint: give --landscape FILE.csv", file=sys.stderr)
        return 1
    if arguments.json:
        document = {"rows": [asdict(row) for row in rows], "medians": [asdict(row) for row in medians(rows)]}
        print(json.dumps(document if arguments.landscape else document | {"trials_s": trials_s()}))
        return 0
    print(f"{'system':52} {'kind':8} {'model':10} {'error':>7} {'p90':>7} {'tau':>6} {'regret':>7} {'worst':>7} points")
    for row in [*rows, *medians(rows)]:
        scores = (row.error_median, row.error_p90, row.regret_mean, row.regret_worst)
        error, p90, regret, worst = (_shown(value, "7.1%") for value in scores)
        tau = _shown(row.tau, "6.2f")
        print(f"{row.system[:52]:52} {row.kind:8} {row.model:10} {error} {p90} {tau} {regret} {worst} {row.points}")
    ahead, of = won(rows)
    if of:
        print(f"regret of probed no worse than both peers': {ahead} of {of} systems")
    if not arguments.landscape:
        print(f"{TRIALS:,} simulated launches of BERT on 16 ranks: {trials_s():.1f} s of one core")
    return 0


def _shown(value: float | None, form: str) -> str:
    return format("-", f">{form.split('.')[0]}") if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())

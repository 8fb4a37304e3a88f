"""What the benches search in: recorded landscapes, each with the times of every setting.

A public table holds one landscape per system, shape, version and condition; every one with enough settings is taken.
Where no row is the NCCL default, the one that forces least (its own pair, the most channels) stands in for it, and is
named. A landscape of ncclt (docs/cluster-admin/landscapes.md) is read as ncclt reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT, MAX_CHANNELS, Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import InputError, NccltError, reason
from ncclt.measure.replay import Landscape, load_landscape
from ncclt.measure.replay.landscape import Curve, curves_of
from ncclt.measure.replay.landscape_rows import LandscapeRow, read_rows
from ncclt.search.space import SearchSpace, recorded_space

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "profiles"))
from generate_landscapes import Original, read_originals  # noqa: E402

DATA = ROOT.parent / "shared" / "data" / "measurements"
FEWEST_SETTINGS, FEWEST_GIVEN = 12, 2
"""Forced settings of a landscape: of the public tables, where fewer are no search; and of a table one asked for."""

FEWEST_FOR_P95 = 20
"""Values below which there is no value that 95 % do not exceed."""

_MOST_SIZES = 12
_KIB, _MIB = 1024, 1 << 20
_SINGLES = {"64KiB": 64 * _KIB, "1MiB": _MIB, "16MiB": 16 * _MIB, "64MiB": 64 * _MIB, "256MiB": 256 * _MIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload on one landscape.

    Attributes:
        landscape, mix: names.
        note: what the reader must know about the landscape.
        cluster: where it was recorded.
        workload: placed, cut to what the landscape covers.
        space: what may be launched.
        time_us: true time of a message under a setting, infinite where there is none.
        settings: all of the space, the default first.
        table: their true times, settings x messages, µs.
    """

    landscape: str
    mix: str
    note: str
    cluster: Cluster
    workload: Workload
    space: SearchSpace
    time_us: Callable[[Setting, Message], float]
    settings: tuple[Setting, ...]
    table: NDArray[np.float64]

    @property
    def calls(self) -> NDArray[np.float64]:
        return np.array([calls.calls_per_step for calls in self.workload.messages])

    def covers(self, message: Message) -> bool:
        """Return whether a message has a time under every setting."""
        return all(math.isfinite(self.time_us(setting, message)) for setting in self.settings)

    @property
    def default_us(self) -> float:
        """Return the time per step under the NCCL default."""
        return float(self.table[0] @ self.calls)

    @property
    def ideal_us(self) -> float:
        """Return the time per step of the best policy; its rules share process-wide parameters."""
        groups: dict[object, list[int]] = {}
        for index, setting in enumerate(self.settings):
            groups.setdefault(setting.parameters, []).append(index)
        return min(float(self.table[inside].min(axis=0) @ self.calls) for inside in groups.values())

    def policy_us(self, policy: Policy) -> float:
        """Return the true time per step of a policy."""
        return sum(
            c.calls_per_step * self.time_us(policy.setting_for(c.message), c.message) for c in self.workload.messages
        )

    def launch(self, setting: Setting, repeat: int, *, seed: int, sigma: float) -> TrialResult:
        """Simulate one launch, with noise of `sigma` in the log of each time; all methods see the same noise."""
        digest = hashlib.sha256(f"{seed}|{setting.digest()}|{repeat}|{self.mix}".encode()).digest()
        draw = np.random.default_rng(list(digest))
        factors = np.exp(sigma * draw.standard_normal(len(self.workload.messages)))
        return TrialResult(
            outcome=Outcome.OK,
            measurements=tuple(
                Measurement(
                    message=calls.message,
                    samples_us=(float(self.time_us(setting, calls.message) * factor),),
                    wrong=None,
                )
                for calls, factor in zip(self.workload.messages, factors, strict=True)
            ),
        )


def mixes(collective: Collective) -> dict[str, Workload]:
    """Return the workloads of the benches; where a landscape knows one collective only, all of it is that one."""
    sizes_and_calls = {
        "small": [(size * _KIB, 20.0) for size in (4, 8, 16, 32, 64)],
        "middle": [(size * _KIB, 4.0) for size in (128, 256, 512, 1024, 2048, 4096)],
        **{name: [(size, 1.0)] for name, size in _SINGLES.items()},
    }
    workloads = {name: _workload(name, collective, rows) for name, rows in sizes_and_calls.items()}
    for name, file in (("bert", "bert"), ("nasnet", "nasnetmobile-unfused")):
        document = json.loads((ROOT / "profiles" / "workloads" / f"{file}.json").read_text(encoding="utf-8"))
        shipped = Workload.from_document(document)
        rows = [(c.message.size_bytes, c.calls_per_step) for c in shipped.messages]
        workloads[name] = shipped if collective is Collective.ALL_REDUCE else _workload(name, collective, rows)
    return workloads


def _workload(name: str, collective: Collective, rows: Sequence[tuple[int, float]]) -> Workload:
    merged: dict[int, float] = {}
    for size, calls in rows:
        merged[size] = merged.get(size, 0.0) + calls
    messages = tuple(
        MessageCalls(message=Message(collective=collective, dtype="float32", size_bytes=size), calls_per_step=calls)
        for size, calls in merged.items()
    )
    return Workload(name=name, messages=messages, provenance=Provenance(source="bench"))


def recorded_cases(
    path: Path, *, fewest: int = FEWEST_SETTINGS, collective: Collective | None = None
) -> tuple[list[Case], list[str]]:
    """Return the workloads on every landscape of a table that has enough settings.

    Where the sizes of a landscape suit none of the mixes, its own sizes, one call each, are the workload.

    Args:
        path: public table or landscape, CSV.
        fewest: forced settings that a landscape must have.
        collective: of the workloads; None = all_reduce where it was recorded.

    Returns:
        The cases, and what of the table was left out and why.

    Raises:
        InputError: the table cannot be read.
    """
    cases: list[Case] = []
    landscapes, left_out = _landscapes(path, fewest)
    for name, note, landscape in landscapes:
        collectives = sorted({c for c, s in landscape.curves if not s.is_default})
        if collective is not None and collective not in collectives:
            left_out.append(f"{name}: no settings of {collective} were recorded")
            continue
        main = collective or (Collective.ALL_REDUCE if Collective.ALL_REDUCE in collectives else collectives[0])
        built = [_recorded_case(name, note, landscape, mix, w, fewest) for mix, w in mixes(main).items()]
        if not any(built):
            own = [(size, 1.0) for size, _ in _spread(landscape.curves[main, DEFAULT])]
            built = [_recorded_case(name, note, landscape, "own", _workload("own", main, own), fewest)]
        if not any(built):
            left_out.append(f"{name}: fewer than {max(2, fewest)} settings were recorded at the same sizes")
        cases += [case for case in built if case is not None]
    return cases, left_out


def _recorded_case(
    name: str, note: str, landscape: Landscape, mix: str, workload: Workload, fewest: int
) -> Case | None:
    """Return a mix on a landscape, None where too little of it was recorded."""
    cluster = landscape.cluster
    placed = workload.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
    # What is only extrapolated is no ground for a comparison.
    largest = {collective: curve[-1][0] for (collective, s), curve in landscape.curves.items() if s.is_default}
    messages = tuple(
        c
        for c in placed.messages
        if landscape.covers(c.message) and c.message.size_bytes <= largest[c.message.collective]
    )
    settings = [s for s in landscape.settings() if all(landscape.time_samples(s, c.message) for c in messages)]
    if not messages or len(settings) < max(2, fewest):
        return None
    placed = replace(placed, messages=messages)
    return build_case(name, mix, note, cluster, placed, recorded_space(settings), _recorded_time(landscape))


def _spread(curve: Curve) -> list[tuple[int, tuple[float, ...]]]:
    """Return at most `_MOST_SIZES` points of a curve, evenly spread."""
    positions = np.linspace(0, len(curve) - 1, min(len(curve), _MOST_SIZES)).round().astype(int)
    return [curve[position] for position in positions]


def _recorded_time(landscape: Landscape) -> Callable[[Setting, Message], float]:
    def time_us(setting: Setting, message: Message) -> float:
        samples = landscape.time_samples(setting, message)
        # Disturbances only make slower: of two repetitions that contradict each other the faster one counts.
        return statistics.median_low(samples) if samples else math.inf

    return time_us


def read_tables(path: Path) -> tuple[list[Original], tuple[str, ...]]:
    """Return the landscapes of a public table, or the one of a landscape of ncclt, and notes on rows left out.

    Raises:
        InputError: the table cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            columns = file.readline().strip().split(",")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}", hint="give a table in CSV") from error
    if "is_default" not in columns:
        return read_originals(path)
    cluster = load_landscape(path).cluster
    return [Original(table=path.stem, condition="", cluster=cluster, rows=read_rows(path))], ()


def _landscapes(path: Path, fewest: int) -> tuple[list[tuple[str, str, Landscape]], list[str]]:
    """Return (name, note, landscape) of every landscape of a table, and what was left out."""
    landscapes: dict[str, tuple[str, str, Landscape]] = {}
    originals, notes = read_tables(path)
    left_out, small = list(notes), 0
    for original in originals:
        if len({row.setting for row in original.rows if not row.setting.is_default}) < max(2, fewest):
            small += 1
            continue
        name = original.name
        if name in landscapes:
            name = f"{name} #{len(landscapes) + 1}"
        try:
            landscapes[name] = (name, *_landscape(original))
        except NccltError as error:
            left_out.append(f"{name}: {error.message}")
    if small:
        left_out.append(
            f"{path.name}: {small} of {len(originals)} groups of rows have fewer than {max(2, fewest)} forced settings"
        )
    return list(landscapes.values()), left_out


def _landscape(original: Original) -> tuple[str, Landscape]:
    """Return what stands in for the default, if anything does, and the landscape of a group of rows."""
    chosen, note = _with_default(list(original.rows))
    curves = curves_of(chosen)
    defaults = {collective for collective, setting in curves if setting.is_default}
    if not any(collective in defaults for collective, setting in curves if not setting.is_default):
        raise InputError(
            "no collective has both a default and forced settings", hint="see docs/cluster-admin/landscapes.md"
        )
    return note, Landscape(
        cluster=original.cluster, curves={key: curve for key, curve in curves.items() if key[0] in defaults}
    )


def _with_default(rows: list[LandscapeRow]) -> tuple[list[LandscapeRow], str]:
    """Return rows with a default among them, and what stands in for it if none was recorded."""
    if any(row.setting.is_default for row in rows):
        return rows, ""
    own = max(
        (row.setting for row in rows), key=lambda s: (not s.algorithm, not s.parameters, s.channels or MAX_CHANNELS)
    )
    if own.algorithm is not None:
        raise InputError("no row is the NCCL default or near it", hint="rows with blank algo and proto are needed")
    renamed = [replace(row, setting=DEFAULT) if row.setting == own else row for row in rows]
    return renamed, f"no default was recorded: {own.label} stands in for it"


def build_case(
    landscape: str,
    mix: str,
    note: str,
    cluster: Cluster,
    workload: Workload,
    space: SearchSpace,
    time_us: Callable[[Setting, Message], float],
) -> Case:
    times_us: dict[tuple[Setting, Message], float] = {}

    def remembered(setting: Setting, message: Message) -> float:
        if (setting, message) not in times_us:
            times_us[setting, message] = time_us(setting, message)
        return times_us[setting, message]

    settings = (DEFAULT, *(s for s in space.distinct if not s.is_default))
    table = np.array([[remembered(s, c.message) for c in workload.messages] for s in settings])
    return Case(
        landscape=landscape,
        mix=mix,
        note=note,
        cluster=cluster,
        workload=workload,
        space=space,
        time_us=remembered,
        settings=settings,
        table=table,
    )


def all_cases(files: Sequence[Path]) -> tuple[list[Case], list[str]]:
    """Return the cases of the given tables, or where none is given of all public ones.

    Returns:
        The cases, and what was left out and why.
    """
    cases: list[Case] = []
    left_out: list[str] = []
    if not files and not DATA.is_dir():
        left_out.append(f"no recorded landscape: there is no {DATA.parent.name}/{DATA.name} beside the repository")
    for path in files or sorted(DATA.glob("*.csv")):
        try:
            recorded, reasons = recorded_cases(path, fewest=FEWEST_GIVEN if files else FEWEST_SETTINGS)
        except (NccltError, OSError) as error:
            recorded, reasons = [], [f"{path.name}: skipped: {error}"]
        cases += recorded
        left_out += reasons
    return cases, left_out


def percentile_95(values: Sequence[int]) -> int | None:
    """Return the least value that 95 % do not exceed; None for fewer than `FEWEST_FOR_P95`."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if len(values) >= FEWEST_FOR_P95 else None

"""Measure a landscape of real NCCL on one GPU: algorithm x protocol x channels x BUFFSIZE x the sizes of a workload.

    python bench/gpu/landscape.py --output FOLDER [--model bert] [--minutes 8] [--buffsizes 1048576,8388608]

Writes FOLDER/landscape.csv and .toml, which `ncclt tune --landscape` reads, and FOLDER/landscape.json with where it
comes from and what failed. All are whole at any time; the same command goes on where it was cut off. All settings are
measured in one process that lives on, the default again and again between them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from live import LiveRanks, Place, add_options, place_of
from ncclt.core.algorithms import choices, is_legal
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import cluster_toml
from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import Workload
from ncclt.errors import NccltError, UsageError
from ncclt.measure.replay import load_landscape
from ncclt.measure.replay.landscape_rows import LandscapeRow, read_rows, write_rows
from ncclt.store.shipped import profiles_folder, shipped_workloads

MIB = 1 << 20

CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""As the search tries them (ncclt.search.space); here again, so that a landscape can be recorded without optuna."""

BUFFSIZES = (MIB, 2 * MIB, 8 * MIB, 16 * MIB)
"""Beside NCCL's 4 MiB."""

DEFAULT_EVERY = 6
"""Launches between two of the default: a drift of the machine shows in it."""

HOST_BOUND = 0.8
"""Share of a call's time that the host needs to ask for it, from which on the time says more of Python than of NCCL."""

LICENCE = "Apache-2.0"


def workload_of(model: str) -> Workload:
    """Return a shipped workload.

    Raises:
        UsageError: there is none of that name.
    """
    workloads = shipped_workloads(profiles_folder())
    if model not in workloads:
        raise UsageError(f"no workload {model!r}", hint=f"one of {', '.join(sorted(workloads))}")
    return workloads[model]


def grid(
    messages: Sequence[Message], ranks: LiveRanks, *, most_channels: int, buffsizes: Sequence[int]
) -> list[Setting]:
    """Return every setting, the default not among them: first all without parameters, as they matter most."""
    pairs = choices({m.collective for m in messages}, ranks.cluster)
    ladder: list[int | None] = [None, *(c for c in CHANNELS if c <= most_channels)]
    settings = []
    for parameters in [(), *((("BUFFSIZE", size),) for size in buffsizes)]:
        group = [
            Setting(algorithm=a, protocol=p, channels=channels, parameters=parameters)
            for a, p in pairs
            for channels in ladder
        ]
        settings += [*([Setting(parameters=parameters)] if parameters else []), *group]
    return settings


def turns(settings: Sequence[Setting], done: dict[str, int], *, rounds: int, seed: int) -> Iterator[Setting]:
    """Yield what to launch, in rounds: in the first one group of parameters after the other, later all mixed.

    The default comes first and then after every `DEFAULT_EVERY` launches.
    """
    draw = random.Random(seed)
    for number in range(rounds):
        unmeasured = [s for s in settings if done.get(s.digest(), 0) <= number]
        draw.shuffle(unmeasured)
        if number == 0:
            groups = list(dict.fromkeys(s.parameters for s in settings))
            unmeasured.sort(key=lambda s: groups.index(s.parameters))
        for at, setting in enumerate(unmeasured):
            if at % DEFAULT_EVERY == 0:
                yield DEFAULT
            yield setting
        if unmeasured:
            yield DEFAULT


class Recording:
    """Three files, and their content.

    Args:
        folder: of the files.
        cluster: of all measurements.
        about: what every measurement in them has in common.
    """

    def __init__(self, folder: Path, cluster: Cluster, about: dict[str, Any]) -> None:
        self._csv, self._json, self._toml = (folder / f"landscape.{kind}" for kind in ("csv", "json", "toml"))
        self._cluster = cluster
        self._rows: list[LandscapeRow] = []
        self._points: Counter[tuple[Setting, Collective, str, int]] = Counter()
        self.about = about
        self.launches: dict[str, int] = {}
        self.failures: dict[str, str] = {}
        self._host_bound: dict[str, int] = {}
        if self._json.exists():
            self._resume()

    def keep(self, setting: Setting, result: TrialResult, issue_us: dict[Message, float]) -> None:
        """Add a launch; files are replaced as a whole."""
        self.launches[setting.digest()] = self.launches.get(setting.digest(), 0) + 1
        if result.outcome is not Outcome.OK:
            self.failures[setting.label] = f"{result.outcome}: {result.detail}"
        for measured in result.measurements:
            if not measured.wrong:
                self._add(self._row(setting, measured))
            if issue_us[measured.message] > HOST_BOUND * measured.time_us:
                label = f"{measured.message.collective} {measured.message.size_bytes}"
                self._host_bound[label] = self._host_bound.get(label, 0) + 1
        self._write()

    def _row(self, setting: Setting, measured: Measurement) -> LandscapeRow:
        message = measured.message
        return LandscapeRow(
            system=self.about["system"],
            gpus=self._cluster.world_size,
            nodes=self._cluster.nodes,
            gpus_per_node=self._cluster.gpus_per_node,
            nccl_version=str(self._cluster.version),
            collective=message.collective,
            dtype=message.dtype,
            size_bytes=message.size_bytes,
            setting=setting,
            time_us=round(measured.time_us, 2),
            in_place=False,
            source=self.about["source"],
        )

    def _add(self, row: LandscapeRow) -> None:
        """Add a row with the number of its repetition."""
        point = (row.setting, row.collective, row.dtype, row.size_bytes)
        self._points[point] += 1
        self._rows.append(replace(row, repetition=self._points[point]))

    def _resume(self) -> None:
        stored = json.loads(self._json.read_text())
        differing = [key for key in _SAME if stored["about"].get(key) != self.about.get(key)]
        if differing:
            raise UsageError(
                f"{self._csv} was measured otherwise: {', '.join(differing)}", hint="give another --output"
            )
        self.about["source"] = stored["about"]["source"]
        self.launches, self.failures = stored["launches"], stored["failures"]
        self._host_bound = stored["host_bound_rows"]
        for row in read_rows(self._csv, is_growing=True):
            self._add(row)

    def _write(self) -> None:
        table = io.StringIO()
        write_rows(self._rows, table)
        sources = (self.about["source"], f"licence: {LICENCE}")
        _replace(self._toml, cluster_toml(replace(self._cluster, sources=sources)))
        _replace(self._csv, table.getvalue())
        document = {
            "about": self.about,
            "launches": self.launches,
            "failures": self.failures,
            "host_bound_rows": self._host_bound,
        }
        _replace(self._json, json.dumps(document, indent=1) + "\n")


_SAME = ("system", "gpus", "nodes", "nccl_version", "interconnect", "driver", "environment", "timing")
"""What must not change between two parts of one landscape."""


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(path.suffix + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def driver_version() -> str:
    """Return the version of the NVIDIA driver, as its kernel module says it; empty where it says nothing."""
    file = Path("/proc/driver/nvidia/version")
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", file.read_text()) if file.is_file() else None
    return version[1] if version else ""


def about(ranks: LiveRanks, channels: int) -> dict[str, Any]:
    """Return what every row has in common, and what nobody could tell from the rows."""
    place, cluster = ranks.place, ranks.cluster
    today = datetime.now(UTC).date().isoformat()
    return {
        "system": f"{ranks.facts['gpu']}, {place.ranks} ranks sharing one GPU ({place.recipe.name})",
        "gpus": cluster.world_size,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "interconnect": "TCP loopback, one process" if place.recipe.network else "direct, within one GPU's memory",
        "nccl_version": cluster.nccl_version,
        "source": f"ncclt bench/gpu/landscape.py, {today}",
        "told": f"{place.ranks} {place.recipe.told}; times of this set-up, no cluster's. Forced by the tuner table: "
        "where a collective lacks the pair of a row, the row is the NCCL default",
        "cuda": ranks.facts["cuda"],
        "driver": driver_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "channels_found_by_nccl": channels,
        "environment": place.recipe.variables(place.ranks, most_channels=place.most_channels),
        "timing": {"samples": place.timing.samples, "sample_us": place.timing.sample_us},
    }


def channels_found(place: Place) -> int:
    """Return how many channels NCCL found: a table cannot ask for more, up to 2.30 silently (nccl.md, 1.3).

    Raises:
        NccltError: the ranks do not open, or NCCL does not say.
    """
    with LiveRanks(replace(place, logged=True, output=place.output / "probe")) as ranks:
        ranks.start()
        counts = re.findall(r"(\d+) coll channels", ranks.log_of_rank_0.read_text(errors="replace"))
    if not counts:
        raise NccltError("NCCL does not say how many channels it found", hint=f"see {place.output / 'probe'}")
    return int(counts[-1])


def table(path: Path, messages: Sequence[Message]) -> str:
    """Return per message the default's time and the best setting's."""
    landscape = load_landscape(path)
    lines = [f"{'message':34}{'default':>12}{'best':>12}  setting"]
    for message in messages:
        # A pair that a collective lacks leaves it to NCCL: such a row is one more of the default.
        reaching = [
            s
            for s in landscape.settings()
            if is_legal(message.collective, s.algorithm, s.protocol, version=landscape.cluster.version)
        ]
        times = {s: landscape.time_samples(s, message) for s in (DEFAULT, *reaching)}
        typical = {s: sorted(samples)[len(samples) // 2] for s, samples in times.items() if samples}
        best = min(typical, key=lambda s: typical[s])
        name = f"{message.collective} {format_bytes(message.size_bytes)}"
        lines.append(f"{name:34}{typical[DEFAULT]:9.1f} µs{typical[best]:9.1f} µs  {best.label}")
    return "\n".join(lines)


def record(options: argparse.Namespace, started: float) -> str:
    """Measure until the time is over or all is done; return the table.

    Raises:
        NccltError: the ranks do not open, or the default fails.
    """
    workload = workload_of(options.model)
    sizes = [c.message.size_bytes for c in workload.messages if c.message.size_bytes <= options.largest]
    place = place_of(options, room_bytes=max(sizes, default=MIB))
    channels = channels_found(place)
    with LiveRanks(place) as ranks:
        cluster = ranks.cluster
        placed = workload.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
        messages = [c.message for c in placed.messages if ranks.covers(c.message)]
        if not messages:
            raise UsageError(f"none of the messages of {workload.name} can be measured here", hint="see --largest")
        settings = grid(messages, ranks, most_channels=channels, buffsizes=options.buffsizes)
        recording = Recording(options.output, cluster, about(ranks, channels))
        for setting in turns(settings, recording.launches, rounds=options.rounds, seed=options.seed):
            if time.monotonic() - started > 60 * options.minutes:
                print("the time is over", file=sys.stderr)
                break
            if setting.label in recording.failures:
                continue
            result = ranks.measure(setting, messages, repeat=recording.launches.get(setting.digest(), 0))
            if setting.is_default and result.outcome is not Outcome.OK:
                raise NccltError(f"the NCCL default fails: {result.outcome}: {result.detail}", hint="see the logs")
            recording.keep(setting, result, ranks.issue_us)
            times = ", ".join(f"{m.time_us:.0f}" for m in result.measurements)
            print(
                f"{setting.label:40} {result.outcome:13} {result.wall_s:6.2f} s  {times} µs {result.detail}", flush=True
            )
    return table(options.output / "landscape.csv", messages)


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--model", default="bert", help="a shipped workload (default bert)")
    parser.add_argument("--minutes", type=float, default=8.0, help="no launch begins after these (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="launches of every setting at most (default 3)")
    parser.add_argument("--largest", type=int, default=1 << 30, help="leave larger messages out (bytes)")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument(
        "--buffsizes",
        default=",".join(map(str, BUFFSIZES)),
        help="with commas, beside NCCL's own; empty = none",
        type=lambda text: tuple(int(word) for word in text.split(",") if word),
    )
    options = parser.parse_args(argv)
    try:
        print(record(options, started))
    except NccltError as error:
        print(f"bench/gpu/landscape.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A recorded landscape: times of real hardware under every setting that was measured there."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import LandscapeError
from ncclt.measure.simulated.landscape_cluster import guess_cluster
from ncclt.measure.simulated.landscape_pick import pick_one
from ncclt.measure.simulated.landscape_rows import LandscapeRow, read_rows

Curve = tuple[tuple[int, tuple[float, ...]], ...]
"""Sizes in bytes, ascending, each with its samples in µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """The measurements of one system under one condition.

    The dtype of a message is ignored: only bytes count. Groups other than the whole job were not recorded.

    Attributes:
        cluster: where it was recorded, guessed from the table.
        curves: (collective, setting) -> times by size.
        notes: what was chosen, guessed or left out, for the user.
    """

    cluster: Cluster
    curves: Mapping[tuple[Collective, Setting], Curve]
    notes: tuple[str, ...] = ()

    def settings(self) -> tuple[Setting, ...]:
        """Return the recorded settings that are not the default, in a stable order."""
        return tuple(sorted({s for _, s in self.curves if not s.is_default}, key=lambda s: s.label))

    def covers(self, message: Message) -> bool:
        """Return whether the default was recorded for this collective, around this size, with this group."""
        curve = self.curves.get((message.collective, DEFAULT))
        whole_job = message.group_size in (0, self.cluster.world_size)
        return curve is not None and whole_job and curve[0][0] <= message.size_bytes <= curve[-1][0]

    def recorded(self, setting: Setting, message: Message) -> Setting | None:
        """Return the recorded setting with the effect of `setting` on a message, None where there is none.

        An algorithm that does not exist for the collective leaves the choice to NCCL, so the default's times apply.
        """
        if (message.collective, setting) in self.curves:
            return setting
        reaching = setting.applied_to(message.collective, version=self.cluster.version)
        return reaching if (message.collective, reaching) in self.curves else None

    def time_samples(self, setting: Setting, message: Message) -> tuple[float, ...]:
        """Return the recorded times, µs; between two sizes interpolated in log size and log time.

        Returns:
            One or more samples, or none where the setting was not recorded for this collective around this size.
        """
        mine = self.recorded(setting, message)
        if mine is None or message.group_size not in (0, self.cluster.world_size):
            return ()
        curve = self.curves[message.collective, mine]
        sizes = [size for size, _ in curve]
        right = bisect.bisect_left(sizes, message.size_bytes)
        if right == len(curve):
            return ()
        if curve[right][0] == message.size_bytes:
            return curve[right][1]
        return _between(curve[right - 1], curve[right], message.size_bytes) if right else ()

    def is_exact(self, setting: Setting, message: Message) -> bool:
        """Return whether exactly this size was recorded under the setting."""
        mine = self.recorded(setting, message)
        curve = self.curves.get((message.collective, mine), ()) if mine is not None else ()
        return any(size == message.size_bytes for size, _ in curve)


def _between(left: tuple[int, tuple[float, ...]], right: tuple[int, tuple[float, ...]], size: int) -> tuple[float, ...]:
    share = math.log(size / left[0]) / math.log(right[0] / left[0])
    pairs = [(statistics.median(left[1]), statistics.median(right[1]))]
    if len(left[1]) == len(right[1]):
        # By rank, so that the spread is interpolated as well.
        pairs = list(zip(sorted(left[1]), sorted(right[1]), strict=True))
    return tuple(math.exp((1 - share) * math.log(low) + share * math.log(high)) for low, high in pairs)


def load_landscape(path: Path, where: Mapping[str, str]) -> Landscape:
    """Read the one landscape of a table, or of its rows that match `where`.

    Args:
        path: tidy CSV, one measurement per row.
        where: column -> value or glob pattern; other rows are not read.

    Raises:
        LandscapeError: no such file, no such rows, an invalid row, more than one landscape, or one that cannot be
            replayed because the default or a second setting is missing.
    """
    reading = read_rows(Path(path), where)
    if all(row.setting.is_default for row in reading.rows):
        raise LandscapeError(
            f"{Path(path).name} holds only the default: there is nothing to choose from", hint="use other rows"
        )
    pick = pick_one(reading.rows, name=Path(path).name)
    curves = _curves(pick.rows)
    _check_replayable(curves, Path(path).name)
    guess = guess_cluster(pick.rows[0])
    return Landscape(cluster=guess.cluster, curves=curves, notes=(*reading.notes, *pick.notes, *guess.notes))


def _curves(rows: tuple[LandscapeRow, ...]) -> dict[tuple[Collective, Setting], Curve]:
    """Collect rows into curves; several rows of one point are its samples."""
    points: dict[tuple[Collective, Setting], dict[int, list[float]]] = {}
    for row in rows:
        points.setdefault((row.collective, row.setting), {}).setdefault(row.size_bytes, []).append(row.time_us)
    return {key: tuple((size, tuple(times)) for size, times in sorted(sizes.items())) for key, sizes in points.items()}


def _check_replayable(curves: Mapping[tuple[Collective, Setting], Curve], name: str) -> None:
    settings = {setting for _, setting in curves}
    if DEFAULT not in settings:
        raise LandscapeError(
            f"{name} holds no row of NCCL's own choice, so nothing could be proved to be faster",
            hint="rows with blank algo, proto, nchannels, buffsize and nthreads are the default",
        )
    if settings == {DEFAULT}:
        raise LandscapeError(
            f"{name} holds only the default for the rows that were chosen: there is nothing to choose from",
            hint="choose other rows with --where",
        )
    lacking = sorted({c for c, _ in curves} - {c for c, s in curves if s.is_default})
    if lacking:
        raise LandscapeError(
            f"{name} holds no default row for {', '.join(lacking)}", hint="use --where collective=... to leave it out"
        )

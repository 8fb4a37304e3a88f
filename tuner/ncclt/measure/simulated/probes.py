"""Probes: which forced settings to launch for a calibration, their launches, and the table that keeps their times."""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclt.core.algorithms import choices
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import Setting, max_channels
from ncclt.core.trial import Measurement, Outcome, Runner
from ncclt.errors import InputError, UsageError, reason
from ncclt.measure.simulated.calibrate import ObservedPoint, choose_probes
from ncclt.measure.simulated.export import row_of
from ncclt.measure.simulated.landscape_rows import COLUMNS, SIMULATED, read_rows, write_rows
from ncclt.measure.simulated.observations import ObservedTimes

PROBES = 12
"""Forced launches that calibrate the ranking."""

_HEADER = f"{','.join(COLUMNS)}\n".encode()

_OF_PROBES = ("system", "nodes", "gpus_per_node", "nccl_version", "is_simulated")
"""Attributes that rows share with the launches that add to them."""

_PROBE_CHANNELS = (1, 8, 48)
_PROBE_SIZES = tuple(4096 << shift for shift in range(0, 17, 2))


def probe_messages(cluster: Cluster) -> tuple[Message, ...]:
    """Return the messages of each probe: all_reduce over the whole job, 4 KiB to 256 MiB."""
    return tuple(
        Message(
            collective=Collective.ALL_REDUCE,
            dtype="float32",
            size_bytes=size,
            group_size=cluster.world_size,
            spans_nodes=cluster.nodes > 1,
        )
        for size in _PROBE_SIZES
    )


def probes(cluster: Cluster, seen: Sequence[ObservedPoint], allowed: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return about a dozen settings to launch: those that tell most about all the others."""
    messages = probe_messages(cluster)
    launches = [
        [ObservedPoint(nodes=cluster.nodes, setting=setting, message=m, time_us=1.0) for m in messages]
        for setting in allowed
    ]
    return tuple(allowed[position] for position in choose_probes(cluster, seen, launches, PROBES))


def probe_candidates(cluster: Cluster) -> tuple[Setting, ...]:
    """Return every algorithm and protocol that may be chosen there, with few, some and many channels."""
    most = max_channels(cluster.version)
    counts = sorted({min(count, most) for count in _PROBE_CHANNELS})
    return tuple(
        Setting(algorithm=algorithm, protocol=protocol, channels=count)
        for algorithm, protocol in choices((Collective.ALL_REDUCE,), cluster)
        for count in counts
    )


class ProbeTable:
    """The times of probes in a file, so that a command that was cut short launches only what is missing.

    The file is a table of measurements: `--from` and `--landscape` read it. Its last line may have been cut short, by
    a full disk or the end of the machine: that line is dropped.

    Attributes:
        known: what it has of each launch.
        notes: what was dropped.
    """

    def __init__(self, path: Path, runner: Runner, *, origin: str) -> None:
        """Read what the file has; it need not exist.

        Args:
            runner: what launches; a file of other times is refused.

        Raises:
            InputError: the file cannot be read.
            UsageError: it has times of another cluster, NCCL version, shape, or of a simulated cluster.
        """
        self._path, self._cluster = path, runner.cluster
        self._source = f"{SIMULATED}; {origin}" if runner.simulated else origin
        self._rows: Counter[tuple[Setting, Collective, int]] = Counter()
        self.known: dict[Setting, tuple[ObservedPoint, ...]] = {}
        self.notes: tuple[str, ...] = ()
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            raise InputError(f"{path} cannot be read: {reason(error)}", hint="name another --times") from error
        whole = content.rfind(b"\n") + 1
        if not _HEADER.startswith(content):  # one that begins as ours, and has no row yet
            self.known = self._read()
        if whole < len(content):
            try:
                os.truncate(path, whole)
            except OSError as error:
                raise self._unwritable(error) from error
            self.notes = (f"the last line of {path.name} was cut short and is dropped",)

    def _read(self) -> dict[Setting, tuple[ObservedPoint, ...]]:
        messages = {(m.collective, m.size_bytes): m for m in probe_messages(self._cluster)}
        some = Measurement(message=next(iter(messages.values())), samples_us=(1.0,))
        mine = row_of(self._cluster, Setting(), some, source=self._source, repetition=1)
        found: dict[Setting, dict[Message, ObservedPoint]] = {}
        for row in read_rows(self._path, is_growing=True):
            differing = next((name for name in _OF_PROBES if getattr(row, name) != getattr(mine, name)), None)
            if differing:
                raise UsageError(
                    f"{self._path.name}, line {row.number}: {differing} is {getattr(row, differing)}, and "
                    f"{getattr(mine, differing)} for these probes",
                    hint="name another file",
                )
            self._rows[row.setting, row.collective, row.size_bytes] += 1
            message = messages.get((row.collective, row.size_bytes))
            if message:
                one = ObservedPoint(nodes=row.nodes, setting=row.setting, message=message, time_us=row.time_us)
                found.setdefault(row.setting, {})[message] = one
        # A launch is there with all its times, or it is repeated.
        return {setting: tuple(of.values()) for setting, of in found.items() if len(of) == len(messages)}

    def add(self, setting: Setting, measurements: Sequence[Measurement]) -> None:
        """Append the times of a launch.

        Raises:
            InputError: the file cannot be written.
        """
        text = io.StringIO(newline="")
        rows = []
        for measurement in measurements:
            point = (setting, measurement.message.collective, measurement.message.size_bytes)
            self._rows[point] += 1
            rows.append(row_of(self._cluster, setting, measurement, source=self._source, repetition=self._rows[point]))
        write_rows(rows, text, header=False)
        content = text.getvalue().encode()
        try:
            with self._path.open("ab", buffering=0) as file:
                whole = content if file.tell() else _HEADER + content
                if file.write(whole) != len(whole):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"{self._path} cannot be written: {reason(error)}", hint="name another --times")


def observe(runner: Runner, settings: Sequence[Setting], table: ProbeTable | None = None) -> ObservedTimes:
    """Launch settings and return their times; a launch that fails is a note, and a time that was not measured as well.

    Args:
        runner: what launches.
        settings: one launch each.
        table: has the times of earlier launches, which are not repeated, and receives those of the others.
    """
    known: Mapping[Setting, tuple[ObservedPoint, ...]] = table.known if table else {}
    cluster, seen, notes = runner.cluster, list[ObservedPoint](), list(table.notes if table else ())
    failed = between = 0
    for setting in settings:
        if setting in known:
            seen += known[setting]
            continue
        result = runner.measure(setting, probe_messages(cluster), repeat=0)
        if result.outcome is not Outcome.OK:
            failed += 1
            notes.append(f"{setting.label}: {result.outcome}: {result.detail.splitlines()[0] if result.detail else ''}")
            continue
        measured = [m for m in result.measurements if not m.interpolated]
        between += len(result.measurements) - len(measured)
        if table and measured:
            table.add(setting, measured)
        seen += [
            ObservedPoint(nodes=cluster.nodes, setting=setting, message=m.message, time_us=m.time_us) for m in measured
        ]
    again = sum(setting in known for setting in settings)
    if again:
        notes.append(f"{again} of {len(settings)} launches were in the table already and are not repeated")
    if between:
        notes.append(f"{between} interpolated times are left out: they were not measured")
    label = f" ({SIMULATED})" if runner.simulated else ""
    source = f"{len(settings) - failed} launches by {runner.name}{label}: {len(seen)} times"
    return ObservedTimes(seen=tuple(seen), sources=(source,), notes=tuple(notes))

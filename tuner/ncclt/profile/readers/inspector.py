"""Dumps of NCCL Inspector, the profiler plugin of NCCL 2.28.3 and later: JSON lines, one file per process.

Files are .log, .jsonl or either gzipped, in the formats v4.0 to v4.2 (NCCL 2.28.3 to 2.32), later ones in part. NCCL
2.28 and 2.29 keep the last call of every dump interval; from 2.30 on a ring keeps them all, but by default none below
8 KiB. No record tells a dtype. The Prometheus form of Inspector puts sizes in classes and cannot be used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import OPERATIONS, UNKNOWN_DTYPE, Choices, build_nccl_message
from ncclt.profile.numbers import parse_float, parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document, lines, parse_json
from ncclt.profile.workload_builder import (
    check_bounded,
    format_day,
    is_newer,
    join_distinct,
    largest_group_notes,
    newer_notes,
)

NEWEST = "v4.2"
"""Format whose every field is known here."""

_RECORD_BYTES = 1024 * 1024
"""More than any record has, which are below 10 KiB even with all their events."""

_KINDS = ("coll_perf", "p2p_perf", "dump_stats")

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')

SMALLEST_BYTES = 8192
"""Default of NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, of one rank's part (since NCCL 2.30)."""

_RECORD = "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1"


class InspectorReader(Reader):
    """Reader of NCCL Inspector's dumps."""

    name = "inspector"
    empty = "no record is of a call"
    hint = "record more steps, and set NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 for small messages"

    def begins(self, beginning: bytes) -> bool:
        """Return True for records of Inspector."""
        return b'"header"' in beginning and any(f'"{kind}"'.encode() in beginning for kind in _KINDS)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every GPU."""
        tally = Tally()
        for document in source.documents():
            tally.read(document)
        source.labels.sort()
        source.created = min(tally.dates - {""}, default="")
        source.world_size = tally.world_size
        source.detail["format"] = join_distinct(sorted(tally.versions))
        source.detail["nodes"] = str(tally.worlds.get(tally.world_size, 0) or "")
        source.detail["nccl_choices"] = tally.choices.text()
        source.ranks = {s.header.rank for _gpu, s in tally.views() if s.header.ranks == tally.world_size}
        source.notes += _notes(tally)
        if tally.unread:
            source.left_out["line cut off or without a record"] = tally.unread
        calls = list(_count_calls(tally, source))
        newer = [version for version in sorted(tally.versions) if is_newer(version, NEWEST)]
        if not calls and newer:
            why = f"its format {newer[0]} is newer than {NEWEST}, the newest that ncclt knows"
            hint = "update ncclt, or record with the Inspector of NCCL 2.32 or older"
            raise TraceError(f"no collectives in {source.where}: {why}", hint=hint)
        if not tally.slots:
            hint = f"record with {_RECORD}, without Prometheus"
            raise TraceError(f"{source.where} holds no record of NCCL Inspector", hint=hint)
        yield from calls


def _notes(tally: Tally) -> list[str]:
    """Return notes on what records do not show, and what these lack."""
    notes = [f"Inspector has no dtype: messages are counted in bytes, as {UNKNOWN_DTYPE}"]
    notes += newer_notes(tally.versions, NEWEST)
    if all(size >= SMALLEST_BYTES for series in tally.series.values() for size in series.sizes):
        notes.append("no message below 8 KiB: Inspector leaves them out unless NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0")
    collectives = [series for series in tally.series.values() if series.operation not in ("Send", "Recv")]
    sampled = [series for series in collectives if not series.header.keeps_all and series.span > series.seen]
    if sampled:
        recorded, total = sum(series.seen for series in sampled), sum(series.span for series in sampled)
        notes.append(f"a sample: {recorded} of {total} calls recorded; the sequence numbers show how many there were")
    if gaps := sum(series.span - series.seen for series in collectives if series.header.keeps_all):
        notes.append(f"{gaps} calls between the recorded ones are missing: too small, untimed or dropped")
    if tally.dropped:
        notes.append(f"Inspector reports {tally.dropped} dropped records: its rings were full")
    return notes + largest_group_notes(tally.ranks_seen, tally.world_size)


class Header(NamedTuple):
    """Whose record it is.

    Attributes:
        comm: id of the communicator, the same on all of its ranks.
        rank: rank in it.
        ranks: its size, at least 1.
        nodes: nodes it reaches over, 0 where unknown.
        process: host and process id.
        keeps_all: NCCL 2.30 or later, which names communicators and keeps every call in a ring; before, only the last
            call of each dump interval was kept.
        version: format of the record.
        written_on: ISO date of the dump, may be empty.
    """

    comm: str
    rank: int
    ranks: int
    nodes: int
    process: tuple[str, int]
    keeps_all: bool
    version: str
    written_on: str


class Performed(NamedTuple):
    """One operation that was performed.

    Attributes:
        operation: NCCL's name of it.
        number: its sequence number, counted per communicator and operation (comm->seqNumber of enqueue.cc).
        size_bytes: bytes of one rank's part (count x size of the dtype).
        time_us: how long it ran, µs, None where not measured.
        choice: `RING/LL` from v4.2 on, else empty.
    """

    operation: str
    number: int
    size_bytes: int
    time_us: float | None
    choice: str


Record = tuple[Header, Performed | int]
"""An operation, or how many were dropped before they could be written."""


def records(document: Document) -> Iterator[Record | None]:
    """Yield the records of a file, None for one that is cut off or of another kind.

    Inspector writes each on one line; a formatter (`jq .`, `jq -s .`) spreads them over many, or makes them an array. A
    line without a header, as later formats may write, is of the header above it.

    Raises:
        TraceError: the compressed data end or break.
    """
    begun: list[bytes] = []
    depth = size_bytes = 0
    above: Mapping[str, Any] = {}
    for line in lines(document):
        text = line.strip().removesuffix(b",")
        row = parse_json(text.decode(errors="replace"))
        if isinstance(row, Mapping) and above and any(kind in row for kind in _KINDS):
            row = {**above, **row}
        is_complete = isinstance(row, Mapping) and "header" in row
        if begun and (is_complete or text.startswith(b'{"header"') or size_bytes > _RECORD_BYTES):
            yield None  # the record before was cut off
            begun, depth, size_bytes = [], 0, 0
        if is_complete:
            yield _read_record(row)
            above = {key: row[key] for key in ("header", "metadata") if key in row}
        elif not begun and isinstance(row, list) and row:
            yield from map(_read_record, row)
        elif begun or (row is None and text.startswith(b"{")):
            begun.append(line)
            size_bytes += len(line)
            without_strings = _STRING.sub(b"", line)
            depth += without_strings.count(b"{") - without_strings.count(b"}")
            if depth <= 0:
                joined = b"".join(begun).strip().removesuffix(b",")
                yield _read_record(parse_json(joined.decode(errors="replace")))
                begun, depth, size_bytes = [], 0, 0
        elif text not in (b"", b"[", b"]"):
            yield None
    if begun:
        yield None


def _read_record(row: Any) -> Record | None:
    header = _read_header(row) if isinstance(row, Mapping) else None
    if header is None:
        return None
    if isinstance(row.get("dump_stats"), Mapping):
        return header, _count_dropped(row["dump_stats"])
    for kind in ("coll", "p2p"):
        facts = row.get(f"{kind}_perf")
        if isinstance(facts, Mapping):
            size, number = parse_int(facts.get(f"{kind}_msg_size_bytes")), parse_int(facts.get(f"{kind}_sn"))
            if size is None or number is None:
                return None
            chosen = [str(facts.get(f"{kind}_{part}", ""))[:24] for part in ("algo", "proto")]
            time_us = parse_float(facts.get(f"{kind}_exec_time_us"), least=0, most=1e12) or None
            name = str(facts.get(kind, ""))[:24]
            return header, Performed(name, number, size, time_us, "/".join(chosen) if all(chosen) else "")
    return None


def _read_header(row: Mapping[str, Any]) -> Header | None:
    header, metadata = row.get("header"), row.get("metadata", {})
    if not isinstance(header, Mapping) or not isinstance(metadata, Mapping):
        return None
    rank, ranks = parse_int(header.get("rank")), parse_int(header.get("n_ranks"))
    if rank is None or ranks is None or not rank < ranks <= 10_000_000:
        return None
    comm, nodes = str(header.get("id", ""))[:64], parse_int(header.get("nnodes")) or 0
    process = (str(metadata.get("hostname", ""))[:255], parse_int(metadata.get("pid")) or 0)
    version = str(metadata.get("inspector_output_format_version", ""))[:16]
    written_on = format_day((parse_int(metadata.get("dump_timestamp_us")) or 0) / 1e6)
    return Header(comm, rank, ranks, nodes, process, "comm_name" in header, version, written_on)


def _count_dropped(stats: Mapping[str, Any]) -> int:
    """Return the sum of the counters of a `dump_stats` record whose names speak of drops."""
    return sum(
        parse_int(count) or 0
        for key, value in stats.items()
        for name, count in (value.items() if isinstance(value, Mapping) else [("", value)])
        if "drop" in f"{key}.{name}"
    )


_MOST_VERSIONS = 16


@dataclass(slots=True, kw_only=True)
class Series:
    """The calls of one operation that one rank made in one communicator.

    Attributes:
        header: of its first record.
        operation: NCCL's name of it.
        first: smallest sequence number seen.
        last: largest one.
        seen: records, the same one twice in a row counted once.
        sizes: bytes of one rank's part -> records.
        times: the same -> (sum of durations in µs, how many).
    """

    header: Header
    operation: str
    first: int
    last: int = -1
    seen: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    times: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Return the number of calls from the first to the last one seen."""
        return max(self.seen, self.last - self.first + 1)


@dataclass(slots=True, kw_only=True)
class Tally:
    """All records of a job.

    Attributes:
        series: (communicator, rank, operation) -> its calls.
        labels: (communicator, rank) -> the file it is in.
        slots: process -> communicator -> ranks of it in this process, one per GPU that the process drives.
        choices: what NCCL chose for which message, from v4.2 on.
        dropped: largest number of drops that a record reports.
        unread: lines that are cut off or of another kind.
        worlds: sizes of communicators -> nodes they reach over.
        versions: formats of the records.
        dates: days of the dumps.
    """

    series: dict[tuple[str, int, str], Series] = field(default_factory=dict)
    labels: dict[tuple[str, int], str] = field(default_factory=dict)
    slots: dict[tuple[str, int], dict[str, set[int]]] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)
    dropped: int = 0
    unread: int = 0
    worlds: dict[int, int] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    dates: set[str] = field(default_factory=set)

    @property
    def ranks_seen(self) -> int:
        """Return the number of GPUs that made these records."""
        return sum(max(len(ranks) for ranks in comms.values()) for comms in self.slots.values())

    @property
    def world_size(self) -> int:
        """Return the size of the largest communicator, 0 where more GPUs than that made records."""
        largest = max(self.worlds, default=0)
        return largest if self.ranks_seen <= largest else 0

    def read(self, document: Document) -> None:
        """Add the records of one file.

        Raises:
            TraceError: damaged, or a rank that another file has too.
        """
        kinds = 0
        for record in records(document):
            if record is None:
                self.unread += 1
                continue
            header, content = record
            self._admit(header, document.label)
            if isinstance(content, int):
                self.dropped = max(self.dropped, content)
            else:
                kinds += self._add(header, content)
            check_bounded(max(kinds, len(self.labels)), document.label)

    def views(self) -> Iterator[tuple[tuple[str, int, int], Series]]:
        """Yield every series with its GPU: host, process and number of the GPU in that process."""
        numbers = {
            (comm, rank): (*process, number)
            for process, comms in self.slots.items()
            for comm, ranks in comms.items()
            for number, rank in enumerate(sorted(ranks))
        }
        for (comm, rank, _operation), series in sorted(self.series.items()):
            yield numbers[comm, rank], series

    def _admit(self, header: Header, label: str) -> None:
        end = (header.comm, header.rank)
        if self.labels.setdefault(end, label) != label:
            raise TraceError(
                f"rank {header.rank} of communicator {header.comm} is in {self.labels[end]} and in {label}",
                hint="is one a copy? give every file of one job once",
            )
        self.slots.setdefault(header.process, {}).setdefault(header.comm, set()).add(header.rank)
        self.worlds[header.ranks] = max(header.nodes, self.worlds.get(header.ranks, 0))
        if len(self.versions) < _MOST_VERSIONS:
            self.versions.add(header.version)
        self.dates.add(header.written_on)

    def _add(self, header: Header, call: Performed) -> int:
        """Add a call and return 1 if it is of a new kind."""
        key = (header.comm, header.rank, call.operation)
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = Series(header=header, operation=call.operation, first=call.number)
        # The dump thread writes the last call again where no new one was completed in its interval.
        if series.last == call.number and call.operation not in ("Send", "Recv"):
            return 0
        series.first, series.last = min(series.first, call.number), max(series.last, call.number)
        series.seen += 1
        is_new = call.size_bytes not in series.sizes
        series.sizes[call.size_bytes] += 1
        if call.time_us is not None:
            total, count = series.times.get(call.size_bytes, (0.0, 0))
            series.times[call.size_bytes] = (total + call.time_us, count + 1)
        if call.choice and (collective := OPERATIONS.get(call.operation)) is not None:
            size = call.size_bytes * (header.ranks if collective.has_rank_parts else 1)
            self.choices.add(collective, size, call.choice, 1)
        return int(is_new)


def _count_calls(tally: Tally, source: Source) -> Iterator[Call]:
    """Yield the calls GPU by GPU.

    Before NCCL 2.30 the records are a sample. There the sequence numbers show how many calls were made, and the
    records of all ranks together how they spread over the sizes.
    """
    pooled: dict[tuple[str, str], tuple[Counter[int], int]] = {}
    for (comm, _rank, operation), series in tally.series.items():
        sizes, span = pooled.get((comm, operation), (Counter(), 0))
        pooled[comm, operation] = (sizes + series.sizes, max(span, series.span))
    for gpu, series in tally.views():
        header, sizes = series.header, series.sizes
        if not header.keeps_all:
            spread, span = pooled[header.comm, series.operation]
            sizes = Counter({size: max(1, round(span * count / spread.total())) for size, count in spread.items()})
        spans_nodes = header.nodes > 1 and 1 < header.ranks < tally.world_size
        for size, count in sizes.items():
            total_us, timed = series.times.get(size, (0.0, 0))
            yield from source.admit(
                build_nccl_message(series.operation, size, ranks=header.ranks, spans_nodes=spans_nodes),
                count=count,
                lane=gpu,
                group=header.comm,
                is_receive=series.operation == "Recv",
                time_us=total_us / timed if timed else None,
            )

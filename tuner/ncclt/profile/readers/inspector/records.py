"""The records of NCCL Inspector, one JSON object each: formats v4.0 to v4.2 (NCCL 2.28.3 to 2.32), later in part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ncclt.profile.source import Document, lines

NEWEST = "v4.2"
"""Format whose every field is known here."""

_UNTIL_US = 4_102_444_800_000_000
"""The year 2100: a later time stamp is a damaged number."""

_RECORD_BYTES = 1024 * 1024
"""More than any record has, which are below 10 KiB even with all their events."""

_KINDS = ("coll_perf", "p2p_perf", "dump_stats")

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An operation, or how many were dropped before they could be written."""

    header: Header
    performed: Performed | None
    dropped: int = 0


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
        row = _decoded(text)
        if isinstance(row, Mapping) and above and any(kind in row for kind in _KINDS):
            row = {**above, **row}
        whole_line = isinstance(row, Mapping) and "header" in row
        if begun and (whole_line or text.startswith(b'{"header"') or size_bytes > _RECORD_BYTES):
            yield None  # the record before was cut off
            begun, depth, size_bytes = [], 0, 0
        if whole_line:
            yield _record(row)
            above = {key: row[key] for key in ("header", "metadata") if key in row}
        elif not begun and isinstance(row, list) and row:
            yield from map(_record, row)
        elif begun or (row is None and text.startswith(b"{")):
            begun.append(line)
            size_bytes += len(line)
            bare = _STRING.sub(b"", line)
            depth += bare.count(b"{") - bare.count(b"}")
            if depth <= 0:
                yield _record(_decoded(b"".join(begun).strip().removesuffix(b",")))
                begun, depth, size_bytes = [], 0, 0
        elif text not in (b"", b"[", b"]"):
            yield None
    if begun:
        yield None


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None


def _record(row: Any) -> Record | None:
    header = _header(row) if isinstance(row, Mapping) else None
    if header is None:
        return None
    stats = row.get("dump_stats")
    if isinstance(stats, Mapping):
        return Record(header=header, performed=None, dropped=_dropped(stats))
    for kind in ("coll", "p2p"):
        facts = row.get(f"{kind}_perf")
        if isinstance(facts, Mapping):
            performed = _performed(facts, kind)
            return None if performed is None else Record(header=header, performed=performed)
    return None


def _header(row: Mapping[str, Any]) -> Header | None:
    header, metadata = row.get("header"), row.get("metadata", {})
    if not isinstance(header, Mapping) or not isinstance(metadata, Mapping):
        return None
    rank, ranks = whole(header.get("rank")), whole(header.get("n_ranks"))
    if rank is None or ranks is None or not rank < ranks <= 10_000_000:
        return None
    written_us = whole(metadata.get("dump_timestamp_us")) or 0
    dated = 0 < written_us < _UNTIL_US
    return Header(
        comm=str(header.get("id", ""))[:64],
        rank=rank,
        ranks=ranks,
        nodes=whole(header.get("nnodes")) or 0,
        process=(str(metadata.get("hostname", ""))[:255], whole(metadata.get("pid")) or 0),
        keeps_all="comm_name" in header,
        version=str(metadata.get("inspector_output_format_version", ""))[:16],
        written_on=datetime.fromtimestamp(written_us / 1e6, tz=UTC).date().isoformat() if dated else "",
    )


def _performed(facts: Mapping[str, Any], kind: str) -> Performed | None:
    size, number = whole(facts.get(f"{kind}_msg_size_bytes")), whole(facts.get(f"{kind}_sn"))
    if size is None or number is None:
        return None
    time = facts.get(f"{kind}_exec_time_us")
    measured = isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < 1e12
    chosen = [str(facts.get(f"{kind}_{part}", ""))[:24] for part in ("algo", "proto")]
    return Performed(
        operation=str(facts.get(kind, ""))[:24],
        number=number,
        size_bytes=size,
        time_us=float(time) if measured and time is not None else None,
        choice="/".join(chosen) if all(chosen) else "",
    )


def _dropped(stats: Mapping[str, Any]) -> int:
    """Return the sum of the counters of a `dump_stats` record whose names speak of drops."""
    total = 0
    for key, value in stats.items():
        if isinstance(value, Mapping):
            total += sum(whole(v) or 0 for k, v in value.items() if "drop" in f"{key}.{k}")
        elif "drop" in str(key):
            total += whole(value) or 0
    return total


def whole(value: object) -> int | None:
    """Return a whole number from 0 to 2^63, also if written as `5663.0`, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**63 and value == int(value) else None

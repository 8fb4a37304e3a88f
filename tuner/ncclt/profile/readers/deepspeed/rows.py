"""What DeepSpeed's comms logger writes: tables of log_summary, verbose lines, and the dictionary of it as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from ncclt.nccl.run_facts import read_run_facts
from ncclt.profile.readers.nccl_log.lines import check_bounded
from ncclt.profile.source import HEAD_BYTES, Document, lines

_UNITS: dict[str, int] = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
"""convert_size of deepspeed/utils/comms_logging.py: two decimals of a power of 1024."""

_SIZE = rb"(\d{1,12}(?:\.\d{1,6})?) ?([KMGTP]?B)"
_NUMBER = rb"(\d{1,18}(?:\.\d{1,9})?)"
_HEADER = re.compile(rb"Comm\. Op\s{1,40}Message Size\s{1,40}Count\s{1,40}(Total Latency)?")
# Alone on its line.
_OPERATION = re.compile(rb"^\s{0,8}([a-z][a-z0-9_]{2,40})(?: \| \[Caller Func: [^\]]{1,200}\])?\s*$")
_ROW = re.compile(
    rb"(?:^|\s)" + _SIZE + rb"\s{1,20}(\d{1,15})\s{1,20}" + rb"\s{1,20}".join([_NUMBER] * 4) + rb"\s{0,40}$"
)
_VERBOSE = re.compile(
    rb"(?:\[Rank (\d{1,7})\] )?(?:rank=\d{1,7} \| )?comm op: ([a-z][a-z0-9_]{2,40}) \| "
    rb"(?:\[Caller Func: [^\]]{1,200}\] \| )?time \(ms\): " + _NUMBER + rb" \| msg size: " + _SIZE + rb" \| "
    rb"algbw \(Gbps\): " + _NUMBER + rb" \| busbw \(Gbps\): " + _NUMBER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """Calls of one operation and size.

    Attributes:
        operation: DeepSpeed's name of it.
        size_bytes: of the tensor handed in.
        calls: how many.
        time_us: mean duration of a call, µs, without the slowest and fastest tenth where DeepSpeed took the mean.
        tput_gbps: throughput as DeepSpeed counts it, 1e9 bits/s.
        busbw_gbps: bus bandwidth, 1e9 bits/s.
    """

    operation: str
    size_bytes: int
    calls: int
    time_us: float
    tput_gbps: float
    busbw_gbps: float


@dataclass(slots=True, kw_only=True)
class CommsLog:
    """What one file says.

    Attributes:
        label: name of the file.
        kind: `table`, `verbose lines` or `dictionary`.
        rows: rank (None where unknown) -> its rows.
        tables: how many tables there are.
        world_size: ranks of the job according to the file, 0 = not recorded.
        started_ranks: ranks that its command line starts, 0 = it names none.
        is_rounded: whether sizes are rounded to two decimals of their unit.
        created: ISO date, may be empty.
        torn: rows of a table without an operation above them.
    """

    label: str
    kind: str
    rows: dict[int | None, list[LogRow]] = field(default_factory=dict)
    tables: int = 0
    world_size: int = 0
    started_ranks: int = 0
    is_rounded: bool = True
    created: str = ""
    torn: int = 0


def read_text(document: Document) -> CommsLog:
    """Read a log; its fullest table, or the verbose lines where there is no table.

    log_summary counts from the start of the job, so a later table repeats an earlier one. The table of stragglers
    repeats the first three columns and is left out. The verbose lines are the calls that the tables add up.

    Raises:
        TraceError: damaged.
    """
    tables: list[list[LogRow]] = []
    verbose: dict[int | None, dict[tuple[str, int], LogRow]] = {}
    torn, operation, is_open, kinds = 0, "", False, 0
    ranks = read_run_facts(document.stream.peek(HEAD_BYTES).decode(errors="replace")).ranks
    for line in lines(document):
        if b"comm op: " in line and (every := list(_VERBOSE.finditer(line))):
            for said in every:  # more than one where line feeds were lost
                rank, name, time_ms, number, unit, *speeds = said.groups()
                row = _row(name.decode("ascii"), (number, unit), 1, (time_ms, *speeds))
                rows = verbose.setdefault(None if rank is None else int(rank), {})
                key = (row.operation, row.size_bytes)
                kinds += key not in rows
                rows[key] = _joined(rows[key], row) if key in rows else row
        elif (header := _HEADER.search(line)) is not None:
            is_open, operation = header[1] is not None, ""
            if is_open:
                tables.append([])
        elif is_open and (found := _ROW.search(line)) is not None:
            if operation:
                number, unit, calls, _total_ms, *figures = found.groups()
                tables[-1].append(_row(operation, (number, unit), int(calls), figures))
                kinds += 1
            else:
                torn += 1
        elif is_open and (named := _OPERATION.search(line)) is not None:
            operation = named[1].decode("ascii")
        check_bounded(kinds + len(tables), document.label)
    if any(tables):
        fullest = max(tables, key=lambda rows: sum(row.calls for row in rows))
        return CommsLog(
            label=document.label, kind="table", rows={None: fullest}, tables=len(tables), torn=torn, started_ranks=ranks
        )
    said_by = {rank: list(rows.values()) for rank, rows in verbose.items()}
    return CommsLog(
        label=document.label,
        kind="verbose lines",
        rows=said_by,
        tables=len(tables),
        torn=torn,
        started_ranks=ranks,
    )


def read_dictionary(label: str, summary: Mapping[str, Any]) -> CommsLog:
    """Read what log_summary(return_dict=True) returned, with exact sizes; entries of another form are passed over."""
    metadata = summary.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    rows = list(_dictionary_rows(summary.get("summary")))
    rank, world_size, stamp = metadata.get("rank"), metadata.get("world_size"), str(metadata.get("timestamp", ""))
    is_dated = re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d)", stamp[:10]) is not None
    return CommsLog(
        label=label,
        kind="dictionary",
        rows={rank if _is_count(rank) else None: rows} if rows else {},
        world_size=world_size if _is_count(world_size) else 0,
        is_rounded=False,
        created=stamp[:10] if is_dated else "",
    )


def _dictionary_rows(operations: object) -> Iterator[LogRow]:
    for name, sizes in operations.items() if isinstance(operations, Mapping) else ():
        for size, facts in sizes.items() if isinstance(sizes, Mapping) else ():
            if not isinstance(facts, Mapping) or not re.fullmatch(r"[0-9]{1,15}", str(size)):
                continue
            calls = facts.get("count")
            if _is_count(calls) and calls > 0:
                yield LogRow(
                    operation=str(name).split(" | ")[0],
                    size_bytes=int(size),
                    calls=calls,
                    time_us=_number(facts.get("avg_latency_ms")) * 1e3,
                    tput_gbps=_number(facts.get("tput_avg_gbps")),
                    busbw_gbps=_number(facts.get("busbw_avg_gbps")),
                )


def _row(operation: str, size: tuple[bytes, bytes], calls: int, figures: Sequence[bytes]) -> LogRow:
    """Return a row from texts: number and unit of its size; mean time in ms, throughput and bus bandwidth."""
    mean_ms, tput, busbw = map(float, figures)
    return LogRow(
        operation=operation,
        size_bytes=round(float(size[0]) * _UNITS[size[1].decode("ascii")]),
        calls=calls,
        time_us=mean_ms * 1e3,
        tput_gbps=tput,
        busbw_gbps=busbw,
    )


def _joined(before: LogRow, row: LogRow) -> LogRow:
    """Add one call; of the bandwidths the larger pair is kept, whose two decimals are the more exact."""
    calls = before.calls + row.calls
    faster = max(before, row, key=lambda one: one.tput_gbps)
    return replace(faster, calls=calls, time_us=(before.time_us * before.calls + row.time_us * row.calls) / calls)


def _number(value: object) -> float:
    """Return a number from 0 to 1e15, 0 for anything else."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if usable and isinstance(value, int | float) else 0.0


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15

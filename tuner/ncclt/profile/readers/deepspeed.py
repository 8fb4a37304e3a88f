"""DeepSpeed's comms logger: tables of log_summary, verbose lines, and log_summary(return_dict=True) as JSON.

Sizes in text are rounded to two decimals of their unit, those of the dictionary are exact. An all_gather shows the
part of one rank and a reduce_scatter the full buffer, because DeepSpeed logs the tensor handed in. Only calls through
deepspeed.comm are seen, and none tells its dtype or group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncclt.core.message import Collective, Message
from ncclt.errors import TraceError
from ncclt.nccl.run_facts import read_run_facts
from ncclt.profile.c10d import classify
from ncclt.profile.nccl_calls import UNKNOWN_DTYPE, build_message
from ncclt.profile.numbers import MOST_RANKS, as_mapping, parse_float, parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.readers.nccl_log import LOGGED_CALL
from ncclt.profile.source import HEAD_BYTES, Document, lines, load_json
from ncclt.profile.workload_builder import check_bounded, check_one_job, check_ranks_once, join_distinct, parse_day

_MARK = re.compile(rb"Comm\. Op\s{1,40}Message Size\s{1,40}Count|comm op: [a-z]|\"(?:tput|busbw)_avg_gbps\"")

_SCALED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
"""Collectives whose busbw is tput x (n - 1)/n of the whole job (calc_bw_log of deepspeed/utils/comms_logging.py)."""


class DeepSpeedReader(Reader):
    """Reader of output of DeepSpeed's comms logger."""

    name = "deepspeed"
    empty = "its table has no row that can be read"
    hint = "dump deepspeed.comm.log_summary(return_dict=True) as JSON: it has exact sizes and the ranks"

    def begins(self, beginning: bytes) -> bool:
        """Return True for output of the comms logger without calls logged by NCCL, which has more detail."""
        return _MARK.search(beginning) is not None and LOGGED_CALL.search(beginning) is None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every row of every rank."""
        logs = sorted(map(read_log, source.documents()), key=lambda log: log.label)
        check_ranks_once((log.label, rank) for log in logs for rank in log.rows)
        if not any(log.rows or log.tables or log.torn for log in logs):
            hint = 'set "comms_logger": {"enabled": true} and call deepspeed.comm.log_summary() at the end'
            raise TraceError(f"{source.where} holds no output of DeepSpeed's comms logger", hint=hint)
        source.world_size = _world_size(logs)
        source.created = min((log.created for log in logs if log.created), default="")
        source.detail["read_from"] = join_distinct(log.kind for log in logs if log.rows)
        source.ranks = {rank for log in logs for rank in log.rows if rank is not None}
        source.notes += _notes(logs, source.world_size)
        labelled = ((log.label, rank, row) for log in logs for rank, rows in log.rows.items() for row in rows)
        for label, rank, row in labelled:
            yield from source.admit(
                _build_message(row, source.world_size),
                count=row.calls,
                rank=rank,
                lane=label,
                is_receive=row.operation in ("recv", "irecv"),
                time_us=row.time_us or None,
            )


def _find_collective(row: LogRow) -> Collective | None:
    operation = classify(row.operation)
    return operation.collective if operation else None


def _build_message(row: LogRow, world_size: int) -> Message | str:
    """Return the message of a row, or why it makes none."""
    collective, size_bytes = _find_collective(row), row.size_bytes
    if collective is Collective.ALL_GATHER:
        if not world_size:
            return f"{row.operation} of {row.size_bytes} bytes per rank: the number of ranks is not recorded"
        size_bytes *= world_size
    return build_message(row.operation, collective, size_bytes)


def _world_size(logs: Sequence[CommsLog]) -> int:
    """Return the ranks of the job: as recorded, else computed from the two bandwidths, else those started, else 0.

    busbw / tput = (n - 1)/n, so n = tput / (tput - busbw); both are printed with two decimals, so every row gives a
    range for n, and only a single whole number inside all of them counts.

    Raises:
        TraceError: the files tell different sizes.
    """
    check_one_job((log.label, log.world_size) for log in logs)
    if recorded := max(log.world_size for log in logs):
        return recorded
    low, high = 2.0, math.inf
    for row in (row for log in logs for rows in log.rows.values() for row in rows):
        if _find_collective(row) in _SCALED and row.busbw_gbps > 0.01:
            smallest = (row.busbw_gbps - 0.005) / (row.tput_gbps + 0.005)
            largest = (row.busbw_gbps + 0.005) / max(row.tput_gbps - 0.005, 1e-9)
            low = max(low, 1 / (1 - smallest) if smallest < 1 else math.inf)
            high = min(high, 1 / (1 - largest) if largest < 1 else math.inf)
    first = math.ceil(low) if low <= high < math.inf else 0
    return first if first and first <= high < first + 1 else max(log.started_ranks for log in logs)


def _notes(logs: Sequence[CommsLog], world_size: int) -> list[str]:
    notes = [
        f"DeepSpeed logs no dtype: messages are counted in bytes, as {UNKNOWN_DTYPE}",
        "DeepSpeed logs no groups: every message is assumed to be of the whole job",
        "DeepSpeed's logger waits for the GPU after every call: times are of calls without overlap",
    ]
    if any(log.is_rounded and log.rows for log in logs):
        notes.append("sizes are rounded to two decimals of their unit, up to 0.5 % off; the dictionary has them exact")
    if world_size and not any(log.world_size for log in logs):
        notes.append(f"the {world_size} ranks of the job follow from busbw / tput = (n - 1)/n")
    for log in logs:
        if log.tables > 1:
            notes.append(f"{log.label} has {log.tables} tables, each of all calls so far: using the fullest")
        if log.torn:
            notes.append(f"left out: {log.torn} rows of a table in {log.label} without an operation above them")
    return notes


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


class LogRow(NamedTuple):
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
    """Content of one file.

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


def read_log(document: Document) -> CommsLog:
    """Read a dictionary in JSON, or a log: its fullest table, or the verbose lines where there is no table.

    log_summary counts from the start of the job, so a later table repeats an earlier one. The table of stragglers
    repeats the first three columns and is left out. The verbose lines are the calls that the tables add up.

    Raises:
        TraceError: damaged.
    """
    if document.stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _read_dictionary(document.label, as_mapping(load_json(document)))
    tables: list[list[LogRow]] = []
    verbose: dict[int | None, dict[tuple[str, int], LogRow]] = {}
    torn, operation, is_open, kinds = 0, b"", False, 0
    ranks = read_run_facts(document.stream.peek(HEAD_BYTES).decode(errors="replace")).ranks
    for line in lines(document):
        if b"comm op: " in line and (matches := list(_VERBOSE.finditer(line))):
            for match in matches:  # more than one where line feeds were lost
                rank, name, time_ms, number, unit, *speeds = match.groups()
                row = _row(name, number, unit, 1, (time_ms, *speeds))
                rows = verbose.setdefault(None if rank is None else int(rank), {})
                before = rows.setdefault((row.operation, row.size_bytes), row._replace(calls=0))
                kinds += not before.calls
                calls = before.calls + 1
                time_us = (before.time_us * before.calls + row.time_us) / calls
                # Of the bandwidths the larger pair is kept, whose two decimals are the more exact.
                faster = max(before, row, key=lambda call: call.tput_gbps)
                rows[row.operation, row.size_bytes] = faster._replace(calls=calls, time_us=time_us)
        elif (header := _HEADER.search(line)) is not None:
            is_open, operation = header[1] is not None, b""
            tables += [[]] if is_open else []
        elif is_open and (cells := _ROW.search(line)) is not None:
            if operation:
                number, unit, count, _total_ms, *figures = cells.groups()
                tables[-1].append(_row(operation, number, unit, int(count), figures))
            torn += not operation
            kinds += bool(operation)
        elif is_open and (named := _OPERATION.search(line)) is not None:
            operation = named[1]
        check_bounded(kinds + len(tables), document.label)
    kind, by_rank = "verbose lines", {rank: list(rows.values()) for rank, rows in verbose.items()}
    if any(tables):
        kind, by_rank = "table", {None: max(tables, key=lambda rows: sum(row.calls for row in rows))}
    return CommsLog(label=document.label, kind=kind, rows=by_rank, tables=len(tables), torn=torn, started_ranks=ranks)


def _read_dictionary(label: str, summary: Mapping[str, Any]) -> CommsLog:
    """Read what log_summary(return_dict=True) returned, with exact sizes; entries of another form are passed over."""
    metadata = as_mapping(summary.get("metadata"))
    rows = list(_dictionary_rows(summary.get("summary")))
    return CommsLog(
        label=label,
        kind="dictionary",
        rows={parse_int(metadata.get("rank"), most=MOST_RANKS): rows} if rows else {},
        world_size=parse_int(metadata.get("world_size"), most=MOST_RANKS) or 0,
        is_rounded=False,
        created=parse_day(metadata.get("timestamp")),
    )


def _dictionary_rows(operations: object) -> Iterator[LogRow]:
    for name, sizes in as_mapping(operations).items():
        for size, content in as_mapping(sizes).items():
            facts = as_mapping(content)
            calls = parse_int(facts.get("count"), least=1, most=10**15)
            if calls is not None and re.fullmatch(r"[0-9]{1,15}", str(size)):
                keys = ("avg_latency_ms", "tput_avg_gbps", "busbw_avg_gbps")
                mean_ms, tput, busbw = (parse_float(facts.get(key), least=0, most=1e15) or 0.0 for key in keys)
                yield LogRow(str(name).split(" | ")[0], int(size), calls, mean_ms * 1e3, tput, busbw)


def _row(operation: bytes, number: bytes, unit: bytes, calls: int, figures: Sequence[bytes]) -> LogRow:
    """Return a row from texts: number and unit of its size; mean time in ms, throughput and bus bandwidth."""
    mean_ms, tput, busbw = map(float, figures)
    size_bytes = round(float(number) * _UNITS[unit.decode("ascii")])
    return LogRow(operation.decode("ascii"), size_bytes, calls, mean_ms * 1e3, tput, busbw)

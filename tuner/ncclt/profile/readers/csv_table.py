"""A plain table of messages: the way in for every source that ncclt has no reader for.

Columns `collective,size_bytes,calls`, and as wanted `dtype,group_size,spans_nodes,steps,time_us`, in any order, divided
by commas, semicolons or tabs. `size_bytes` is that of `ncclt.core.message.Message`, the `size` of nccl-tests: for
all_gather, reduce_scatter and all_to_all the full buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.core.plural import count_noun
from ncclt.errors import InputError, TraceError
from ncclt.profile.c10d import classify
from ncclt.profile.nccl_calls import UNKNOWN_DTYPE
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.table_rows import TableRow, cells_by_name, first_row, rows


class CsvReader(Reader):
    """Reader of plain tables."""

    name = "csv"
    single = "tables"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a header that names collective, size and calls, whatever else it names."""
        words = {re.sub(r"[\s-]+", "_", cell.lower()) for cell in first_row(beginning)}
        return all(words & set(_COLUMNS[column]) for column in _REQUIRED)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every row."""
        for document in source.documents():
            table, label = rows(document), document.label
            first = next(table, None)
            header = first.cells if first else ()
            named = find_columns(header, label=label)
            calls, untyped = [], 0
            for row in table:
                by_header = cells_by_name(header, row)
                cells = {column: by_header[cell] for column, cell in named.items()}
                calls.append(read_call(row, cells))
                untyped += not cells.get("dtype")
            if not calls:
                raise TraceError(f"{label} has a header but no row", hint="give one row per kind of message")
            steps = {call.steps for call in calls}
            if len(steps) > 1:
                raise TraceError(
                    f"{label} gives several numbers of steps: {', '.join(str(n or 'none') for n in sorted(steps))}",
                    hint="count the calls of all messages over the same steps",
                )
            source.steps = steps.pop()
            source.whole_file = not source.steps and not _is_per_step(named)
            if ignored := [cell[:40] for cell in header if cell not in named.values()]:
                source.notes.append(f"ignored columns: {', '.join(ignored)}")
            if untyped:
                source.notes.append(
                    f"no dtype in {untyped} of {count_noun(len(calls), 'row')}: counted in bytes (uint8)"
                )
            if any(call.message.group_size == 0 for call in calls):
                source.notes.append("groups without a size are assumed to be the whole job")
            yield from calls


_COLUMNS: dict[str, tuple[str, ...]] = {
    "collective": ("collective", "coll", "operation", "op"),
    "size_bytes": ("size_bytes", "size", "bytes", "nbytes", "msg_bytes", "message_size", "message_size_bytes"),
    "calls": ("calls", "count", "calls_per_step", "occurrences"),
    "dtype": ("dtype", "datatype", "data_type", "type"),
    "group_size": ("group_size", "nranks", "ranks", "world_size"),
    "spans_nodes": ("spans_nodes", "inter_node", "internode"),
    "steps": ("steps", "iterations", "iters"),
    "time_us": ("time_us", "recorded_us", "mean_us"),
}
"""Our column -> the headers that mean it, small letters, blanks as underscores."""

_PER_RANK = frozenset({"rank", "pid", "host", "hostname", "device", "gpu"})
"""Columns that say the rows are of several ranks: every rank shows the same call, so adding them up would be wrong."""

_REQUIRED = ("collective", "size_bytes", "calls")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_AMBIGUOUS = ("k", "m", "g", "kb", "mb", "gb")


def find_columns(header: Sequence[str], *, label: str) -> dict[str, str]:
    """Return our columns, each with the cell of a header that names it.

    Raises:
        TraceError: a required column is missing, two headers mean the same, or the rows are of several ranks.
    """
    named: dict[str, str] = {}
    for cell in header:
        word = re.sub(r"[\s-]+", "_", cell.lower())
        column = next((column for column, spellings in _COLUMNS.items() if word in spellings), None)
        if column is None:
            continue
        if column in named:
            hint = "keep one of them"
            raise TraceError(f"{label} has two columns for {column}: {named[column]!r} and {cell!r}", hint=hint)
        named[column] = cell
    if missing := [column for column in _REQUIRED if column not in named]:
        hint = f"begin with the header {','.join(_REQUIRED)} and, as wanted, {','.join(list(_COLUMNS)[3:])}"
        raise TraceError(f"{label} is not a table of messages: it has no column {', '.join(missing)}", hint=hint)
    if per_rank := [cell for cell in header if cell.lower() in _PER_RANK]:
        hint = "every rank shows the same call: keep the rows of one rank and take the column out"
        raise TraceError(f"{label} has a column {per_rank[0]!r}: ncclt does not add up calls over ranks", hint=hint)
    if _is_per_step(named) and "steps" in named:
        hint = "name the column calls, or leave out steps"
        raise TraceError(f"{label} gives calls per step and a number of steps", hint=hint)
    return named


def _is_per_step(named: Mapping[str, str]) -> bool:
    return named["calls"].lower().endswith("step")


def read_call(row: TableRow, cell: Mapping[str, str]) -> Call:
    """Return the calls of one row, given its cells by our columns.

    Raises:
        TraceError: a cell is invalid; the message names the line.
    """
    try:
        dtype = parse_dtype(cell["dtype"]) if cell.get("dtype") else UNKNOWN_DTYPE
    except InputError as error:
        raise row.refused(error.message, error.hint) from error
    size_bytes = _size_bytes(row, cell["size_bytes"])
    spans_nodes = cell.get("spans_nodes", "")
    if spans_nodes.lower() not in _TRUTH:
        raise row.refused(f"spans_nodes is {spans_nodes[:40]!r}", "give true or false")
    if size_bytes % DTYPE_SIZES[dtype]:
        raise row.refused(f"{size_bytes} bytes are not a whole number of {dtype}", "give bytes, not elements")
    message = Message(
        collective=_collective(row, cell["collective"]),
        dtype=dtype,
        size_bytes=size_bytes,
        group_size=row.whole("group_size", cell.get("group_size", "") or "0"),
        spans_nodes=_TRUTH[spans_nodes.lower()],
    )
    return Call(
        message=message,
        count=row.positive("calls", cell["calls"]),
        steps=row.whole("steps", cell["steps"], least=1) if "steps" in cell else 0,
        time_us=row.positive("time_us", cell["time_us"]) if cell.get("time_us") else None,
    )


def _collective(row: TableRow, text: str) -> Collective:
    operation = classify(text.lower().removeprefix("nccl")) if text else None
    if text == Collective.SEND_RECV or text.lower() in ("sendrecv", "send/recv"):
        return Collective.SEND_RECV
    if operation is None or operation.collective is None:
        raise row.refused(f"{text[:40]!r} is not a collective", f"supported: {', '.join(Collective)}")
    return operation.collective


def _size_bytes(row: TableRow, text: str) -> int:
    """Return exact bytes; `K`, `M`, `G` are refused, because they are 1000 to some and 1024 to others."""
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in (*_UNITS, *_AMBIGUOUS):
        raise row.refused(f"{text[:40]!r} is not a size", "give whole bytes, 26214400, or 25MiB")
    if unit in _AMBIGUOUS:
        raise row.refused(
            f"{text!r} can mean 1000 or 1024", f"give bytes, or {match[1]}{unit[0].upper()}iB where 1024 is meant"
        )
    size = Decimal(match[1]) * _UNITS[unit]
    if size != int(size):
        raise row.refused(
            f"{text!r} is not a whole number of bytes", "give exact bytes; a rounded size is another message"
        )
    if not 0 < size <= MOST_BYTES:
        raise row.refused(f"a size of {text} bytes", f"sizes are 1 to {MOST_BYTES} bytes")
    return int(size)

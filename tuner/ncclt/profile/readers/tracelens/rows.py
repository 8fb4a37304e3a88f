"""One row of a TraceLens table as a message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.errors import InputError
from ncclt.profile.readers.csv_table.rows import TableRow, whole_number
from ncclt.profile.readers.kineto.names import Operation, classify

REQUIRED = frozenset({"Collective name", "dtype", "In msg nelems", "Group size"})
"""Columns of all three tables."""

COUNTS = frozenset({"operation_count", "count"})
"""The column of the calls: per rank, or of the collapsed table."""

_MEANS_US = ("dur_mean", "comm_latency_mean")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """What one row says.

    Attributes:
        rank: global rank, None where the ranks are collapsed.
        group: name of the process group.
        world_size: ranks of the job, 0 where the row does not tell.
        message: None where the row makes no message.
        left_out: why it makes none, empty for waiting and barriers.
        is_receive: the receiving half of a send_recv.
        calls: how often.
        mean_us: mean duration of a call, µs, where given.
    """

    rank: int | None
    group: str
    world_size: int
    message: Message | None
    left_out: str
    is_receive: bool
    calls: int
    mean_us: float | None


def report_row(row: TableRow, cells: Mapping[str, str]) -> ReportRow:
    """Read one row.

    Raises:
        TraceError: a count is none, or the row contradicts itself; the message names the line.
    """
    operation = classify(cells["Collective name"]) if cells["Collective name"] else None
    group, group_size = cells.get("Process Group Name", ""), _whole(row, cells, "Group size")
    message, left_out = _message(row, cells, operation, group_size)
    mean = next((cells[column] for column in _MEANS_US if cells.get(column)), "")
    return ReportRow(
        rank=_whole(row, cells, "rank") if "rank" in cells else None,
        group=group,
        # PyTorch gives the default group, which is the whole job, the name 0.
        world_size=group_size if group == "0" else 0,
        message=message,
        left_out=left_out,
        is_receive=operation is not None and operation.is_receive,
        calls=_whole(row, cells, "operation_count" if "operation_count" in cells else "count", least=1),
        mean_us=_positive(row, mean) if mean else None,
    )


def _message(
    row: TableRow, cells: Mapping[str, str], operation: Operation | None, group_size: int
) -> tuple[Message | None, str]:
    if operation is None:
        return None, ""
    if operation.collective is None:
        return None, f"{operation.word[:40]}, which ncclt has no message for"
    try:
        dtype = parse_dtype(cells["dtype"])
    except InputError:
        return None, f"{operation.word} of dtype {cells['dtype'][:40]!r}, whose size is not known"
    size_bytes = _elements(row, cells, operation.collective, group_size) * DTYPE_SIZES[dtype]
    if not size_bytes:
        return None, f"{operation.word} of 0 bytes"
    if size_bytes > MOST_BYTES:
        raise row.refused(f"a message of {size_bytes} bytes", "the element counts cannot be right")
    _check_size(row, cells, size_bytes)
    message = Message(
        collective=operation.collective,
        dtype=dtype,
        size_bytes=size_bytes,
        group_size=group_size,
        # TraceLens writes intra_node or names what the group crosses; older tables have no such column.
        spans_nodes=cells.get("node_span", "") == "inter_node",
    )
    return message, ""


def _elements(row: TableRow, cells: Mapping[str, str], collective: Collective, group_size: int) -> int:
    """Return the elements of the full buffer (reference: c10d counts one rank's input and output)."""
    into = _whole(row, cells, "In msg nelems")
    if "Out msg nelems" in cells:
        return max(into, _whole(row, cells, "Out msg nelems"))
    return into * group_size if collective is Collective.ALL_GATHER else into


def _check_size(row: TableRow, cells: Mapping[str, str], size_bytes: int) -> None:
    """Refuse a row whose own MiB column says otherwise; written from floats, so to six digits."""
    told = cells.get("Full msg size (MB)", "")
    if told and not math.isclose(_positive(row, told) * _MIB, size_bytes, rel_tol=1e-6):
        raise row.refused(f"the elements are {size_bytes} bytes but the table says {told} MiB", "make the report again")


def _whole(row: TableRow, cells: Mapping[str, str], column: str, *, least: int = 0) -> int:
    number = whole_number(cells[column])
    if number is None or number < least:
        raise row.refused(f"{column} is {cells[column][:40]!r}", f"it must be a whole number from {least}")
    return number


def _positive(row: TableRow, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise row.refused(f"{text[:40]!r} is no number above 0", "make the report again")
    return number

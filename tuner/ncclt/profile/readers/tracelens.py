"""Collective tables of TraceLens: `coll_analysis`, `nccl_summary_long` and `nccl_summary_implicit_sync`, as CSV.

The first two have one row per rank and kind of message, the last one has the ranks collapsed. All are made from Kineto
metadata: element counts of one rank's input and, where given, output. "MB" in their headers is MiB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import InputError, TraceError
from ncclt.profile.c10d import Operation, classify
from ncclt.profile.roles import RankMessages, find_roles
from ncclt.profile.source import Document, any_head, documents
from ncclt.profile.table_rows import TableRow, cells_by_name, first_row, rows
from ncclt.profile.workload_builder import (
    left_out_notes,
    partial_note,
    smallest,
    without_answered_receives,
    workload_of_roles,
)

_REQUIRED = frozenset({"Collective name", "dtype", "In msg nelems", "Group size"})
"""Columns of all three tables."""

_COUNTS = frozenset({"operation_count", "count"})
"""The column of the calls: per rank, or of the collapsed table."""

_MEANS_US = ("dur_mean", "comm_latency_mean")

_MIB = 1 << 20

name = "tracelens"


def recognises(path: Path) -> bool:
    """Return whether a file begins with the header of a collective table of TraceLens."""
    return any_head(path, lambda beginning: _is_report(first_row(beginning)))


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the tables of one job: one of all ranks, or one per rank.

    Raises:
        TraceError: damaged, no such table, no collective, a rank in two tables, or two tables without ranks.
    """
    reports = sorted((_report(document) for path in paths for document in documents(path)), key=lambda r: r.order)
    _check_one_job(reports)
    by_rank: dict[int | None, list[_Row]] = {}
    for report in reports:
        for row in report.rows:
            by_rank.setdefault(row.rank, []).append(row)
    labels = ", ".join(report.label for report in reports)
    if not any(row.message for mine in by_rank.values() for row in mine):
        raise TraceError(
            f"no collectives in {labels}", hint="make the report from a trace of the distributed run itself"
        )
    sent = {rank: without_answered_receives(mine) for rank, mine in by_rank.items()}
    ranks = tuple(sorted(rank for rank in by_rank if rank is not None))
    world_size = max(row.world_size for mine in by_rank.values() for row in mine)
    origin = Provenance(
        source="tracelens",
        detail={"files": labels},
        world_size=world_size,
        ranks_read=ranks,
        notes=tuple(_notes(by_rank, ranks, world_size)),
        whole_file=True,
    )
    views = (RankMessages(rank=rank, calls=_counts(mine)) for rank, mine in sent.items())
    return workload_of_roles(name, find_roles(views, smallest(map(_means_us, sent.values()))), origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What one row says.

    Attributes:
        rank: global rank, None where the ranks are collapsed.
        group: name of the process group.
        world_size: ranks of the job, 0 where the row does not say.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    label: str
    rows: tuple[_Row, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({row.rank for row in self.rows if row.rank is not None}))

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        return self.ranks, self.label


def _is_report(header: Sequence[str]) -> bool:
    return set(header) >= _REQUIRED and bool(_COUNTS & set(header))


def _report(document: Document) -> _Report:
    table = rows(document)
    header = next(table, None)
    if header is None or not _is_report(header.cells):
        raise TraceError(
            f"{document.label} is not a collective table of TraceLens",
            hint="give coll_analysis.csv, nccl_summary_long.csv or nccl_summary_implicit_sync.csv",
        )
    found = tuple(_report_row(row, cells_by_name(header.cells, row)) for row in table)
    return _Report(label=document.label, rows=found)


def _check_one_job(reports: Sequence[_Report]) -> None:
    if len(reports) > 1 and any(not report.ranks for report in reports):
        raise TraceError(
            f"{len(reports)} tables were given, and one does not say which ranks it is of",
            hint="import a collapsed table (implicit_sync) on its own",
        )
    counted = Counter(rank for report in reports for rank in report.ranks)
    twice = [rank for rank, times in counted.items() if times > 1]
    if twice:
        raise TraceError(f"rank {min(twice)} is in two tables", hint="give every rank once")


def _counts(mine: Sequence[_Row]) -> Counter[tuple[str, Message]]:
    calls: Counter[tuple[str, Message]] = Counter()
    for row in mine:
        if row.message:
            calls[row.group, row.message] += row.calls
    return calls


def _means_us(mine: Sequence[_Row]) -> dict[Message, float]:
    sums: dict[Message, tuple[float, int]] = {}
    for row in mine:
        if row.message and row.mean_us is not None:
            total_us, calls = sums.get(row.message, (0.0, 0))
            sums[row.message] = (total_us + row.mean_us * row.calls, calls + row.calls)
    return {message: total_us / calls for message, (total_us, calls) in sums.items()}


def _notes(by_rank: Mapping[int | None, Sequence[_Row]], ranks: Sequence[int], world_size: int) -> list[str]:
    left_out: Counter[str] = Counter()
    for mine in by_rank.values():
        counted: Counter[str] = Counter()
        for row in mine:
            if row.left_out:
                counted[row.left_out] += row.calls
        left_out |= counted  # the ranks show the same calls: the largest count, not the sum
    unknown = [] if ranks else ["the table does not say which ranks it was made from"]
    return [WHOLE_FILE, *left_out_notes(left_out), *(partial_note(len(ranks), world_size) if ranks else unknown)]


def _report_row(row: TableRow, cells: Mapping[str, str]) -> _Row:
    operation = classify(cells["Collective name"]) if cells["Collective name"] else None
    group, group_size = cells.get("Process Group Name", ""), row.whole("Group size", cells["Group size"])
    message, left_out = _message(row, cells, operation, group_size)
    mean = next((column for column in _MEANS_US if cells.get(column)), "")
    counter = "operation_count" if "operation_count" in cells else "count"
    return _Row(
        rank=row.whole("rank", cells["rank"]) if "rank" in cells else None,
        group=group,
        # PyTorch gives the default group, which is the whole job, the name 0.
        world_size=group_size if group == "0" else 0,
        message=message,
        left_out=left_out,
        is_receive=operation is not None and operation.is_receive,
        calls=row.whole(counter, cells[counter], least=1),
        mean_us=row.positive(mean, cells[mean]) if mean else None,
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
    into = row.whole("In msg nelems", cells["In msg nelems"])
    if "Out msg nelems" in cells:
        return max(into, row.whole("Out msg nelems", cells["Out msg nelems"]))
    return into * group_size if collective is Collective.ALL_GATHER else into


def _check_size(row: TableRow, cells: Mapping[str, str], size_bytes: int) -> None:
    """Refuse a row whose own MiB column says otherwise; written from floats, so to six digits."""
    told = cells.get("Full msg size (MB)", "")
    if told and not math.isclose(row.positive("Full msg size (MB)", told) * _MIB, size_bytes, rel_tol=1e-6):
        raise row.refused(f"the elements are {size_bytes} bytes but the table says {told} MiB", "make the report again")

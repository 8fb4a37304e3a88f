"""Collective tables of TraceLens: `coll_analysis`, `nccl_summary_long` and `nccl_summary_implicit_sync`, as CSV.

The first two have one row per rank and kind of message, the last one has the ranks collapsed. All are made from Kineto
metadata: element counts of one rank's input and, where given, output. "MB" in their headers is MiB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.core.message import Collective, Message
from ncclt.errors import TraceError
from ncclt.profile.c10d import MOST_ELEMENTS, Operation, classify
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document
from ncclt.profile.table_rows import TableRow, cells_by_name, first_row, rows
from ncclt.profile.workload_builder import partial_note

_REQUIRED = frozenset({"Collective name", "dtype", "In msg nelems", "Group size"})
"""Columns of all three tables."""

_COUNTS = frozenset({"operation_count", "count"})
"""The column of the calls: per rank, or of the collapsed table."""

_MEANS_US = ("dur_mean", "comm_latency_mean")

_MIB = 1 << 20


class TraceLensReader(Reader):
    """Reader of TraceLens's collective tables: one of all ranks, or one per rank."""

    name = "tracelens"
    empty = "no row is of a collective"
    hint = "make the report from a trace of the distributed run itself"

    def begins(self, beginning: bytes) -> bool:
        """Return True for the header of a collective table."""
        return _is_report(first_row(beginning))

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every row."""
        tables = []
        for document in source.documents():
            read = _read_rows(document)
            tables.append((sorted({row.rank for row in read if row.rank is not None}), document.label, read))
        tables.sort(key=lambda table: table[:2])
        source.labels = [label for _ranks, label, _rows in tables]
        _check_one_job([ranks for ranks, _label, _rows in tables])
        merged = [row for _ranks, _label, read in tables for row in read]
        source.world_size = max((row.world_size for row in merged), default=0)
        source.ranks = {row.rank for row in merged if row.rank is not None}
        if source.ranks:
            source.notes += partial_note(len(source.ranks), source.world_size)
        else:
            source.notes.append("the table does not name its ranks")
        by_rank: dict[int | None, Counter[str]] = {}
        for row in merged:
            if isinstance(row.call, Call):
                yield row.call
            elif row.call:
                by_rank.setdefault(row.rank, Counter())[row.call] += row.count
        for counted in by_rank.values():
            source.left_out |= counted  # the ranks show the same calls: the largest count, not the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row.

    Attributes:
        rank: global rank, None where the ranks are collapsed.
        world_size: ranks of the job, 0 where the row does not give it.
        count: calls of the row.
        call: its calls, or why it makes no message; empty for waiting and barriers.
    """

    rank: int | None
    world_size: int
    count: int
    call: Call | str


def _is_report(header: Sequence[str]) -> bool:
    return set(header) >= _REQUIRED and bool(_COUNTS & set(header))


def _read_rows(document: Document) -> list[_Row]:
    table = rows(document)
    header = next(table, None)
    if header is None or not _is_report(header.cells):
        hint = "give coll_analysis.csv, nccl_summary_long.csv or nccl_summary_implicit_sync.csv"
        raise TraceError(f"{document.label} is not a collective table of TraceLens", hint=hint)
    return [_read_row(row, cells_by_name(header.cells, row)) for row in table]


def _check_one_job(tables: Sequence[Sequence[int]]) -> None:
    """Refuse tables of which one does not name its ranks, and a rank that is in two of them."""
    if len(tables) > 1 and not all(tables):
        hint = "import a collapsed table (implicit_sync) on its own"
        raise TraceError(f"{len(tables)} tables were given, and one does not say which ranks it is of", hint=hint)
    counted = Counter(rank for ranks in tables for rank in ranks)
    twice = [rank for rank, times in counted.items() if times > 1]
    if twice:
        raise TraceError(f"rank {min(twice)} is in two tables", hint="give every rank once")


def _read_row(row: TableRow, cells: Mapping[str, str]) -> _Row:
    operation = classify(cells["Collective name"]) if cells["Collective name"] else None
    group, group_size = cells.get("Process Group Name", ""), row.whole("Group size", cells["Group size"])
    mean = next((column for column in _MEANS_US if cells.get(column)), "")
    counter = "operation_count" if "operation_count" in cells else "count"
    rank = row.whole("rank", cells["rank"]) if "rank" in cells else None
    count = row.whole(counter, cells[counter], least=1)
    time_us = row.positive(mean, cells[mean]) if mean else None
    call: Call | str = ""
    if operation is not None:
        message = _build_message(row, cells, operation, group_size)
        facts: dict[str, Any] = {"rank": rank, "group": group, "is_receive": operation.is_receive, "time_us": time_us}
        call = message if isinstance(message, str) else Call(message=message, count=count, **facts)
    # PyTorch gives the default group, which is the whole job, the name 0.
    return _Row(rank=rank, world_size=group_size if group == "0" else 0, count=count, call=call)


def _build_message(row: TableRow, cells: Mapping[str, str], operation: Operation, group_size: int) -> Message | str:
    """Return the message of a row, or why it makes none."""
    # c10d counts one rank's input and output; the larger side is the full buffer.
    elements = row.whole("In msg nelems", cells["In msg nelems"]) if operation.collective else 0
    if operation.collective and "Out msg nelems" in cells:
        elements = max(elements, row.whole("Out msg nelems", cells["Out msg nelems"]))
    elif operation.collective is Collective.ALL_GATHER:
        elements *= group_size
    if elements > MOST_ELEMENTS:
        raise row.refused(f"a message of {elements} elements", "the element counts cannot be right")
    # TraceLens writes intra_node or names what the group crosses; older tables have no such column.
    spans_nodes = cells.get("node_span", "") == "inter_node"
    message = operation.message(cells["dtype"][:40], elements, group_size=group_size, spans_nodes=spans_nodes)
    stated = cells.get("Full msg size (MB)", "")
    if isinstance(message, Message) and stated:
        # Written from floats, so to six digits.
        size_bytes = row.positive("Full msg size (MB)", stated) * _MIB
        if not math.isclose(size_bytes, message.size_bytes, rel_tol=1e-6):
            raise row.refused(
                f"the elements are {message.size_bytes} bytes but the table says {stated} MiB", "make the report again"
            )
    return message

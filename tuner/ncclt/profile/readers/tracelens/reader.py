"""Collective tables of TraceLens: `coll_analysis`, `nccl_summary_long` and `nccl_summary_implicit_sync`, as CSV.

The first two have one row per rank and kind of message, the last one has the ranks collapsed. All are made from Kineto
metadata: element counts of one rank's input and, where given, output. "MB" in their headers is MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import Document, documents, heads
from ncclt.profile.readers.csv_table.rows import DocumentLines, cells_by_name, first_row, rows
from ncclt.profile.readers.tracelens.rows import COUNTS, REQUIRED, ReportRow, report_row

name = "tracelens"


def recognises(path: Path) -> bool:
    """Tell whether a file begins with the header of a collective table of TraceLens."""
    try:
        return any(_is_report(first_row(one)) for one in heads(path))
    except TraceError:
        return False


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the tables of one job: one of all ranks, or one per rank.

    Raises:
        TraceError: damaged, no such table, no collective, a rank in two tables, or two tables without ranks.
    """
    reports = sorted(
        (_report(document) for path in paths for document in documents(path)), key=lambda r: (r.ranks, r.label)
    )
    _check_one_job(reports)
    every = [row for report in reports for row in report.rows]
    if not any(row.message for row in every):
        raise TraceError(
            f"no collectives in {', '.join(report.label for report in reports)}",
            hint="make the report from a trace of the distributed run itself",
        )
    return _workload(reports, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    label: str
    rows: tuple[ReportRow, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({row.rank for row in self.rows if row.rank is not None}))


def _is_report(header: Sequence[str]) -> bool:
    return set(header) >= REQUIRED and bool(COUNTS & set(header))


def _report(document: Document) -> _Report:
    table = rows(DocumentLines(document), document.label)
    header = next(table, None)
    if header is None or not _is_report(header.cells):
        raise TraceError(
            f"{document.label} is no collective table of TraceLens",
            hint="give coll_analysis.csv, nccl_summary_long.csv or nccl_summary_implicit_sync.csv",
        )
    found = tuple(report_row(row, cells_by_name(header.cells, row)) for row in table)
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


def _workload(reports: Sequence[_Report], workload_name: str) -> Workload:
    by_rank: dict[int | None, list[ReportRow]] = {}
    for report in reports:
        for row in report.rows:
            by_rank.setdefault(row.rank, []).append(row)
    sends = {rank: _without_answered_receives(mine) for rank, mine in by_rank.items()}
    views = [_view(rank, mine) for rank, mine in sends.items()]
    times_us = _times_us(sends.values())
    ranks = tuple(sorted(rank for rank in by_rank if rank is not None))
    world_size = max((row.world_size for mine in by_rank.values() for row in mine), default=0)
    return Workload(
        name=workload_name,
        messages=tuple(
            MessageCalls(message=message, calls_per_step=count, recorded_us=times_us.get(message))
            for message, count in merge_ranks(views).items()
        ),
        provenance=Provenance(
            source=name,
            detail={"files": ", ".join(report.label for report in reports)},
            world_size=world_size,
            ranks_read=ranks,
            notes=tuple(_notes(by_rank, ranks, world_size)),
            whole_file=True,
        ),
    )


def _without_answered_receives(mine: Sequence[ReportRow]) -> list[ReportRow]:
    """Drop a rank's receives where it also sends: a message from rank to rank is one call (as in `kineto_calls`)."""
    sends = any(row.message and row.message.collective == "send_recv" and not row.is_receive for row in mine)
    return [row for row in mine if not (sends and row.is_receive)]


def _view(rank: int | None, mine: Sequence[ReportRow]) -> RankMessages:
    calls: Counter[tuple[str, Message]] = Counter()
    for row in mine:
        if row.message:
            calls[row.group, row.message] += row.calls
    return RankMessages(rank=rank, calls=dict(calls))


def _times_us(ranks: Iterable[Sequence[ReportRow]]) -> dict[Message, float]:
    """Return the smallest of the ranks' mean durations: the rank that comes last does not wait inside the kernel."""
    smallest: dict[Message, float] = {}
    for mine in ranks:
        sums: dict[Message, tuple[float, int]] = {}
        for row in mine:
            if row.message and row.mean_us is not None:
                total_us, calls = sums.get(row.message, (0.0, 0))
                sums[row.message] = (total_us + row.mean_us * row.calls, calls + row.calls)
        for message, (total_us, calls) in sums.items():
            smallest[message] = min(smallest.get(message, total_us / calls), total_us / calls)
    return smallest


def _notes(by_rank: Mapping[int | None, Sequence[ReportRow]], ranks: Sequence[int], world_size: int) -> list[str]:
    notes = [WHOLE_FILE]
    left_out: dict[str, int] = {}
    for mine in by_rank.values():
        counted: Counter[str] = Counter()
        for row in mine:
            if row.left_out:
                counted[row.left_out] += row.calls
        for reason, calls in counted.items():
            left_out[reason] = max(left_out.get(reason, 0), calls)
    notes += [f"left out: {calls} x {reason}" for reason, calls in sorted(left_out.items())]
    if not ranks:
        notes.append("the table does not say which ranks it was made from")
    elif len(ranks) < world_size:
        notes.append(f"{len(ranks)} of {world_size} ranks read; the busiest of them stands for all")
    return notes

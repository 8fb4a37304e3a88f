"""A plain table of messages: the way in for every source that ncclt has no reader for.

Columns `collective,size_bytes,calls`, and as wanted `dtype,group_size,spans_nodes,steps,time_us`, in any order, divided
by commas, semicolons or tabs. `size_bytes` is that of `ncclt.core.message.Message`, the `size` of nccl-tests: for
all_gather, reduce_scatter and all_to_all the full buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.plural import count_noun
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.readers.csv_table.columns import Columns, Entry, columns_of, entry_of, has_required_columns
from ncclt.profile.readers.csv_table.rows import first_row, rows
from ncclt.profile.reading import workload_of
from ncclt.profile.source import Document, any_head, documents

name = "csv"


def recognises(path: Path) -> bool:
    """Return whether a file begins with a header that names collective, size and calls."""
    return any_head(path, lambda beginning: has_required_columns(first_row(beginning)))


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read one table into a workload.

    Raises:
        TraceError: damaged, no such table, a row that makes no message (named by its line), or several files.
    """
    workloads = [_read(document, name) for path in paths for document in documents(path)]
    if len(workloads) != 1:
        raise TraceError(
            f"{len(workloads)} tables were given", hint="one table is one workload: join the rows of one rank"
        )
    return workloads[0]


def _read(document: Document, name: str) -> Workload:
    table, label = rows(document), document.label
    header = next(table, None)
    columns = columns_of(header.cells if header else (), label=label)
    entries = [entry_of(columns, row) for row in table]
    if not entries:
        raise TraceError(f"{label} has a header but no row", hint="give one row per kind of message")
    steps = {entry.steps for entry in entries}
    if len(steps) > 1:
        raise TraceError(
            f"{label} gives several numbers of steps: {', '.join(str(n or 'none') for n in sorted(steps))}",
            hint="count the calls of all messages over the same steps",
        )
    count = steps.pop()
    calls: dict[Message, float] = {}
    weighted: dict[Message, list[tuple[float, float]]] = {}
    for entry in entries:
        calls[entry.message] = calls.get(entry.message, 0.0) + entry.calls / (count or 1)
        if entry.time_us is not None:
            weighted.setdefault(entry.message, []).append((entry.calls, entry.time_us))
    origin = Provenance(
        source="csv",
        detail={"files": label},
        steps=count,
        notes=tuple(_notes(columns, entries, count)),
        whole_file=not count and not columns.calls_are_per_step,
    )
    means_us = {m: sum(n * time_us for n, time_us in found) / sum(n for n, _ in found) for m, found in weighted.items()}
    return workload_of(name, calls, origin, times_us=means_us)


def _notes(columns: Columns, entries: Sequence[Entry], steps: int) -> list[str]:
    notes = []
    if columns.ignored:
        notes.append(f"columns without a meaning here: {', '.join(cell[:40] for cell in columns.ignored)}")
    if not steps and not columns.calls_are_per_step:
        notes.append(WHOLE_FILE)
    bare = sum(not entry.has_dtype for entry in entries)
    if bare:
        notes.append(f"no dtype in {bare} of {count_noun(len(entries), 'row')}: taken as uint8, bytes of no known type")
    if any(entry.message.group_size == 0 for entry in entries):
        notes.append("a group without a size is the whole job")
    return notes

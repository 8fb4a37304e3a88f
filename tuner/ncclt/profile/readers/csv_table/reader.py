"""A plain table of messages, the door for every source that ncclt has no reader for; also from standard input.

Columns `collective,size_bytes,calls`, and as wanted `dtype,group_size,spans_nodes,steps,time_us`, in any order, divided
by commas, semicolons or tabs. `size_bytes` is that of `ncclt.core.message.Message`, the `size` of nccl-tests: for
all_gather, reduce_scatter and all_to_all the full buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.documents import documents, heads
from ncclt.profile.readers.csv_table.columns import Columns, Entry, columns_of, entry_of, has_required_columns
from ncclt.profile.readers.csv_table.rows import ByteLines, DocumentLines, first_row, rows

name = "csv"


def recognises(path: Path) -> bool:
    """Tell whether a file begins with a header that names collective, size and calls."""
    try:
        return any(has_required_columns(first_row(one)) for one in heads(path))
    except TraceError:
        return False


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read one table into a workload.

    Raises:
        TraceError: damaged, no such table, a row that makes no message (named by its line), or several files.
    """
    workloads = [
        read_stream(DocumentLines(document), name=name, label=document.label)
        for path in paths
        for document in documents(path)
    ]
    if len(workloads) != 1:
        raise TraceError(
            f"{len(workloads)} tables were given", hint="one table is one workload: join the rows of one rank"
        )
    return workloads[0]


def read_stream(stream: ByteLines, *, name: str, label: str = "standard input") -> Workload:
    """Read a table from an open stream of bytes, for example `sys.stdin.buffer`.

    Args:
        stream: uncompressed text in UTF-8; read to its end, not closed.
        name: name of the workload.
        label: what messages and provenance call the stream.

    Raises:
        TraceError: no such table, or a row that makes no message.
    """
    table = rows(stream, label)
    header = next(table, None)
    columns = columns_of(header.cells if header else (), label=label)
    entries = [entry_of(columns, row) for row in table]
    if not entries:
        raise TraceError(f"{label} has a header but no row", hint="give one row per kind of message")
    return _workload(columns, entries, label=label, name=name)


def _workload(columns: Columns, entries: Sequence[Entry], *, label: str, name: str) -> Workload:
    steps = {entry.steps for entry in entries}
    if len(steps) > 1:
        raise TraceError(
            f"{label} gives several numbers of steps: {', '.join(str(n or 'none') for n in sorted(steps))}",
            hint="count the calls of all messages over the same steps",
        )
    count = steps.pop()
    calls: dict[Message, float] = {}
    times_us: dict[Message, list[tuple[float, float]]] = {}
    for entry in entries:
        calls[entry.message] = calls.get(entry.message, 0.0) + entry.calls / (count or 1)
        if entry.time_us is not None:
            times_us.setdefault(entry.message, []).append((entry.calls, entry.time_us))
    return Workload(
        name=name,
        messages=tuple(
            MessageCalls(message=message, calls_per_step=per_step, recorded_us=_mean_us(times_us.get(message, [])))
            for message, per_step in calls.items()
        ),
        provenance=Provenance(
            source="csv",
            detail={"files": label},
            steps=count,
            notes=tuple(_notes(columns, entries, count)),
            whole_file=not count and not columns.calls_are_per_step,
        ),
    )


def _mean_us(weighted: Sequence[tuple[float, float]]) -> float | None:
    total = sum(calls for calls, _time_us in weighted)
    return sum(calls * time_us for calls, time_us in weighted) / total if weighted else None


def _notes(columns: Columns, entries: Sequence[Entry], steps: int) -> list[str]:
    notes = []
    if columns.ignored:
        notes.append(f"columns without a meaning here: {', '.join(cell[:40] for cell in columns.ignored)}")
    if not steps and not columns.calls_are_per_step:
        notes.append(WHOLE_FILE)
    bare = sum(not entry.has_dtype for entry in entries)
    if bare:
        notes.append(f"no dtype in {bare} of {len(entries)} rows: taken as uint8, bytes of no known type")
    if any(entry.message.group_size == 0 for entry in entries):
        notes.append("a group without a size is the whole job")
    return notes

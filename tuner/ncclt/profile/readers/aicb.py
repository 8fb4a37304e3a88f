"""Workloads and logs of AICB (the benchmark behind SimAI): one CSV row per call, iterations divided by `epoch_end`.

Source of the layout: aliyun/aicb, log_analyzer/log.py. Its writer joins cells by commas and quotes none, so that a
tuple as size fills several cells. `msg_size` is the full buffer, in bytes; `_elapsed_time` is in milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.message import MOST_BYTES, Collective, Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import documents, heads
from ncclt.profile.readers.csv_table.rows import ByteLines, DocumentLines, TableRow, first_row, rows, whole_number
from ncclt.profile.readers.kineto.names import Operation, classify

NO_DTYPE = "uint8"
"""Stands for bytes of a type that AICB does not tell; said in the notes."""

_HEADER = ("comm_type", "comm_group", "comm_group_size", "msg_size", "stage")

_RANKS = re.compile(r"\[rank0 ~ rank([0-9]{1,7})\]")

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,20})?(?:e-?[0-9]{1,2})?")

name = "aicb"


def recognises(path: Path) -> bool:
    """Tell whether a file begins with AICB's header, the line with the ranks before it or not."""
    try:
        return any(_is_aicb(one) for one in heads(path))
    except TraceError:
        return False


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read one AICB file, which stands for all ranks.

    Raises:
        TraceError: damaged, no AICB file, no collective outside the set-up, or several files.
    """
    files = [aicb_file(DocumentLines(document), document.label) for path in paths for document in documents(path)]
    if len(files) != 1:
        raise TraceError(f"{len(files)} AICB files were given", hint="one file stands for all ranks: import one")
    if not files[0].calls:
        raise TraceError(
            f"no collectives in {files[0].label}: {_seen(files[0])}",
            hint="give a workload with at least one training iteration behind its set-up",
        )
    return _workload(files[0], name)


def _is_aicb(beginning: bytes) -> bool:
    cells = first_row(beginning)
    if world_of(cells):
        cells = first_row(beginning.split(b"\n", 1)[-1])
    return is_header(cells)


def _seen(file: AicbFile) -> str:
    seen = [f"{count} x {reason}" for reason, count in sorted(file.left_out.items())]
    return f"it holds {'; '.join(seen)}" if seen else "it has a header but no row"


def _workload(file: AicbFile, workload_name: str) -> Workload:
    calls: Counter[tuple[str, Message]] = Counter()
    total_ms: dict[Message, float] = {}
    timed: Counter[Message] = Counter()
    for call in file.calls:
        calls[call.group, call.message] += call.count
        if call.elapsed_ms is not None:
            total_ms[call.message] = total_ms.get(call.message, 0.0) + call.elapsed_ms
            timed[call.message] += 1
    # One file stands for every rank, so there is one view; its groups add up.
    per_step = merge_ranks([RankMessages(rank=None, calls=dict(calls), steps=file.steps or 1)])
    return Workload(
        name=workload_name,
        messages=tuple(
            MessageCalls(
                message=message,
                calls_per_step=count,
                recorded_us=1000 * total_ms[message] / timed[message] if timed[message] else None,
            )
            for message, count in per_step.items()
        ),
        provenance=Provenance(
            source=name,
            detail={"files": file.label},
            world_size=file.world_size,
            steps=file.steps,
            notes=tuple(_notes(file)),
            whole_file=not file.steps,
        ),
    )


def _notes(file: AicbFile) -> list[str]:
    notes = [f"no dtype is given: taken as {NO_DTYPE}, bytes of no known type"]
    if not file.steps:
        notes.append(WHOLE_FILE)
    unknown = sorted({call.group for call in file.calls if call.message.group_size == 0})
    if unknown:
        notes.append(f"the size of {', '.join(unknown)} is not given: taken as the whole job")
    notes += [f"left out: {count} x {reason}" for reason, count in sorted(file.left_out.items())]
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class AicbCall:
    """One row that makes a message.

    Attributes:
        group: kind of group, `dp_group`, `tp_group`, ...
        message: the message.
        count: calls that the row stands for, 1 in generated files.
        elapsed_ms: its duration, ms, in measured logs.
        is_receive: the receiving half of a send_recv.
    """

    group: str
    message: Message
    is_receive: bool
    count: int
    elapsed_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AicbFile:
    """One file.

    Attributes:
        label: its name.
        world_size: ranks of the job, 0 where not told.
        calls: those of complete iterations, or all outside the set-up where no iteration ends.
        steps: complete iterations with a call, 0 where none ends.
        left_out: reason -> rows left out for it.
    """

    label: str
    world_size: int
    calls: tuple[AicbCall, ...]
    steps: int
    left_out: Mapping[str, int]


def is_header(cells: Sequence[str]) -> bool:
    """Tell whether cells are AICB's header."""
    return tuple(cells[: len(_HEADER)]) == _HEADER


def world_of(cells: Sequence[str]) -> int:
    """Return the ranks of the job from the line `[rank0 ~ rank127]`, 0 for any other line."""
    found = _RANKS.fullmatch(",".join(cells))
    return int(found[1]) + 1 if found else 0


def aicb_file(stream: ByteLines, label: str) -> AicbFile:
    """Read a file.

    Raises:
        TraceError: no AICB file, or a row that cannot be read.
    """
    table = rows(stream, label)
    row = next(table, None)
    world_size = world_of(row.cells) if row else 0
    if world_size:
        row = next(table, None)
    if row is None or not is_header(row.cells):
        raise TraceError(f"{label} is not an AICB file", hint="its first columns must be " + ",".join(_HEADER))
    header = row.cells
    complete: list[AicbCall] = []
    current: list[AicbCall] = []
    steps = 0
    left_out: Counter[str] = Counter()
    for row in table:
        cells = _cells(header, row)
        if _word(cells["comm_type"]) == "epoch_end":
            steps += bool(current)
            complete += current
            current = []
            continue
        call = _call(row, cells)
        if isinstance(call, AicbCall):
            current.append(call)
        elif call:
            left_out[call] += 1
    if steps and current:
        left_out["row behind the last end of an iteration"] += len(current)
    return AicbFile(
        label=label,
        world_size=world_size,
        calls=_without_answered_receives(complete if steps else current),
        steps=steps,
        left_out=left_out,
    )


def _without_answered_receives(calls: Sequence[AicbCall]) -> tuple[AicbCall, ...]:
    """Drop receives where there are sends: a message from rank to rank is one call (as in `kineto_calls`)."""
    sends = any(call.message.collective is Collective.SEND_RECV and not call.is_receive for call in calls)
    return tuple(call for call in calls if not (sends and call.is_receive))


def _cells(header: Sequence[str], row: TableRow) -> dict[str, str]:
    """Return a row by the names of the columns, a tuple in `msg_size` put together again."""
    cells, at = list(row.cells), _HEADER.index("msg_size")
    if len(cells) > at and cells[at].startswith("("):
        end = at + 1
        while end < len(cells) and (text := ",".join(cells[at:end])).count("(") > text.count(")"):
            end += 1
        cells[at:end] = [",".join(cells[at:end])]
    if len(cells) != len(header):
        raise row.refused(f"{len(cells)} cells under a header of {len(header)}", "the file may be cut off there")
    return dict(zip(header, cells, strict=True))


def _call(row: TableRow, cells: Mapping[str, str]) -> AicbCall | str:
    """Return a row's call, or why it makes none; an empty reason for what is no communication."""
    kind, stage = _word(cells["comm_type"]), cells["stage"]
    if kind == "computation":
        return ""
    if stage.split(".")[0] == "init":
        return "call of the set-up (stage init)"
    operation = _operation(kind)
    if operation is None:
        return ""
    if operation.collective is None:
        return f"{kind[:40]}, which ncclt has no message for"
    if cells["msg_size"].startswith("("):
        return f"{kind} with a tuple as size"
    size_bytes = _whole(row, cells, "msg_size")
    if not size_bytes:
        return f"{kind} of 0 bytes"
    if size_bytes > MOST_BYTES:
        raise row.refused(f"a message of {size_bytes} bytes", f"sizes are in bytes, at most {MOST_BYTES}")
    count = _whole(row, cells, "count") if "count" in cells else 1
    if count < 1:
        raise row.refused(f"count is {count}", "a row stands for at least one call")
    group_size = 0 if cells["comm_group_size"] in ("None", "") else _whole(row, cells, "comm_group_size")
    message = Message(collective=operation.collective, dtype=NO_DTYPE, size_bytes=size_bytes, group_size=group_size)
    return AicbCall(
        group=_word(cells["comm_group"]),
        message=message,
        is_receive=operation.is_receive,
        count=count,
        elapsed_ms=_elapsed_ms(row, cells.get("_elapsed_time", "")),
    )


def _operation(kind: str) -> Operation | None:
    # Point-to-point calls are the asynchronous ones of torch.distributed: isend and irecv.
    return classify({"isend": "send", "irecv": "recv"}.get(kind, kind)) if kind else None


def _word(text: str) -> str:
    """Return a value of Python's Enum without its class: `CommType.all_reduce` -> `all_reduce`."""
    return text.rpartition(".")[2]


def _whole(row: TableRow, cells: Mapping[str, str], column: str) -> int:
    number = whole_number(cells[column])
    if number is None:
        raise row.refused(f"{column} is {cells[column][:40]!r}", "it must be a whole number")
    return number


def _elapsed_ms(row: TableRow, text: str) -> float | None:
    if text in ("", "None"):
        return None
    if not _NUMBER.fullmatch(text):
        raise row.refused(f"_elapsed_time is {text[:40]!r}", "it must be milliseconds, or None")
    return float(text) or None

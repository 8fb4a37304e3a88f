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

from ncclt.core.message import MOST_BYTES, Message
from ncclt.core.workload import WHOLE_FILE, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.c10d import classify
from ncclt.profile.nccl_calls import UNKNOWN_DTYPE
from ncclt.profile.numbers import parse_float
from ncclt.profile.roles import RankMessages
from ncclt.profile.source import Document, any_head, documents
from ncclt.profile.table_rows import TableRow, first_row, rows
from ncclt.profile.workload_builder import left_out_notes, reasons, without_answered_receives, workload_of

_HEADER = ("comm_type", "comm_group", "comm_group_size", "msg_size", "stage")

_RANKS = re.compile(r"\[rank0 ~ rank([0-9]{1,7})\]")


name = "aicb"


def recognises(path: Path) -> bool:
    """Return whether a file begins with AICB's header, the line with the ranks before it or not."""
    return any_head(path, _is_aicb)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read one AICB file, which stands for all ranks.

    Raises:
        TraceError: damaged, no AICB file, no collective outside the set-up, or several files.
    """
    files = [_file(document) for path in paths for document in documents(path)]
    if len(files) != 1:
        raise TraceError(f"{len(files)} AICB files were given", hint="one file represents all ranks: import one")
    file = files[0]
    if not file.calls:
        seen = "; ".join(reasons(file.left_out))
        raise TraceError(
            f"no collectives in {file.label}: {f'it holds {seen}' if seen else 'it has a header but no row'}",
            hint="give a workload with at least one training iteration behind its set-up",
        )
    calls: Counter[tuple[str, Message]] = Counter()
    durations_ms: dict[Message, list[float]] = {}
    for call in file.calls:
        calls[call.group, call.message] += call.count
        if call.elapsed_ms is not None:
            durations_ms.setdefault(call.message, []).append(call.elapsed_ms)
    origin = Provenance(
        source="aicb",
        detail={"files": file.label},
        world_size=file.world_size,
        steps=file.steps,
        notes=tuple(_notes(file)),
        whole_file=not file.steps,
    )
    per_step = RankMessages(rank=None, calls=calls, steps=file.steps or 1).per_step()
    times_us = {message: 1000 * sum(found) / len(found) for message, found in durations_ms.items()}
    return workload_of(name, per_step, origin, times_us=times_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One row that makes a message; `group` is a kind of group (`dp_group`), `count` is 1 in generated files."""

    group: str
    message: Message
    is_receive: bool
    count: int
    elapsed_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file: the calls of its complete iterations (`steps`), or all outside the set-up where no iteration ends."""

    label: str
    world_size: int
    calls: tuple[_Call, ...]
    steps: int
    left_out: Mapping[str, int]


def _notes(file: _File) -> list[str]:
    notes = [f"no dtype is given: taken as {UNKNOWN_DTYPE}, bytes of no known type"]
    if not file.steps:
        notes.append(WHOLE_FILE)
    unknown = sorted({call.group for call in file.calls if call.message.group_size == 0})
    if unknown:
        notes.append(f"the size of {', '.join(unknown)} is not given: taken as the whole job")
    return notes + left_out_notes(file.left_out)


def _is_header(cells: Sequence[str]) -> bool:
    return tuple(cells[: len(_HEADER)]) == _HEADER


def _is_aicb(beginning: bytes) -> bool:
    cells = first_row(beginning)
    return _is_header(first_row(beginning.split(b"\n", 1)[-1]) if _world_size(cells) else cells)


def _world_size(cells: Sequence[str]) -> int:
    """Return the ranks of the job from the line `[rank0 ~ rank127]`, 0 for any other line."""
    found = _RANKS.fullmatch(",".join(cells))
    return int(found[1]) + 1 if found else 0


def _file(document: Document) -> _File:
    table = rows(document)
    row = next(table, None)
    world_size = _world_size(row.cells) if row else 0
    if world_size:
        row = next(table, None)
    if row is None or not _is_header(row.cells):
        raise TraceError(f"{document.label} is not an AICB file", hint="its first columns must be " + ",".join(_HEADER))
    header = row.cells
    complete: list[_Call] = []
    current: list[_Call] = []
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
        if isinstance(call, _Call):
            current.append(call)
        elif call:
            left_out[call] += 1
    if steps and current:
        left_out["row behind the last end of an iteration"] += len(current)
    return _File(
        label=document.label,
        world_size=world_size,
        calls=without_answered_receives(complete if steps else current),
        steps=steps,
        left_out=left_out,
    )


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


def _call(row: TableRow, cells: Mapping[str, str]) -> _Call | str:
    """Return a row's call, or why it makes none; an empty reason for what is no communication."""
    kind, stage = _word(cells["comm_type"]), cells["stage"]
    if kind == "computation":
        return ""
    if stage.split(".")[0] == "init":
        return "call of the set-up (stage init)"
    # Point-to-point calls are the asynchronous ones of torch.distributed: isend and irecv.
    operation = classify({"isend": "send", "irecv": "recv"}.get(kind, kind)) if kind else None
    if operation is None:
        return ""
    if operation.collective is None:
        return f"{kind[:40]}, which ncclt has no message for"
    if cells["msg_size"].startswith("("):
        return f"{kind} with a tuple as size"
    size_bytes = row.whole("msg_size", cells["msg_size"])
    if not size_bytes:
        return f"{kind} of 0 bytes"
    if size_bytes > MOST_BYTES:
        raise row.refused(f"a message of {size_bytes} bytes", f"sizes are in bytes, at most {MOST_BYTES}")
    count = row.whole("count", cells["count"]) if "count" in cells else 1
    if count < 1:
        raise row.refused(f"count is {count}", "a row stands for at least one call")
    group_size = (
        0 if cells["comm_group_size"] in ("None", "") else row.whole("comm_group_size", cells["comm_group_size"])
    )
    elapsed = cells.get("_elapsed_time", "")
    elapsed_ms = parse_float(elapsed, least=0)
    if elapsed not in ("", "None") and elapsed_ms is None:
        raise row.refused(f"_elapsed_time is {elapsed[:40]!r}", "it must be milliseconds, or None")
    message = Message(
        collective=operation.collective, dtype=UNKNOWN_DTYPE, size_bytes=size_bytes, group_size=group_size
    )
    return _Call(
        group=_word(cells["comm_group"]),
        message=message,
        is_receive=operation.is_receive,
        count=count,
        elapsed_ms=elapsed_ms or None,
    )


def _word(text: str) -> str:
    """Return a value of Python's Enum without its class: `CommType.all_reduce` -> `all_reduce`."""
    return text.rpartition(".")[2]

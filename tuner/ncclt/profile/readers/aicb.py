"""Workloads and logs of AICB (the benchmark behind SimAI): one CSV row per call, iterations divided by `epoch_end`.

Source of the layout: aliyun/aicb, log_analyzer/log.py. Its writer joins cells by commas and quotes none, so that a
tuple as size fills several cells. `msg_size` is the full buffer, in bytes; `_elapsed_time` is in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ncclt.core.message import MOST_BYTES, Message
from ncclt.errors import TraceError
from ncclt.profile.c10d import classify
from ncclt.profile.nccl_calls import UNKNOWN_DTYPE, build_message
from ncclt.profile.numbers import parse_float
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document
from ncclt.profile.table_rows import TableRow, first_row, rows

_HEADER = ("comm_type", "comm_group", "comm_group_size", "msg_size", "stage")

_RANKS = re.compile(r"\[rank0 ~ rank([0-9]{1,7})\]")


class AicbReader(Reader):
    """Reader of AICB files."""

    name = "aicb"
    single = "AICB files"
    empty = "it has a header but no row"
    hint = "give a workload with at least one training iteration behind its set-up"

    def begins(self, beginning: bytes) -> bool:
        """Return True for AICB's header, the line with the ranks before it or not."""
        cells = first_row(beginning)
        return _is_header(first_row(beginning.split(b"\n", 1)[-1]) if _world_size(cells) else cells)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of the complete iterations, or all outside the set-up where no iteration ends."""
        for document in source.documents():
            calls = _read_rows(document, source)
            source.notes.append(f"AICB files have no dtype: messages are counted in bytes, as {UNKNOWN_DTYPE}")
            unknown = sorted({call.group for call in calls if call.message.group_size == 0})
            if unknown:
                source.notes.append(f"the size of {', '.join(unknown)} is not given: assuming the whole job")
            yield from calls


def _is_header(cells: Sequence[str]) -> bool:
    return tuple(cells[: len(_HEADER)]) == _HEADER


def _world_size(cells: Sequence[str]) -> int:
    """Return the ranks of the job from the line `[rank0 ~ rank127]`, 0 for any other line."""
    match = _RANKS.fullmatch(",".join(cells))
    return int(match[1]) + 1 if match else 0


def _read_rows(document: Document, source: Source) -> list[Call]:
    table = rows(document)
    row = next(table, None)
    source.world_size = _world_size(row.cells) if row else 0
    if source.world_size:
        row = next(table, None)
    if row is None or not _is_header(row.cells):
        raise TraceError(f"{document.label} is not an AICB file", hint="its first columns must be " + ",".join(_HEADER))
    header = row.cells
    complete: list[Call] = []
    current: list[Call] = []
    for row in table:
        cells = _cells(header, row)
        if _word(cells["comm_type"]) == "epoch_end":
            source.steps += bool(current)
            complete += current
            current = []
            continue
        current += _read_calls(row, cells, source)
    source.whole_file = not source.steps
    if source.steps and current:
        source.left_out["row behind the last end of an iteration"] += len(current)
    return complete if source.steps else current


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


def _build_message(row: TableRow, cells: Mapping[str, str]) -> Message | str:
    """Return a row's message, or why it makes none; an empty reason for what is no communication."""
    kind = _word(cells["comm_type"])
    if kind == "computation":
        return ""
    if cells["stage"].split(".")[0] == "init":
        return "call of the set-up (stage init)"
    operation = classify(kind) if kind else None
    if operation is None:
        return ""
    if operation.collective is not None and cells["msg_size"].startswith("("):
        return f"{kind} with a tuple as size"
    size_bytes = row.whole("msg_size", cells["msg_size"]) if operation.collective is not None else 0
    if size_bytes > MOST_BYTES:
        raise row.refused(f"a message of {size_bytes} bytes", f"sizes are in bytes, at most {MOST_BYTES}")
    ranks = cells["comm_group_size"]
    group_size = 0 if ranks in ("None", "") else row.whole("comm_group_size", ranks)
    return build_message(kind[:40], operation.collective, size_bytes, group_size=group_size)


def _read_calls(row: TableRow, cells: Mapping[str, str], source: Source) -> Iterator[Call]:
    for call in source.admit(_build_message(row, cells)):
        elapsed = cells.get("_elapsed_time", "")
        elapsed_ms = parse_float(elapsed, least=0)
        if elapsed not in ("", "None") and elapsed_ms is None:
            raise row.refused(f"_elapsed_time is {elapsed[:40]!r}", "it must be milliseconds, or None")
        yield replace(
            call,
            group=_word(cells["comm_group"]),
            is_receive=_word(cells["comm_type"]) in ("recv", "irecv"),
            count=row.whole("count", cells["count"], least=1) if "count" in cells else 1,
            time_us=elapsed_ms * 1000 if elapsed_ms else None,
        )


def _word(text: str) -> str:
    """Return a value of Python's Enum without its class: `CommType.all_reduce` -> `all_reduce`."""
    return text.rpartition(".")[2]

"""Workloads and logs of AICB (the benchmark behind SimAI): one CSV row per call, iterations divided by `epoch_end`.

Source of the layout: aliyun/aicb, log_analyzer/log.py. Its writer joins cells by commas and quotes none, so that a
tuple as size fills several cells. `msg_size` is the full buffer, in bytes; `_elapsed_time` is in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.workload import WHOLE_FILE, MessageCalls, Provenance, RankMessages, Workload, merge_ranks
from ncclt.errors import TraceError
from ncclt.profile.documents import documents, heads
from ncclt.profile.readers.aicb.rows import NO_DTYPE, AicbFile, aicb_file, is_header, world_of
from ncclt.profile.readers.csv_table.rows import DocumentLines, first_row

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

"""The events of a Horovod timeline, one at a time, and the calls that they record.

A timeline is a JSON array that Horovod appends to while it runs (horovod/common/timeline.cc): a tensor is a process of
the picture, named by a `process_name` event. Older releases never write the closing bracket.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclt.errors import TraceError
from ncclt.profile.source import Document, read_block

_BLOCK_BYTES = 1 << 18
_EVENT_CHARS = 1 << 16
"""Longest event accepted; real ones have 200 characters, and tensor names a few hundred more."""

CALLS = 500_000
"""Most calls of tensors read, a thousand steps of a large model: more of the same add nothing."""

_GAP = re.compile(r"[\s,]*")

# The activity that is the communication itself: NCCL_ALLREDUCE, MPI_ALLREDUCE, GLOO_ALLREDUCE, CCL_ALLREDUCE, ...
_ACTIVITY = re.compile(r"(?!NEGOTIATE_)[A-Z]{2,8}_ALLREDUCE")
_SHAPE = re.compile(r"\[((?:[0-9]{1,15}(?:, ?[0-9]{1,15}){0,31})?)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCall:
    """One tensor's part of one all_reduce.

    Attributes:
        tensor: its name.
        dtype: as Horovod writes it, `float32`.
        elements: product of its shape.
        start_us, end_us: the interval of the communication, µs from the start of the timeline.
        ranks: ranks that took part in its last negotiation, 0 where none was seen.
    """

    tensor: str
    dtype: str
    elements: int
    start_us: float
    end_us: float
    ranks: int


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What a timeline holds.

    Attributes:
        calls: tensors' parts of all_reduces, in the order in which they ended.
        left_out: reason -> operations that make no message.
        ranks: ranks ever seen in a negotiation.
        started_s: wall clock at its start, seconds since 1970, 0 where unknown.
        is_cut: whether the last event is incomplete or an operation never ended.
        is_full: whether reading stopped at the largest number of calls.
    """

    calls: list[TensorCall] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    ranks: set[str] = field(default_factory=set)
    started_s: float = 0.0
    is_cut: bool = False
    is_full: bool = False


def read_timeline(document: Document) -> Timeline:
    """Read a timeline.

    Raises:
        TraceError: no JSON array of events, or compressed data that end or break.
    """
    timeline, tensors = Timeline(), dict[object, _Tensor]()
    for event in _events(document, timeline):
        _take(event, timeline, tensors)
        if len(timeline.calls) == CALLS:
            timeline.is_full = True
            break
    timeline.is_cut |= any(tensor.open for tensor in tensors.values())
    return timeline


@dataclass(slots=True, kw_only=True)
class _Tensor:
    """One tensor while its events come in: what is open, outermost first."""

    name: str
    open: list[tuple[str, float]] = field(default_factory=list)
    interval_us: tuple[float, float] | None = None
    ranks: set[str] = field(default_factory=set)


def _events(document: Document, timeline: Timeline) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of the array without ever holding more than two blocks of it."""
    label, decoder = document.label, json.JSONDecoder(strict=False)
    text = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    buffer = text.decode(read_block(document, _BLOCK_BYTES)).lstrip()
    if not buffer.startswith("["):
        raise TraceError(
            f"{label} is not a Horovod timeline: no JSON array", hint="give the file of --timeline-filename"
        )
    at, is_over = 1, False
    while True:
        if not is_over and len(buffer) - at < _EVENT_CHARS:
            block = read_block(document, _BLOCK_BYTES)
            is_over = not block
            buffer, at = buffer[at:] + text.decode(block, is_over), 0
        at = _gap_end(buffer, at)
        if at == len(buffer):
            if is_over:
                return
            continue
        if buffer[at] == "]":
            return
        try:
            event, at = decoder.raw_decode(buffer, at)
        except (ValueError, RecursionError) as error:
            # An event that does not end with the file is where the writer was stopped; any other is damage.
            if is_over and isinstance(error, ValueError) and buffer[at] == "{" and len(buffer) - at < _EVENT_CHARS:
                timeline.is_cut = True
                return
            raise TraceError(
                f"{label} is damaged: {str(error)[:120]}", hint="copy the file again once the training has ended"
            ) from error
        if isinstance(event, dict):
            yield event


def _gap_end(buffer: str, at: int) -> int:
    found = _GAP.match(buffer, at)
    return found.end() if found else at


def _take(event: Mapping[str, Any], timeline: Timeline, tensors: dict[object, _Tensor]) -> None:
    phase, key, args = event.get("ph"), event.get("pid"), event.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "M":
        timeline.started_s = (_number(args.get("start_time_since_epoch_in_micros")) or 0.0) / 1e6 or timeline.started_s
        if event.get("name") == "process_name" and isinstance(args.get("name"), str) and _is_key(key):
            tensors.setdefault(key, _Tensor(name=args["name"][:300]))
        return
    tensor = tensors.get(key) if _is_key(key) else None
    moment = _number(event.get("ts"))
    if tensor is None or moment is None:
        return
    name = str(event.get("name", ""))
    if phase == "B":
        if name.startswith("NEGOTIATE_"):
            tensor.ranks = set()
        # Only operation and activity nest; Horovod writes nothing deeper.
        if len(tensor.open) < 8:
            tensor.open.append((name, moment))
    elif phase == "X" and tensor.open and tensor.open[-1][0].startswith("NEGOTIATE_") and name.isdigit():
        tensor.ranks.add(name[:7])
        timeline.ranks.add(name[:7])
    elif phase == "E" and tensor.open:
        _end(tensor, moment, args, timeline)


def _end(tensor: _Tensor, end_us: float, args: Mapping[str, Any], timeline: Timeline) -> None:
    name, start_us = tensor.open.pop()
    if tensor.open:
        if _ACTIVITY.fullmatch(name) and end_us >= start_us:
            tensor.interval_us = (start_us, end_us)
        return
    interval_us, tensor.interval_us = tensor.interval_us, None
    if name.startswith("NEGOTIATE_"):
        return
    if name != "ALLREDUCE":
        timeline.left_out[_WHY.get(name, "other operation, which ncclt has no message for")] += 1
        return
    elements = _elements(args.get("shape"))
    if interval_us is None or elements is None or not isinstance(args.get("dtype"), str):
        missing = "its communication" if interval_us is None else "its shape and dtype"
        timeline.left_out[f"ALLREDUCE without {missing}"] += 1
        return
    timeline.calls.append(
        TensorCall(
            tensor=tensor.name,
            dtype=args["dtype"],
            elements=elements,
            start_us=interval_us[0],
            end_us=interval_us[1],
            ranks=len(tensor.ranks),
        )
    )


_WHY = {
    "BROADCAST": "BROADCAST: the timeline does not give its size",
    "ALLGATHER": "ALLGATHER: the timeline does not give the part of each rank",
    "ALLTOALL": "ALLTOALL: the timeline does not give the part of each rank",
    "REDUCESCATTER": "REDUCESCATTER: the timeline does not give the part of each rank",
}


def _number(value: object) -> float | None:
    """Return a moment, µs; None for anything that cannot be one (not finite, absurdly large, not a number)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if -1e18 < value < 1e18 else None  # NaN compares false


def _is_key(key: object) -> bool:
    return isinstance(key, int | str)


def _elements(shape: object) -> int | None:
    """Return the product of a shape such as `[512, 1000]`; `[]` is a scalar, one element."""
    found = _SHAPE.fullmatch(shape) if isinstance(shape, str) else None
    if found is None:
        return None
    product = 1
    for extent in found[1].split(","):
        product *= int(extent) if extent.strip() else 1
    return product

"""Horovod timelines (`horovodrun --timeline-filename`): the fused all_reduces of rank 0, which stands for all.

Horovod copies tensors that are ready together into one fusion buffer and reduces that. The timeline shows tensors; the
message is a fusion group, the tensors whose communication runs at the same time. Which tensors meet in a group depends
on timing, so the sizes vary from step to step: every size is kept as it was seen, and the notes say how they cluster.

A timeline is a JSON array that Horovod appends to while it runs (horovod/common/timeline.cc): a tensor is a process of
the picture, named by a `process_name` event. Older releases never write the closing bracket. Its events are read one at
a time.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncclt.core.message import Collective, Message, format_bytes
from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import build_message
from ncclt.profile.numbers import as_mapping, as_text, parse_float
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document, read_block, strip_mark
from ncclt.profile.workload_builder import format_day

_CLUSTER_RATIO = 1.25
"""Sizes at most so far above the smallest of a cluster belong to it: groups that differ by a small tensor or two."""


class HorovodReader(Reader):
    """Reader of Horovod timelines; rank 0 writes one for the whole job."""

    name = "horovod"
    single = "timelines"
    empty = "no operation in it completed"
    hint = "record a timeline of the training itself, over more than one rank"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a JSON array with Horovod's events."""
        text = strip_mark(beginning)
        marks = (b'"NEGOTIATE_', b'"start_time_since_epoch_in_micros"', b'"CYCLE_START"')
        return text.startswith(b"[") and b'"ph"' in text and any(mark in text for mark in marks)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield one call per fusion group."""
        for document in source.documents():
            timeline = read_timeline(document)
            source.left_out = timeline.left_out
            source.world_size, source.ranks = len(timeline.ranks), {0}
            groups = group_tensors(timeline.calls, world_size=source.world_size)
            if not groups:
                return
            source.steps = _count_steps(timeline.calls)
            source.whole_file = not source.steps
            counts = Counter(message for message, _group in groups)
            source.created = format_day(timeline.started_s)
            source.detail["size_clusters"] = _clusters(counts)
            source.notes += _notes(timeline, groups, counts, source.steps)
            for message, group in groups:
                yield Call(message=message, rank=0, time_us=group.time_us)


def group_tensors(calls: Iterable[TensorCall], *, world_size: int) -> list[tuple[Message, FusionGroup]]:
    """Return the messages: tensors of one dtype and one set of ranks whose intervals all overlap.

    A tensor is once in a message, so its second call opens the next one. Groups of empty tensors make none.

    Args:
        calls: tensors' parts, in any order.
        world_size: ranks of a tensor whose negotiation was not seen (Horovod caches what was agreed before).

    Raises:
        TraceError: a dtype is not known, or a message is larger than any buffer.
    """
    done: list[FusionGroup] = []
    last: dict[tuple[str, int], FusionGroup] = {}
    for call in sorted(calls, key=lambda c: (c.start_us, c.end_us, c.tensor)):
        kind = (call.dtype, call.ranks or world_size)
        group = last.get(kind)
        if group is None or not group.meets(call):
            group = last[kind] = FusionGroup(start_us=call.start_us, first_end_us=call.end_us)
            done.append(group)
        group.add(call)
    return [(message, group) for group in done if (message := group.message(world_size)) is not None]


@dataclass(slots=True, kw_only=True)
class FusionGroup:
    """Tensors that were reduced as one message.

    Attributes:
        start_us: start of the first, µs.
        first_end_us: end of the one that ended first, µs.
        calls: name of a tensor -> its call.
    """

    start_us: float
    first_end_us: float
    calls: dict[str, TensorCall] = field(default_factory=dict)

    @property
    def time_us(self) -> float:
        """Return the time from the first start to the last end, µs."""
        return max(call.end_us for call in self.calls.values()) - self.start_us

    def meets(self, call: TensorCall) -> bool:
        """Return True if a call is of this group."""
        # Tensors of a group without length start and end at the same moment: that is overlap, too.
        overlaps = call.start_us < self.first_end_us or (call.start_us == self.start_us == self.first_end_us)
        return overlaps and call.tensor not in self.calls

    def add(self, call: TensorCall) -> None:
        """Add the call of another tensor."""
        self.calls[call.tensor] = call
        self.first_end_us = min(self.first_end_us, call.end_us)

    def message(self, world_size: int) -> Message | None:
        """Return the all_reduce, None where all its tensors are empty.

        Raises:
            TraceError: as `group_tensors`.
        """
        first = next(iter(self.calls.values()))
        elements = sum(call.elements for call in self.calls.values())
        ranks = first.ranks or world_size
        message = build_message("tensors", Collective.ALL_REDUCE, max(1, elements), first.dtype[:40], group_size=ranks)
        if isinstance(message, str):
            hint = "its dtype or shapes cannot be right"
            raise TraceError(f"tensor {first.tensor!r} is in a message of {message}", hint=hint)
        return message if elements else None


def _count_steps(calls: Sequence[TensorCall]) -> int:
    """Return the steps, as most tensors were sent once per step; 0 where they were sent unequally often."""
    times = Counter(Counter(call.tensor for call in calls).values())
    steps, tensors = max(times.items(), key=lambda item: (item[1], item[0]))
    return steps if 2 * tensors >= times.total() else 0


def _clusters(counts: Counter[Message]) -> str:
    """Describe the sizes by clusters, smallest first: `8.36 MiB-9.51 MiB x8`."""
    clusters: list[list[int]] = []
    for size_bytes in sorted(message.size_bytes for message in counts.elements()):
        if not clusters or size_bytes > _CLUSTER_RATIO * clusters[-1][0]:
            clusters.append([])
        clusters[-1].append(size_bytes)
    ends = ((dict.fromkeys((format_bytes(sizes[0]), format_bytes(sizes[-1]))), len(sizes)) for sizes in clusters)
    return ", ".join(f"{'-'.join(sizes)} x{count}" for sizes, count in ends)


def _notes(
    timeline: Timeline, groups: Sequence[tuple[Message, FusionGroup]], counts: Counter[Message], steps: int
) -> list[str]:
    tensors = sum(len(group.calls) for _message, group in groups)
    sent = Counter(call.tensor for call in timeline.calls)
    agreeing = sum(times == steps for times in sent.values())
    notes = [
        f"messages are fusion groups, tensors whose communication overlaps: {tensors} calls of tensors in "
        f"{len(groups)} messages of {len(counts)} sizes"
    ]
    if steps:
        guess = f"{agreeing} of {len(sent)} tensors were sent {steps} x, so {steps} steps"
        notes.insert(0, f"steps are not marked: {guess}")
    if len(counts) > 1:
        notes.append("groups form by timing and vary from step to step: see the clusters in size_clusters")
    if not timeline.ranks:
        notes.append("no negotiation was recorded: assuming groups of the whole job")
    if timeline.is_cut:
        notes.append("the timeline is cut off at its end: unfinished operations are left out")
    if timeline.is_full:
        notes.append(f"only the first {CALLS} calls of tensors were read")
    return notes


_BLOCK_BYTES = 1 << 18
_EVENT_CHARS = 1 << 16
"""Longest event accepted; real ones have 200 characters, and tensor names a few hundred more."""

CALLS = 500_000
"""Most calls of tensors read, a thousand steps of a large model: more of the same add nothing."""

_GAP = re.compile(r"[\s,]*")

# The activity that is the communication itself: NCCL_ALLREDUCE, MPI_ALLREDUCE, GLOO_ALLREDUCE, CCL_ALLREDUCE, ...
_ACTIVITY = re.compile(r"(?!NEGOTIATE_)[A-Z]{2,8}_ALLREDUCE")
_SHAPE = re.compile(r"\[((?:[0-9]{1,15}(?:, ?[0-9]{1,15}){0,31})?)\]")


class TensorCall(NamedTuple):
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
    """Content of a timeline.

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
        hint = "give the file of --timeline-filename"
        raise TraceError(f"{label} is not a Horovod timeline: no JSON array", hint=hint)
    at, is_over = 1, False
    while True:
        if not is_over and len(buffer) - at < _EVENT_CHARS:
            block = read_block(document, _BLOCK_BYTES)
            is_over = not block
            buffer, at = buffer[at:] + text.decode(block, is_over), 0
        gap = _GAP.match(buffer, at)
        at = gap.end() if gap else at
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
            hint = "copy the file again once the training has ended"
            raise TraceError(f"{label} is damaged: {str(error)[:120]}", hint=hint) from error
        if isinstance(event, dict):
            yield event


def _take(event: Mapping[str, Any], timeline: Timeline, tensors: dict[object, _Tensor]) -> None:
    phase, key, args = event.get("ph"), event.get("pid"), as_mapping(event.get("args"))
    if phase == "M":
        started_us = parse_float(args.get("start_time_since_epoch_in_micros"))
        timeline.started_s = (started_us or 0.0) / 1e6 or timeline.started_s
        if event.get("name") == "process_name" and isinstance(args.get("name"), str) and _is_key(key):
            tensors.setdefault(key, _Tensor(name=args["name"][:300]))
        return
    tensor = tensors.get(key) if _is_key(key) else None
    moment = parse_float(event.get("ts"))
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
        lacks = f"{name}: the timeline does not give {_LACKS.get(name)}"
        timeline.left_out[lacks if name in _LACKS else "other operation, which ncclt does not support"] += 1
        return
    shape = _SHAPE.fullmatch(as_text(args.get("shape")))
    if interval_us is None or shape is None or not isinstance(args.get("dtype"), str):
        missing = "its communication" if interval_us is None else "its shape and dtype"
        timeline.left_out[f"ALLREDUCE without {missing}"] += 1
        return
    # `[]` is a scalar, one element.
    elements = math.prod(int(extent) for extent in shape[1].split(",") if extent.strip())
    timeline.calls.append(TensorCall(tensor.name, args["dtype"], elements, *interval_us, len(tensor.ranks)))


_LACKS = {"BROADCAST": "its size"} | dict.fromkeys(("ALLGATHER", "ALLTOALL", "REDUCESCATTER"), "the part of each rank")


def _is_key(key: object) -> bool:
    return isinstance(key, int | str)

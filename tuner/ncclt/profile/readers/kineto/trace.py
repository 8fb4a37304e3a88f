"""The events of one rank's Kineto trace that matter, picked in one pass."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from typing import Any

from ncclt.profile.readers.kineto.exposure import KernelTimeline
from ncclt.profile.readers.kineto.job import KinetoJob, integer, job_of, number
from ncclt.profile.readers.kineto.names import is_barrier
from ncclt.profile.readers.kineto.stream import ESCAPED_ASCII, stream_trace
from ncclt.profile.readers.kineto.stream_kernels import KERNEL_CATEGORIES, note_kernels
from ncclt.profile.reading import day_of
from ncclt.profile.source import Document
from ncclt.profile.steps import MARK, OPTIMIZER

# Each backend of c10d names its annotations after itself: nccl, hccl (Ascend, Gaudi), xccl (Intel), cncl, gloo, ...
_ANNOTATION = re.compile(r"(?:[a-z]ccl|cncl|gloo|mpi|ucc):")
_KERNEL = re.compile(r"nccl(?i:\w*kernel|sym)")
# CPU-side events; torch before 1.11 wrote operators and annotations alike as "Operator".
_CPU_CATEGORIES = frozenset({"cpu_op", "user_annotation", "Operator"})
_GPU_ANNOTATION = "gpu_user_annotation"
_LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})

# The same in the bytes of the file: every event that `take` keeps has one of these names.
_COLON = rb"[ \t\n\r]*+:[ \t\n\r]*+"
_OF_INTEREST = re.compile(
    rb'"name"' + _COLON + rb'"(?:record_param_comms"|c10d::|nccl|[a-z]ccl:|cncl:|gloo:|mpi:|ucc:'
    rb"|ProfilerStep#[0-9]|Optimizer\.step#)"
)
_CORRELATION = re.compile(rb'"correlation"' + _COLON + rb'"?[ \t\n\r]*+(-?[0-9]{1,18})')
_TIME = re.compile(rb'"ts"')

# All that is ever asked of an event, so that a long trace of communication stays small in memory.
_KEPT_ARGS = (
    "External id",
    "external id",
    "correlation",
    "Collective name",
    "dtype",
    "In msg nelems",
    "In msg size",
    "Out msg nelems",
    "Out msg size",
    "Group size",
    "Process Group Name",
    "Process Group ID",
    "Global rank start",
    "Global rank stride",
    "Rank",
    "Seq",
    "Comms Id",
    "Input Tensors start",
    "Input Dims",
    "Input type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One complete ("X") event.

    Attributes:
        name: as recorded.
        start_us: start, µs on the trace's own clock.
        duration_us: length, µs.
        thread: process and thread, or device and stream.
        args: what the profiler wrote about it, as far as ncclt reads it.
    """

    name: str
    start_us: float
    duration_us: float
    thread: str
    args: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        """Return the end, µs on the trace's own clock."""
        return self.start_us + self.duration_us

    @property
    def external_id(self) -> int | None:
        """Return the number that Kineto shares between an operator and the kernels it launched."""
        return integer(self.args.get("External id", self.args.get("external id")))

    @property
    def correlation(self) -> int | None:
        """Return the number that CUPTI shares between a kernel and the call that launched it."""
        return integer(self.args.get("correlation"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank's trace shows of communication, events in order of time.

    Attributes:
        label: the file's name.
        job: the head of the trace.
        comms: `record_param_comms`, the calls with their metadata (torch 2.3 and later).
        operators: `c10d::*` operators.
        annotations: `nccl:*`, `gloo:*`, ... ranges on the CPU's time line.
        barriers: thread -> when its barriers started, and when the last of those started until then ended, µs;
            collectives inside them are theirs.
        kernels: NCCL's kernels on the GPU's time line.
        steps: number of a `ProfilerStep#` mark -> its range.
        optimizers: ranges of optimizers on the CPU's time line.
        timeline: when all kernels ran.
        recorded_on: ISO date of the recording, empty where the clock does not say.
    """

    label: str
    job: KinetoJob
    comms: tuple[Event, ...]
    operators: tuple[Event, ...]
    annotations: tuple[Event, ...]
    barriers: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    kernels: tuple[Event, ...]
    steps: Mapping[int, Event]
    optimizers: tuple[Event, ...]
    timeline: KernelTimeline
    recorded_on: str

    def in_barrier(self, event: Event) -> bool:
        """Return whether an event belongs to a barrier on the same thread."""
        starts, ends = self.barriers.get(event.thread, ((), ()))
        begun = bisect_right(starts, event.start_us)
        return begun > 0 and event.start_us <= ends[begun - 1]


def rank_trace(document: Document) -> RankTrace:
    """Pick the communication events out of a trace, reading it from its beginning.

    Raises:
        TraceError: the document is damaged, cut off, or has no list of events.
    """
    picker = EventPicker()
    head = stream_trace(document, picker.find, picker.take, picker.glance)
    return picker.trace(head, document.label)


def launches(document: Document, correlations: Set[int]) -> dict[int, Event]:
    """Return the CUDA calls with these correlations, reading the trace once more from its beginning.

    Where Kineto does not say which operator a kernel belongs to, the call that launched it does. It may stand
    anywhere in the file, before the kernel or behind it.

    Raises:
        TraceError: as `rank_trace`.
    """
    found: dict[int, Event] = {}

    def find(data: bytes, start: int) -> Iterable[int]:
        hits = (m.start() for m in _CORRELATION.finditer(data, start) if int(m[1]) in correlations)
        return merge(hits, _escaped(data, start))

    def take(row: object) -> None:
        if isinstance(row, Mapping) and row.get("cat") in _LAUNCH_CATEGORIES:
            event = _event(row)
            if event.correlation is not None and event.correlation in correlations:
                found[event.correlation] = event

    if correlations:
        stream_trace(document, find, take)
    return found


class EventPicker:
    """Picks the events of communication from the rows of a trace.

    `find` tells where in the bytes such events may be, so that the others need not be parsed. Fed with all rows,
    `take` picks the same. The kernels of compute, of which nothing matters but their time, are seen by `glance`.
    """

    def __init__(self) -> None:
        kinds = ("comms", "operators", "annotations", "barriers", "kernels", "steps", "optimizers")
        self._picked: dict[str, list[Event]] = {kind: [] for kind in kinds}
        self._timeline = KernelTimeline()
        self._first_us: float | None = None

    def find(self, data: bytes, start: int) -> Iterable[int]:
        """Return where the events of interest are; until the clock is known, all with a time are."""
        return merge(
            (m.start() for m in _OF_INTEREST.finditer(data, start)),
            _escaped(data, start),
            (m.start() for m in takewhile(lambda _: self._first_us is None, _TIME.finditer(data, start))),
        )

    def take(self, row: object) -> None:
        """Keep one parsed row if it matters."""
        if not isinstance(row, Mapping) or row.get("ph") != "X":
            return
        if self._first_us is None and row.get("ts"):
            self._first_us = number(row.get("ts"))
        for kind in _kinds(row):
            self._picked[kind].append(_event(row))
        name = row.get("name")
        if row.get("cat") == _GPU_ANNOTATION and isinstance(name, str) and (step := MARK.match(name)):
            self._timeline.add_gpu_step(int(step[1]), number(row.get("ts")), number(row.get("dur")))

    def glance(self, data: bytes, parse: Callable[[], list[Any]]) -> None:
        """Note when the kernels among these events ran."""
        note_kernels(self._timeline, data, parse)

    def trace(self, head: Mapping[str, Any], label: str) -> RankTrace:
        """Return what was picked; `head` is all of the document but its events."""
        events = {kind: tuple(sorted(found, key=lambda e: e.start_us)) for kind, found in self._picked.items()}
        steps: dict[int, Event] = {}
        for event in events.pop("steps"):
            match = MARK.match(event.name)
            if match and event.duration_us > 0:
                steps.setdefault(int(match[1]), event)
        return RankTrace(
            label=label,
            job=job_of(head),
            steps=steps,
            barriers=_by_thread(events.pop("barriers")),
            timeline=self._timeline,
            recorded_on=_date(self._first_us, head.get("baseTimeNanoseconds")),
            **events,
        )


def _by_thread(barriers: Iterable[Event]) -> dict[str, tuple[list[float], list[float]]]:
    """Index barriers, given in order of time; they may lie inside each other."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for barrier in barriers:
        starts, ends = found.setdefault(barrier.thread, ([], []))
        starts.append(barrier.start_us)
        ends.append(max(barrier.end_us, ends[-1]) if ends else barrier.end_us)
    return found


def _escaped(data: bytes, start: int) -> Iterable[int]:
    """Return where ASCII characters are escaped by number: a name may hide behind that."""
    if data.find(b"\\", start) < 0:  # by far the commonest case, and much faster to see
        return ()
    return (m.start() for m in ESCAPED_ASCII.finditer(data, start))


def _kinds(row: Mapping[str, Any]) -> Iterable[str]:
    name, category = row.get("name"), row.get("cat")
    if not isinstance(name, str):
        return
    if category in KERNEL_CATEGORIES:
        if _KERNEL.match(name):
            yield "kernels"
    elif category in _CPU_CATEGORIES:
        if name == "record_param_comms":
            args = row.get("args")
            collective = args.get("Collective name") if isinstance(args, Mapping) else None
            yield "barriers" if isinstance(collective, str) and is_barrier(collective) else "comms"
        elif name.startswith("c10d::"):
            yield "barriers" if is_barrier(name) else "operators"
        elif _ANNOTATION.match(name):
            yield "annotations"
        elif MARK.match(name):
            yield "steps"
        elif OPTIMIZER.match(name):
            yield "optimizers"


def _event(row: Mapping[str, Any]) -> Event:
    args = row.get("args")
    return Event(
        name=sys.intern(str(row.get("name"))),
        start_us=number(row.get("ts")),
        duration_us=max(0.0, number(row.get("dur"))),
        thread=sys.intern(f"{row.get('pid')}/{row.get('tid')}"),
        args={key: _shared(args[key]) for key in _KEPT_ARGS if key in args} if isinstance(args, Mapping) else {},
    )


def _shared(value: object) -> object:
    """Return the same object for equal texts: a trace repeats few of them in every event."""
    return sys.intern(value) if isinstance(value, str) else value


def _date(first_us: float | None, base_ns: object) -> str:
    """Return the day of the first event: `ts` counts from baseTimeNanoseconds, before torch 2.3 from 1970."""
    return day_of((first_us or 0.0) / 1e6 + number(base_ns) / 1e9)

"""One rank's Kineto trace, read in one pass: its head, its communication events, and the run times of its kernels.

Kernels are too many to parse each: the four fields that matter are read off the bytes.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from typing import Any

from ncclt.profile.c10d import ProcessGroup, is_barrier
from ncclt.profile.numbers import as_list, as_mapping, as_text, parse_float, parse_int
from ncclt.profile.readers.kineto.exposure import KernelTimeline
from ncclt.profile.readers.kineto.stream import ESCAPED_ASCII, stream_trace
from ncclt.profile.source import Document
from ncclt.profile.steps import MARK, OPTIMIZER
from ncclt.profile.workload_builder import format_day


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoJob:
    """The job as one rank's trace describes it.

    Attributes:
        rank: global rank, None where the trace does not say.
        world_size: ranks of the job, 0 where the trace does not say.
        backend: `nccl`, `gloo`, ..., empty where the trace does not say.
        nccl_version: as written in the trace, may be empty.
        groups: name of a process group -> what is said of it, where listed.
        node_gpus: GPUs that the recording process saw, 0 where not listed.
    """

    rank: int | None
    world_size: int
    backend: str
    nccl_version: str
    groups: Mapping[str, ProcessGroup]
    node_gpus: int

    @property
    def assumed_group_size(self) -> int:
        """Return the group size of a call that names no group: that of all groups where they agree, else the world."""
        sizes = {group.size for name, group in self.groups.items() if not self.bypasses_nccl(name)}
        return sizes.pop() if len(sizes) == 1 else self.world_size

    def bypasses_nccl(self, group: str) -> bool:
        """Return True if a group of a job over NCCL runs over another backend."""
        listed = self.groups.get(group)
        return listed is not None and "nccl" in self.backend and "nccl" not in listed.backend

    def spans_nodes(self, *, start: int | None, stride: int | None, size: int) -> bool:
        """Return True if a group of part of the job reaches over nodes; False where that is not known.

        Ranks are taken to fill the nodes in order, as torchrun places them, and a node to have as many GPUs as the
        recording process saw. Groups of the whole job stay False: their place is known only when they are placed.
        """
        if start is None or stride is None or stride < 1 or not 1 < size < self.world_size:
            return False
        if self.node_gpus < 2 or self.world_size % self.node_gpus:
            return False
        return start // self.node_gpus != (start + stride * (size - 1)) // self.node_gpus


def read_job(document: Mapping[str, Any]) -> KinetoJob:
    """Read the head of a trace; every field of it may be missing, and numbers may be strings."""
    info = as_mapping(document.get("distributedInfo"))
    groups: dict[str, ProcessGroup] = {}
    for row in map(as_mapping, as_list(info.get("pg_config"))):
        if size := parse_int(row.get("pg_size")):
            groups[str(row.get("pg_name"))] = ProcessGroup(size=size, backend=str(row.get("backend_config", "")))
    return KinetoJob(
        rank=parse_int(info.get("rank")),
        world_size=parse_int(info.get("world_size")) or 0,
        backend=str(info.get("backend", "")),
        nccl_version=str(info.get("nccl_version", "")),
        groups=groups,
        node_gpus=len(as_list(document.get("deviceProperties"))),
    )


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
    *("External id", "external id", "correlation", "Collective name", "dtype", "Seq", "Comms Id", "Rank"),
    *("In msg nelems", "In msg size", "Out msg nelems", "Out msg size", "Input Tensors start", "Input Dims"),
    *("Input type", "Group size", "Process Group Name", "Process Group ID"),
    *("Global rank start", "Global rank stride"),
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
        return parse_int(self.args.get("External id", self.args.get("external id")))

    @property
    def correlation(self) -> int | None:
        """Return the number that CUPTI shares between a kernel and the call that launched it."""
        return parse_int(self.args.get("correlation"), least=-(2**63))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """Communication in one rank's trace, events in order of time.

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
        """Return True if an event belongs to a barrier on the same thread."""
        starts, ends = self.barriers.get(event.thread, ((), ()))
        begun = bisect_right(starts, event.start_us)
        return begun > 0 and event.start_us <= ends[begun - 1]


def read_trace(document: Document) -> RankTrace:
    """Pick the communication events out of a trace, reading it from its beginning.

    Raises:
        TraceError: the document is damaged, cut off, or has no list of events.
    """
    picker = EventPicker()
    head = stream_trace(document, picker.find, picker.take, picker.glance)
    return picker.trace(head, document.label)


def find_launches(document: Document, correlations: Set[int]) -> dict[int, Event]:
    """Return the CUDA calls with these correlations, reading the trace once more from its beginning.

    Where Kineto does not say which operator a kernel belongs to, the call that launched it does. It may stand
    anywhere in the file, before the kernel or behind it.

    Raises:
        TraceError: as `read_trace`.
    """
    launches: dict[int, Event] = {}

    def find(data: bytes, start: int) -> Iterable[int]:
        hits = (m.start() for m in _CORRELATION.finditer(data, start) if int(m[1]) in correlations)
        return merge(hits, _escaped(data, start))

    def take(row: object) -> None:
        if isinstance(row, Mapping) and row.get("cat") in _LAUNCH_CATEGORIES:
            event = _event(row)
            if event.correlation is not None and event.correlation in correlations:
                launches[event.correlation] = event

    if correlations:
        stream_trace(document, find, take)
    return launches


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
        """Return the places of the events of interest; until the clock is known, all with a time are."""
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
            self._first_us = _moment(row, "ts")
        for kind in _kinds(row):
            self._picked[kind].append(_event(row))
        name = row.get("name")
        if row.get("cat") == _GPU_ANNOTATION and isinstance(name, str) and (step := MARK.match(name)):
            self._timeline.add_gpu_step(int(step[1]), _moment(row, "ts"), _moment(row, "dur"))

    def glance(self, data: bytes, parse: Callable[[], list[Any]]) -> None:
        """Note when the kernels among these events ran."""
        note_kernels(self._timeline, data, parse)

    def trace(self, head: Mapping[str, Any], label: str) -> RankTrace:
        """Return the picked events; `head` is all of the document but its events."""
        events = {kind: tuple(sorted(picked, key=lambda e: e.start_us)) for kind, picked in self._picked.items()}
        steps: dict[int, Event] = {}
        for event in events.pop("steps"):
            match = MARK.match(event.name)
            if match and event.duration_us > 0:
                steps.setdefault(int(match[1]), event)
        return RankTrace(
            label=label,
            job=read_job(head),
            steps=steps,
            barriers=_by_thread(events.pop("barriers")),
            timeline=self._timeline,
            # `ts` counts from baseTimeNanoseconds, before torch 2.3 from 1970.
            recorded_on=format_day(
                (self._first_us or 0.0) / 1e6 + (parse_float(head.get("baseTimeNanoseconds")) or 0.0) / 1e9
            ),
            **events,
        )


def _by_thread(barriers: Iterable[Event]) -> dict[str, tuple[list[float], list[float]]]:
    """Index barriers, given in order of time; they may lie inside each other."""
    threads: dict[str, tuple[list[float], list[float]]] = {}
    for barrier in barriers:
        starts, ends = threads.setdefault(barrier.thread, ([], []))
        starts.append(barrier.start_us)
        ends.append(max([barrier.end_us, *ends[-1:]]))
    return threads


def _escaped(data: bytes, start: int) -> Iterable[int]:
    """Return the places of ASCII characters escaped by number, behind which a name may hide."""
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
            collective = as_text(as_mapping(row.get("args")).get("Collective name"))
            yield "barriers" if is_barrier(collective) else "comms"
        elif name.startswith("c10d::"):
            yield "barriers" if is_barrier(name) else "operators"
        elif _ANNOTATION.match(name):
            yield "annotations"
        elif MARK.match(name):
            yield "steps"
        elif OPTIMIZER.match(name):
            yield "optimizers"


def _event(row: Mapping[str, Any]) -> Event:
    args = as_mapping(row.get("args"))
    # A trace repeats few texts in every event: equal ones are kept once.
    known = ((key, args[key]) for key in _KEPT_ARGS if key in args)
    kept_args = {key: sys.intern(value) if isinstance(value, str) else value for key, value in known}
    return Event(
        name=sys.intern(str(row.get("name"))),
        start_us=_moment(row, "ts"),
        duration_us=max(0.0, _moment(row, "dur")),
        thread=sys.intern(f"{row.get('pid')}/{row.get('tid')}"),
        args=kept_args,
    )


def _moment(row: Mapping[str, Any], key: str) -> float:
    return parse_float(row.get(key)) or 0.0


KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
_COPIES = "gpu_memcpy"
_WITHIN_GPU = "Memcpy DtoD"
_BETWEEN_GPUS = "Memcpy PtoP"

_SPACE = rb"[ \t\n\r]*+"
_COMMA = _SPACE + rb"," + _SPACE
_NUMBER = rb"(-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+)"


def _field(name: bytes, value: bytes) -> bytes:
    return b'"' + name + b'"' + _COLON + value


# The order in which Kineto writes the fields (libkineto/src/output_json.cpp, 2022 to 2026). Where others follow the
# category, the category alone is found.
_FIELDS = _COMMA.join(
    (
        _field(b"name", rb'"([^"]*+)"'),
        _field(b"pid", rb"([0-9]++)"),
        _field(b"tid", rb"[0-9]++"),
        _field(b"ts", _NUMBER),
        _field(b"dur", _NUMBER),
    )
)
_KERNEL_FIELDS = re.compile(
    _field(b"cat", rb'"([kK]ernel|gpu_memcpy)"') + rb"(?:" + _COMMA + _FIELDS + _SPACE + rb"[,}])?+"
)
_COMPLETE = re.compile(rb'"ph"' + _COLON + rb'"X"' + _COMMA + rb"\Z")
_WITHIN = 64


def note_kernels(timeline: KernelTimeline, data: bytes, parse: Callable[[], list[Any]]) -> None:
    """Add the kernels, and the copies from a GPU's memory to its own or another's, among some events to a timeline.

    Args:
        data: the bytes of complete events.
        parse: returns the same events parsed; asked only where not all kernels are laid out as Kineto does it.

    Raises:
        TraceError: from `parse`.
    """
    kernels = list(_KERNEL_FIELDS.finditer(data))
    # The phase of a complete event, one with a duration, stands directly before its category.
    plain = all(k[2] is not None and _COMPLETE.search(data, max(0, k.start() - _WITHIN), k.start()) for k in kernels)
    if plain and data.find(b"\\") >= 0:
        # A quote may be escaped and the name go on behind it; or the category hides behind a number.
        plain = not any(b"\\" in kernel[2] for kernel in kernels) and not ESCAPED_ASCII.search(data)
    if plain:
        for kernel in kernels:
            category, name, device, start_us, duration_us = (part.decode(errors="replace") for part in kernel.groups())
            _note_kernel(timeline, category, name, float(start_us), float(duration_us), sys.intern(device))
        return
    for row in parse():
        if isinstance(row, Mapping) and row.get("ph") == "X":
            times = _moment(row, "ts"), _moment(row, "dur")
            _note_kernel(timeline, str(row.get("cat")), str(row.get("name")), *times, str(row.get("pid")))


def _note_kernel(
    timeline: KernelTimeline, category: str, name: str, start_us: float, duration_us: float, device: str
) -> None:
    if category in KERNEL_CATEGORIES:
        timeline.add_kernel(name, start_us, duration_us, device)
    elif category == _COPIES and name.startswith((_WITHIN_GPU, _BETWEEN_GPUS)):
        timeline.add_copy(start_us, duration_us, device, leaves_gpu=name.startswith(_BETWEEN_GPUS))

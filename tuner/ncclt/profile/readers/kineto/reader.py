"""PyTorch Kineto traces (torch.profiler): .json, .json.gz or a tar of them, one document per rank.

Proven on public NCCL traces of 2022 to 2026 and on own gloo runs of torch 2.8 and 2.13. Each call is read from exactly
one event family: the `record_param_comms` operators with metadata, else the kernels that carry the same metadata,
else the `c10d::` operators and backend annotations with input shapes. The time of a call is that of its kernels, joined
to the calls that launched them.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import median

from ncclt.core.message import Message
from ncclt.core.workload import TimedCall, Workload
from ncclt.errors import TraceError
from ncclt.profile.other_libraries import NCCL_INSTEAD
from ncclt.profile.rank_files import RankFileReader, RankReading
from ncclt.profile.reader import Source
from ncclt.profile.readers.kineto.calls import (
    KERNELS,
    OPERATORS,
    TracedCall,
    has_metadata,
    read_calls,
    torch_version_hint,
)
from ncclt.profile.readers.kineto.exposure import RankExposure, least_exposed, mean_exposure
from ncclt.profile.readers.kineto.trace import Event, RankTrace, find_launches, read_trace
from ncclt.profile.roles import RankRoles
from ncclt.profile.source import Document, strip_mark
from ncclt.profile.steps import Step, TimeRange, divide_into_steps, steps_without_calls
from ncclt.profile.unsupported import XLA_TRACE
from ncclt.profile.views.exposure import Interval
from ncclt.profile.workload_builder import count_reasons, drop_answered_receives


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoSteps:
    """Calls of complete training steps.

    Attributes:
        calls: the calls inside them; all calls where no step is marked.
        count: complete steps, 0 where none is marked: the calls are then those of the whole file.
        step_times_us: their durations, µs; empty where none is marked.
        ranges: their begins and ends on the trace's clock, µs, each behind the number of its mark, -1 where it is not
            one mark; empty where none is marked.
        numbers: of all their marks.
        notes: what was left out, one sentence each.
    """

    calls: tuple[TracedCall, ...]
    count: int = 0
    step_times_us: tuple[float, ...] = ()
    ranges: tuple[tuple[int, Interval], ...] = ()
    numbers: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def calls_in_steps(
    calls: Sequence[TracedCall], marks: Mapping[int, Event], optimizers: Sequence[Event], *, on_gpu: bool
) -> KinetoSteps:
    """Keep the calls inside complete optimizer steps.

    Args:
        calls: all calls of the file.
        marks: number of a mark -> its range on the CPU's time line.
        optimizers: ranges of optimizers on the CPU's time line.
        on_gpu: the calls were read from kernels, which run later than the CPU, so their time does not identify a step.
    """
    complete = _find_complete(calls, marks, on_gpu=on_gpu)
    runs = [TimeRange(start=run.start_us, end=run.end_us, name=run.name) for run in optimizers]
    # Without times all calls belong to all steps together.
    steps, notes = divide_into_steps([] if on_gpu else calls, lambda call: call.event.start_us, complete, runs)
    if on_gpu:
        steps = steps_without_calls(complete, runs)
    if not steps:
        return KinetoSteps(calls=tuple(calls), notes=tuple(notes))
    if len(complete) < len(marks):
        notes.append(f"left out: {len(marks) - len(complete)} of {len(marks)} marked steps, cut off by the recording")
    timed = [step for step in steps if step.start > -inf]
    return KinetoSteps(
        calls=tuple(calls) if on_gpu else tuple(call for step in steps for call in step.calls),
        count=len(steps),
        step_times_us=tuple(_length_us(step, marks) for step in timed),
        ranges=tuple(
            (step.marks[0] if len(step.marks) == 1 else -1, (step.start, step.start + _length_us(step, marks)))
            for step in timed
        ),
        numbers=frozenset(number for step in steps for number in step.marks),
        notes=tuple(notes),
    )


def _length_us(step: Step[TracedCall], marks: Mapping[int, Event]) -> float:
    """Return the length of a step; a marked step ends with its last mark, not at the next one."""
    return (marks[step.marks[-1]].end_us if step.marks else step.end) - step.start


def _find_complete(calls: Sequence[TracedCall], marks: Mapping[int, Event], *, on_gpu: bool) -> list[TimeRange]:
    """Return the marks up to the next number, without a last one that was opened when the recording ended.

    `prof.step()` opens the next step at once, so a loop that leaves the profiler after it writes such a stub: without
    a call, and short beside the others.
    """
    spans = [
        TimeRange(
            start=mark.start_us,
            end=max(mark.end_us, marks[number + 1].start_us) if number + 1 in marks else mark.end_us,
            number=number,
        )
        for number, mark in sorted(marks.items())
    ]
    if len(spans) < 2 or on_gpu:
        return spans
    last, others = spans[-1], [marks[span.number].duration_us for span in spans[:-1]]
    used = any(last.start <= call.event.start_us <= last.end for call in calls)
    stub = not used and marks[last.number].duration_us < statistics.median(others) / 2
    return spans[:-1] if stub else spans


_MOST_CALLS = 1000
"""Max calls of a step in the document, far above DDP and FSDP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Times of one rank's kernels.

    Attributes:
        mean_us: message -> mean duration of its kernels, µs.
        runs: kernels that belong to a call, in order of time, with its message and when the CPU made it.
        without_metadata: kernels without collective metadata of their own.
        unmatched: kernels that belong to no call of the file.
        total: all NCCL kernels.
    """

    mean_us: Mapping[Message, float]
    runs: tuple[tuple[float, Message, Event], ...]
    without_metadata: int
    unmatched: int
    total: int


FindLaunches = Callable[[Set[int]], Mapping[int, Event]]
"""Finds the calls that launched kernels by their correlation, in a second pass over the file."""


def kernel_times(trace: RankTrace, calls: Sequence[TracedCall], *, find_launches: FindLaunches) -> KernelTimes:
    """Join kernels to calls and average their durations.

    A kernel carries its operator's "External id" where Kineto knows it (torch 2.2 and later); else the CUDA call that
    launched it lies, on the same thread, inside the operator or annotation of its collective.

    Raises:
        TraceError: from `find_launches`.
    """
    parts: dict[int, list[TracedCall]] = defaultdict(list)
    by_thread: dict[str, list[TracedCall]] = defaultdict(list)
    for call in calls:
        parts[id(call.event)].append(call)
    for call in sorted(calls, key=lambda c: c.event.start_us):
        by_thread[call.event.thread].append(call)
    by_id: dict[int | None, TracedCall] = {c.event.external_id: c for c in calls if c.event.external_id is not None}
    # Without metadata the field "External id" repeats the correlation, a number of its own series.
    matched = [by_id.get(kernel.external_id) if has_metadata(kernel) else None for kernel in trace.kernels]
    unnamed = {k.correlation for k, call in zip(trace.kernels, matched, strict=True) if not call}
    launches = find_launches({correlation for correlation in unnamed if correlation is not None})
    launched: dict[int, list[Event]] = defaultdict(list)
    unmatched = 0
    for kernel, matched_call in zip(trace.kernels, matched, strict=True):
        launch = launches.get(kernel.correlation) if kernel.correlation is not None else None
        if launching := matched_call or _find_launching_call(launch, by_thread):
            launched[id(launching.event)].append(kernel)
        else:
            unmatched += 1
    durations: dict[Message, list[float]] = defaultdict(list)
    runs: list[tuple[float, Message, Event]] = []
    for event, kernels in launched.items():
        for call, part in _parts(parts[event], kernels):
            durations[call.message].append(part.duration_us)
            runs.append((call.event.start_us, call.message, part))
    runs.sort(key=lambda run: run[2].start_us)
    return KernelTimes(
        mean_us={message: statistics.fmean(times_us) for message, times_us in durations.items()},
        runs=tuple(runs),
        without_metadata=sum(not has_metadata(kernel) for kernel in trace.kernels),
        unmatched=unmatched,
        total=len(trace.kernels),
    )


def _parts(calls: Sequence[TracedCall], kernels: Sequence[Event]) -> Iterator[tuple[TracedCall, Event]]:
    """Yield the calls of one event with their kernels: one each, or of a kernel that they share the part by bytes."""
    if len(calls) == len(kernels):
        yield from zip(calls, kernels, strict=True)
        return
    total = sum(call.message.size_bytes for call in calls)
    for kernel in kernels:
        start_us = kernel.start_us
        for call in calls:
            part_us = kernel.duration_us * call.message.size_bytes / total
            yield call, replace(kernel, start_us=start_us, duration_us=part_us)
            start_us += part_us


def median_step_calls(times: KernelTimes, steps: KinetoSteps) -> tuple[TimedCall, ...]:
    """Return the calls of the step of median length, in order of time; none without marked steps or where too many."""
    if not steps.ranges:
        return ()
    ordered = sorted(steps.ranges, key=lambda step: step[1][1] - step[1][0])
    begin_us, end_us = ordered[len(ordered) // 2][1]
    inside = [(message, kernel) for made_us, message, kernel in times.runs if begin_us <= made_us <= end_us]
    if not 0 < len(inside) <= _MOST_CALLS:
        return ()
    first_us = inside[0][1].start_us
    return tuple(
        TimedCall(message=message, start_us=round(kernel.start_us - first_us, 3), duration_us=kernel.duration_us)
        for message, kernel in inside
    )


def _find_launching_call(launch: Event | None, by_thread: Mapping[str, Sequence[TracedCall]]) -> TracedCall | None:
    """Return the latest call that had begun, and not ended, when the launch was made."""
    if launch is None:
        return None
    candidates = by_thread.get(launch.thread, ())
    before = bisect_right(candidates, launch.start_us, key=lambda call: call.event.start_us)
    return candidates[before - 1] if before and launch.start_us <= candidates[before - 1].event.end_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoReading(RankReading):
    """Content of one rank's trace once its events are counted.

    Attributes:
        step_times_us: of the complete steps, µs.
        exposure: communication that compute does not hide.
        timeline: calls of the step of median length.
        libraries: library that communicates without NCCL -> its kernels.
        counts: `kernels` of NCCL, those `bare` of metadata and those `unmatched` with a call among them, and `events`
            of communication, with a size or without.
    """

    step_times_us: tuple[float, ...]
    exposure: RankExposure
    timeline: tuple[TimedCall, ...]
    libraries: Counter[str]
    counts: Counter[str]

    def join(self, cycles: Sequence[RankReading]) -> KinetoReading:
        """Return this recording and later profiler cycles of the same rank as one recording."""
        joined = RankReading.join(self, cycles)
        assert isinstance(joined, KinetoReading), "all cycles of a rank are read by this reader"
        if not cycles:
            return joined
        ordered = sorted(_kineto_readings([self, *cycles]), key=lambda cycle: min(cycle.marks))
        return replace(
            joined,
            step_times_us=tuple(time_us for cycle in ordered for time_us in cycle.step_times_us),
            exposure=mean_exposure([(cycle.exposure, cycle.steps) for cycle in ordered]),
            libraries=sum((cycle.libraries for cycle in ordered), Counter[str]()),
            counts=sum((cycle.counts for cycle in ordered), Counter[str]()),
        )


class KinetoReader(RankFileReader):
    """Reader of Kineto traces."""

    name = "kineto"
    starts = b"{"
    word = "trace"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a trace of PyTorch, and not of XLA, which has the same layout."""
        text = strip_mark(beginning)
        if not text.startswith(b"{") or XLA_TRACE.match(text):
            return False
        # Files cut by hand keep little but the events; the head of a huge job can push the events out of our sight.
        return b'"traceEvents"' in text or (b'"schemaVersion"' in text and b'"deviceProperties"' in text)

    def read_rank(self, document: Document) -> KinetoReading:
        """Read the trace of one rank."""
        trace = read_trace(document)
        book, job, libraries = read_calls(trace), trace.job, trace.timeline.libraries
        calls = drop_answered_receives(book.calls)
        steps = calls_in_steps(calls, trace.steps, trace.optimizers, on_gpu=book.source == KERNELS)
        times = kernel_times(trace, calls, find_launches=partial(find_launches, document))
        exposure = trace.timeline.exposure(steps.ranges)
        facts = {"read_from": book.source, "torch": torch_version_hint(trace.comms)}
        facts |= {"backend": job.backend, "nccl_version": job.nccl_version}
        events = len(trace.comms) + len(trace.operators) + len(trace.annotations)
        notes = [*book.notes(), *steps.notes, *filter(None, [exposure.note])]
        if libraries:
            took = f"{trace.timeline.others_us / 1e3:.2f} ms in the file ({', '.join(count_reasons(libraries))})"
            notes.append(f"other libraries communicated for {took}, which NCCL settings do not affect")
        return KinetoReading(
            label=trace.label,
            rank=job.rank,
            world_size=job.world_size,
            calls=Counter((call.group, call.message) for call in steps.calls),
            mean_us=times.mean_us,
            steps=steps.count,
            marks=steps.numbers,
            recorded_on=trace.recorded_on,
            facts=facts,
            notes=tuple(notes),
            step_times_us=steps.step_times_us,
            exposure=exposure,
            timeline=median_step_calls(times, steps),
            libraries=libraries,
            counts=Counter(kernels=times.total, bare=times.without_metadata, unmatched=times.unmatched, events=events),
        )

    def notes(self, ranks: Sequence[RankReading]) -> list[str]:
        """Return notes on kernels without metadata or without a call."""
        notes = []
        counts = sum((rank.counts for rank in _kineto_readings(ranks)), Counter[str]())
        if counts["bare"] and any(rank.facts["read_from"] in (OPERATORS, KERNELS) for rank in ranks):
            notes.append(f"kernels without metadata: {counts['bare']} of {counts['kernels']}")
        if counts["unmatched"]:
            notes.append(f"kernels that belong to no recorded call: {counts['unmatched']} of {counts['kernels']}")
        return notes

    def complete(self, workload: Workload, source: Source, roles: RankRoles) -> Workload:
        """Add the step time, the exposed communication and the timeline of a step."""
        ranks = _kineto_readings(source.readings)
        step_times = [time_us for rank in ranks for time_us in rank.step_times_us]
        slowest = [rank for rank in ranks if roles.slowest.has(rank.per_step())]
        # The rank that waits least shows best what the transfer itself takes.
        least = min(slowest, key=lambda rank: (rank.exposure.exposed_us is None, rank.exposure.exposed_us))
        exposed_us = least_exposed(rank.exposure for rank in ranks)[0]
        workload = replace(
            workload,
            step_time_us=median(step_times) if step_times else None,
            exposed_us=exposed_us,
            copied_us=least.exposure.copied_us,
            timeline=least.timeline,
        )
        waiting_us = (exposed_us or 0.0) - (workload.exposed_us or 0.0)
        if not waiting_us:
            return workload
        note = (
            f"exposed communication: another {waiting_us / 1e3:.2f} ms without computation went into waiting for other "
            "ranks, or into calls without a size"
        )
        origin = workload.provenance
        return replace(workload, provenance=replace(origin, notes=(*origin.notes, note)))

    def refusal(self, source: Source) -> TraceError:
        """Return the error for traces without calls, with the likely reason."""
        ranks = _kineto_readings(source.readings)
        counts = sum((rank.counts for rank in ranks), Counter[str]())
        kernels, events = counts["kernels"], counts["events"]
        left_out = sorted({note for rank in ranks for note in rank.notes if note.startswith("left out")})
        others = sum((rank.libraries for rank in ranks), Counter[str]())
        if others and not kernels:
            did = ", ".join(count_reasons(others))
            why = f"other libraries did the work ({did}), which NCCL settings do not affect"
            hint = NCCL_INSTEAD
        elif kernels or events:
            seen = f"{kernels} NCCL kernels and {events} communication events, but none of them has a size"
            why = f"it shows {seen}" + (f" ({'; '.join(left_out)})" if left_out else "")
            hint = "record again with record_shapes=True, or with torch 2.3 or later, which writes the sizes itself"
        else:
            why = "no event in it comes from NCCL, gloo or torch.distributed"
            hint = "record steps of the distributed run itself, with both CPU and CUDA activities"
        return TraceError(f"no collectives in {source.where}: {why}", hint=hint)


def _kineto_readings(readings: Iterable[object]) -> list[KinetoReading]:
    return [reading for reading in readings if isinstance(reading, KinetoReading)]

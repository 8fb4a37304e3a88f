"""The training steps that a trace shows, and the calls in them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ncclt.profile.readers.kineto.calls import Call
from ncclt.profile.readers.kineto.trace import Event
from ncclt.profile.steps import Step, TimeRange, divide_into_steps, steps_without_calls
from ncclt.profile.views.exposure import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoSteps:
    """The calls of complete training steps.

    Attributes:
        calls: the calls inside them; all calls where no step is marked.
        count: complete steps, 1 where none is marked: the calls are then those of the whole file.
        marked: whether the trace marks steps at all.
        step_times_us: their durations, µs; empty where none is marked.
        ranges: their begins and ends on the trace's clock, µs, each behind the number of its mark, -1 where it is not
            one mark; empty where none is marked.
        numbers: of all their marks.
        notes: what was left out, one sentence each.
    """

    calls: tuple[Call, ...]
    count: int
    marked: bool
    step_times_us: tuple[float, ...] = ()
    ranges: tuple[tuple[int, Interval], ...] = ()
    numbers: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def calls_in_steps(
    calls: Sequence[Call], marks: Mapping[int, Event], optimizers: Sequence[Event], *, on_gpu: bool
) -> KinetoSteps:
    """Keep the calls inside complete optimizer steps.

    Args:
        calls: all calls of the file.
        marks: number of a mark -> its range on the CPU's time line.
        optimizers: ranges of optimizers on the CPU's time line.
        on_gpu: the calls were read from kernels, which run later than the CPU, so their time does not identify a step.
    """
    everything = tuple(calls)
    complete = _complete(everything, marks, on_gpu=on_gpu)
    runs = [TimeRange(start=run.start_us, end=run.end_us, name=run.name) for run in optimizers]
    # Without times all calls belong to all steps together.
    moments = [] if on_gpu else everything
    found = divide_into_steps(moments, lambda call: call.event.start_us, complete, runs)
    steps = found.steps
    if on_gpu:
        steps = tuple(steps_without_calls(complete, runs))
    if not steps:
        return KinetoSteps(calls=everything, count=1, marked=False, notes=found.notes)
    notes = list(found.notes)
    if len(complete) < len(marks):
        notes.append(f"left out: {len(marks) - len(complete)} of {len(marks)} marked steps, cut off by the recording")
    timed = [step for step in steps if step.start > -inf]
    return KinetoSteps(
        calls=everything if on_gpu else found.calls,
        count=len(steps),
        marked=True,
        step_times_us=tuple(_length_us(step, marks) for step in timed),
        ranges=tuple(
            (step.marks[0] if len(step.marks) == 1 else -1, (step.start, step.start + _length_us(step, marks)))
            for step in timed
        ),
        numbers=frozenset(number for step in steps for number in step.marks),
        notes=tuple(notes),
    )


def _length_us(step: Step[Call], marks: Mapping[int, Event]) -> float:
    """Return how long a step took: one of marks ends where its last mark does, not where the next one begins."""
    return (marks[step.marks[-1]].end_us if step.marks else step.end) - step.start


def _complete(calls: Sequence[Call], marks: Mapping[int, Event], *, on_gpu: bool) -> list[TimeRange]:
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

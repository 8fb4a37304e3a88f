"""The training steps that a trace marks, and the calls in them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.profile.readers.kineto.calls import Call
from ncclt.profile.readers.kineto.trace import Event
from ncclt.profile.views.exposure import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoSteps:
    """The calls of complete training steps.

    Attributes:
        calls: the calls inside them; all calls where no step is marked.
        count: complete steps, 1 where none is marked: the calls are then those of the whole file.
        marked: whether the trace marks steps at all.
        step_times_us: their durations, µs; empty where none is marked.
        ranges: their numbers, begins and ends on the trace's clock, µs; empty where none is marked.
        notes: what was left out, one sentence each.
    """

    calls: tuple[Call, ...]
    count: int
    marked: bool
    step_times_us: tuple[float, ...] = ()
    ranges: tuple[tuple[int, Interval], ...] = ()
    notes: tuple[str, ...] = ()


def calls_in_steps(calls: Sequence[Call], marks: Mapping[int, Event], *, on_gpu: bool) -> KinetoSteps:
    """Keep the calls inside complete steps.

    Args:
        calls: all calls of the file.
        marks: number of a step -> its range on the CPU's time line.
        on_gpu: the calls were read from kernels, which run later than the CPU, so their time does not identify a step.
    """
    everything = tuple(calls)
    complete = _complete(everything, marks, on_gpu=on_gpu)
    if not complete:
        return KinetoSteps(calls=everything, count=1, marked=False)
    inside = everything if on_gpu else tuple(c for c in everything if _is_inside(c.event, complete))
    if not inside:
        return KinetoSteps(calls=everything, count=1, marked=False, notes=("no collective is inside the marked steps",))
    notes = []
    if len(inside) < len(everything):
        notes.append(f"left out: {len(everything) - len(inside)} of {len(everything)} calls, outside complete steps")
    if len(complete) < len(marks):
        notes.append(f"left out: {len(marks) - len(complete)} of {len(marks)} marked steps, cut off by the recording")
    return KinetoSteps(
        calls=inside,
        count=len(complete),
        marked=True,
        step_times_us=tuple(event.duration_us for event in complete.values()),
        ranges=tuple((number, (event.start_us, event.end_us)) for number, event in complete.items()),
        notes=tuple(notes),
    )


def _complete(calls: Sequence[Call], marks: Mapping[int, Event], *, on_gpu: bool) -> dict[int, Event]:
    """Drop a last step that was opened when the recording ended: without a call, and short beside the others.

    `prof.step()` opens the next step at once, so a loop that leaves the profiler after it writes such a stub.
    """
    ordered = dict(sorted(marks.items()))
    if len(ordered) < 2 or on_gpu:
        return ordered
    number, last = list(ordered.items())[-1]
    others = [event.duration_us for n, event in ordered.items() if n != number]
    used = any(_is_inside(call.event, {number: last}) for call in calls)
    if not used and last.duration_us < statistics.median(others) / 2:
        del ordered[number]
    return ordered


def _is_inside(event: Event, steps: Mapping[int, Event]) -> bool:
    """Return whether an event starts in a step; the gap up to the next number belongs to the step before it."""
    for number, step in steps.items():
        following = steps.get(number + 1)
        end_us = max(step.end_us, following.start_us) if following else step.end_us
        if step.start_us <= event.start_us <= end_us:
            return True
    return False

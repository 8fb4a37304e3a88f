"""Optimizer steps of one rank's recording, and the calls in them.

A step is an optimizer step, as for the recorder: a range `Optimizer.step#…` of PyTorch ends it. `ProfilerStep#N` marks
show where `prof.step()` was called, which may be for every microbatch, for an evaluation or for several steps; they
are whole steps only where no optimizer was recorded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic

from ncclt.core.message import Collective, Message
from ncclt.profile.workload_builder import Sent

MARK = re.compile(r"ProfilerStep#([0-9]{1,18})")
OPTIMIZER = re.compile(r"Optimizer\.step#")

_SIGNIFICANT = 0.01
"""Share of a step's bytes from which on a message tells kinds of steps apart: logging in some of them does not."""

_EVALUATION = 0.1
"""Share of a training step's bytes below which a step that shares no message with it is another kind."""

STEPS_DIFFER = "the steps send different messages: using their mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A part of a recording, on its clock or in the order of its events: a mark, or a range of an optimizer.

    Attributes:
        start, end: where it lies.
        name: of an optimizer's range.
        number: of a mark.
    """

    start: float
    end: float
    name: str = ""
    number: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[Sent]):
    """One optimizer step.

    Attributes:
        start: -inf where it may have begun before the recording.
        end: the last moment that belongs to it.
        marks: numbers of its marks.
        calls: made in it.
    """

    start: float
    end: float
    marks: tuple[int, ...] = ()
    calls: tuple[Sent, ...] = ()


def divide_into_steps(
    calls: Sequence[Sent], at: Callable[[Sent], float], marks: Sequence[TimeRange], optimizers: Sequence[TimeRange]
) -> tuple[list[Step[Sent]], list[str]]:
    """Find the complete optimizer steps of a recording and the calls in them.

    Args:
        calls: all calls of one rank, in any order.
        marks: complete `ProfilerStep#` marks, in order; each reaches up to the next number.
        optimizers: ranges of optimizers, in any order.

    Returns:
        The steps in order, none where none is marked or none holds a call; and notes on what was left out.
    """
    runs = _runs(optimizers)
    steps = _find_steps(calls, at, marks, runs)
    if not _is_repeated(steps):
        runs = _runs(optimizers, sorted(map(at, calls)))
        steps = _find_steps(calls, at, marks, runs)
    inside = sum(len(step.calls) for step in steps)
    if not inside:
        return [], ["no collective is inside the marked steps"] if steps else []
    notes = []
    if inside < len(calls):
        notes.append(f"left out: {len(calls) - inside} of {len(calls)} calls, outside complete steps")
    training = _keep_commonest(steps, optimized=bool(runs))
    if len(training) < len(steps):
        notes.append(
            f"left out: {len(steps) - len(training)} of {len(steps)} steps, with other messages than the rest: "
            "evaluations, or cut off by the recording"
        )
    elif len({_kind(step) for step in training if step.calls}) > 1:
        notes.append(STEPS_DIFFER)
    return training, notes


def steps_without_calls(marks: Sequence[TimeRange], optimizers: Sequence[TimeRange]) -> list[Step[Sent]]:
    """Return the optimizer steps of a recording whose calls have no place in it; arguments as above."""
    return _find_steps((), lambda _call: 0.0, marks, _runs(optimizers))


def _runs(optimizers: Iterable[TimeRange], moments: Sequence[float] = ()) -> list[TimeRange]:
    """Return the steps of the optimizer that counts: the first one, as for the recorder.

    Parameter groups that are stepped one after the other, and optimizers of one class, are one step: the gap between
    them is shorter than they are. An optimizer on the CPU can take longer than a forward and backward pass, too;
    calls separate these steps, but some optimizers make calls between their groups.

    Args:
        optimizers: their ranges, in any order.
        moments: when calls were made, in order, which end a step; empty = calls do not.
    """
    ordered = sorted(optimizers, key=lambda span: span.start)
    runs: list[TimeRange] = []
    for span in (span for span in ordered if span.name == ordered[0].name):
        last = runs[-1] if runs else None
        if (
            last is not None
            and span.start - last.end < min(span.end - span.start, last.end - last.start)
            and bisect_right(moments, last.end) == bisect_right(moments, span.start)
        ):
            runs[-1] = replace(last, end=max(last.end, span.end))
        else:
            runs.append(span)
    return runs


def _find_steps(
    calls: Sequence[Sent], at: Callable[[Sent], float], marks: Sequence[TimeRange], runs: Sequence[TimeRange]
) -> list[Step[Sent]]:
    places = ((bisect_right(marks, run.start, key=lambda mark: mark.start) - 1, run.start) for run in runs)
    holding = Counter(place for place, start in places if place >= 0 and start <= marks[place].end)
    if not holding:
        by_marks: list[Step[Sent]] = [Step(start=m.start, end=m.end, marks=(m.number,)) for m in marks]
        return _fill(by_marks or _divide_at(runs, -inf), calls, at)
    if max(holding.values()) > 1:
        # Several steps in a mark, or several optimizers in a step: those make different calls.
        several = _fill(_divide_at([run for run in runs if run.start >= marks[0].start], marks[0].start), calls, at)
        if len({_kind(step) for step in several}) == 1:
            return several
    return _fill(_join_marks(marks, holding), calls, at)


def _divide_at(runs: Sequence[TimeRange], start: float) -> list[Step[Sent]]:
    """Return the steps that end with the runs of an optimizer."""
    starts = [start, *(run.end for run in runs)]
    return [Step(start=begin, end=run.end) for begin, run in zip(starts, runs, strict=False)]


def _join_marks(marks: Sequence[TimeRange], holding: Mapping[int, int]) -> list[Step[Sent]]:
    """Return the steps made of marks: those up to the one in which the optimizer steps.

    The first one is dropped where it has fewer marks than all others: it began before the recording. The marks behind
    the last one are a step where they are as many as those of the one before: the recording ended in its optimizer.
    """
    groups: list[list[TimeRange]] = [[]]
    for place, mark in enumerate(marks):
        groups[-1].append(mark)
        if place in holding:
            groups.append([])
    remainder = groups.pop()
    if remainder and len(remainder) == len(groups[-1]):
        groups.append(remainder)
    if len(groups) > 1 and len(groups[0]) < min(map(len, groups[1:])):
        del groups[0]
    return [Step(start=g[0].start, end=g[-1].end, marks=tuple(m.number for m in g)) for g in groups]


def _fill(steps: Sequence[Step[Sent]], calls: Sequence[Sent], at: Callable[[Sent], float]) -> list[Step[Sent]]:
    """Return the steps with the calls that were made in them; the last moment of one may be the first of the next."""
    by_step: list[list[Sent]] = [[] for _ in steps]
    starts = [step.start for step in steps]
    for call in calls:
        place = bisect_right(starts, at(call)) - 1
        if place >= 0 and at(call) <= steps[place].end:
            by_step[place].append(call)
    return [replace(step, calls=tuple(inside)) for step, inside in zip(steps, by_step, strict=True)]


_Kind = frozenset[tuple[Message | Collective, int]]


def _kind(step: Step[Sent]) -> _Kind:
    """Return the messages of weight that a step sends, with their number; of uneven exchanges only their presence."""
    counted = Counter(call.message for call in step.calls)
    least = _SIGNIFICANT * sum(message.size_bytes * count for message, count in counted.items())
    return frozenset(
        (message.collective, 0) if message.collective is Collective.ALL_TO_ALL else (message, count)
        for message, count in counted.items()
        if message.size_bytes * count >= least
    )


def _is_repeated(steps: Sequence[Step[Sent]]) -> bool:
    """Return True if most of the steps with calls are of one kind, at least two of them."""
    kinds = Counter(_kind(step) for step in steps if step.calls)
    most = max(kinds.values(), default=0)
    return most > 1 and 2 * most > kinds.total()


def _keep_commonest(steps: list[Step[Sent]], *, optimized: bool) -> list[Step[Sent]]:
    """Return the training steps: those of the commonest kind, or all where none is common.

    Steps that end with an optimizer make as many calls of each collective, but for an evaluation between them; their
    sizes may vary. Where marks alone show them, an evaluation sends a small part of the bytes, in other messages: a
    microbatch sends some of those that its last one sends.
    """
    if optimized:
        shapes = [_shape(step) for step in steps]
        if len(steps) == 2 and steps[0].start == -inf and shapes[0] != shapes[1]:
            return steps[1:]  # a first step that may have begun before the recording
        common, count = Counter(shapes).most_common(1)[0]
        if not common or 2 * count <= len(steps):
            return steps
        return [step for step, shape in zip(steps, shapes, strict=True) if shape == common]
    kinds = [_kind(step) for step in steps]
    sent = [sum(call.message.size_bytes for call in step.calls) for step in steps]
    totals: Counter[_Kind] = Counter()
    for kind, size in zip(kinds, sent, strict=True):
        totals[kind] += size
    main = max(totals, key=lambda kind: totals[kind])
    known, least = {message for message, _ in main}, _EVALUATION * totals[main] / kinds.count(main)
    return [
        step
        for step, kind, size in zip(steps, kinds, sent, strict=True)
        if not kind or size >= least or known & {message for message, _ in kind}
    ]


def _shape(step: Step[Sent]) -> frozenset[tuple[tuple[Collective, str, int], int]]:
    """Return the number of calls of weight of each collective in a step, whatever their sizes."""
    counts: Counter[tuple[Collective, str, int]] = Counter()
    for message, count in _kind(step):
        if isinstance(message, Message):
            counts[message.collective, message.dtype, message.group_size] += count
        else:
            counts[message, "", 0] = 1
    return frozenset(counts.items())

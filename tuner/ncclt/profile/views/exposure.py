"""Exposed communication: the part that compute does not hide, and the most that tuning can gain."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ncclt.core.workload import Workload

Interval = tuple[float, float]
"""(start, end) on one clock, µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GainBound:
    """Gain if communication took no time.

    Attributes:
        share: exposed communication as a share of the step, 0 to 1.
        speedup: step time over step time without any exposed communication; infinite where nothing else is left.
    """

    share: float
    speedup: float


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint intervals in order; empty and reversed ones vanish."""
    union: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def intersect(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two unions; each must be disjoint and in order, as `merge_intervals` returns them."""
    overlaps: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if end > start:
            overlaps.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return overlaps


def measure_exposure(
    communication: Iterable[Interval], compute: Iterable[Interval], windows: Sequence[Interval]
) -> list[tuple[float, float]]:
    """Measure the communication of one device, and its part that no compute covers, in each window.

    Args:
        communication: when communication kernels ran, µs, in any order; they may overlap.
        compute: when compute kernels ran on the same clock.
        windows: the training steps; what is outside them does not count. Empty = one that holds everything.

    Returns:
        For each window the time, µs, in which at least one communication kernel ran, and the part of it in which no
        compute kernel ran beside it.
    """
    sending = merge_intervals(communication)
    hidden = intersect(sending, merge_intervals(compute))
    return [
        (total, max(0.0, total - total_us(_inside(hidden, window))))
        for window in windows or [(-inf, inf)]
        for total in (total_us(_inside(sending, window)),)
    ]


def bound_gain(workload: Workload) -> GainBound | None:
    """Return the upper bound of the gain by tuning, None where the recording lacks the step time or the exposed part.

    Without any communication a step still takes its time minus the exposed part (Amdahl's law), so no NCCL setting
    gains more than `share` of the step. Changing the overlap itself, for example by larger buckets, can.
    """
    if not workload.step_time_us or workload.exposed_us is None:
        return None
    share = min(1.0, workload.exposed_us / workload.step_time_us)
    return GainBound(share=share, speedup=1 / (1 - share) if share < 1 else float("inf"))


def _inside(union: Sequence[Interval], window: Interval) -> list[Interval]:
    first = bisect_right(union, window[0], key=lambda interval: interval[1])
    last = bisect_left(union, window[1], key=lambda interval: interval[0])
    return intersect(union[first:last], merge_intervals([window]))


def total_us(union: Iterable[Interval]) -> float:
    """Return the length of disjoint intervals, µs."""
    return sum(end - start for start, end in union)

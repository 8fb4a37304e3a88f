"""Communication that compute does not hide."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_workloads import calls, workload

from ncclt.profile.views.exposure import bound_gain, intersect, measure_exposure, merge_intervals

_INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def _points(intervals):
    """Every whole µs that is covered, the slow and obvious way."""
    return {point for start, end in intervals for point in range(start, end)}


def _workload(step_time_us, exposed_us):
    return workload(calls(), step_time_us=step_time_us, exposed_us=exposed_us)


@given(first=_INTERVALS, second=_INTERVALS)
def test_union_and_overlap_are_those_of_the_points(first, second):
    a, b = merge_intervals(first), merge_intervals(second)
    assert _points(a) == _points(first)
    assert _points(intersect(a, b)) == _points(first) & _points(second)
    assert all(end < start for (_, end), (start, _) in pairwise(a))


@given(communication=_INTERVALS, compute=_INTERVALS, windows=_INTERVALS)
def test_exposed_is_what_runs_alone_inside_each_window(communication, compute, windows):
    found = measure_exposure(communication, compute, windows)
    for (communication_us, exposed_us), window in zip(found, windows or [(0, 40)], strict=True):
        sending = _points(communication) & _points([window])
        assert communication_us == len(sending)
        assert exposed_us == len(sending - _points(compute))


def test_the_bound_is_the_exposed_share():
    bound = bound_gain(_workload(1000.0, 41.0))
    assert bound.share == pytest.approx(0.041)
    assert bound.speedup == pytest.approx(1 / 0.959)


def test_a_step_of_nothing_but_communication_is_bounded_by_nothing():
    bound = bound_gain(_workload(1000.0, 1500.0))
    assert (bound.share, bound.speedup) == (1.0, float("inf"))


def test_without_step_time_or_exposed_part_there_is_no_bound():
    for step, exposed in [(None, 5.0), (0.0, 5.0), (100.0, None)]:
        assert bound_gain(_workload(step, exposed)) is None

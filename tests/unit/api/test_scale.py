"""Axes of the charts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt_api.pages.scale import Scale, scale_over


@given(st.lists(st.floats(min_value=1e-3, max_value=1e9), min_size=1, max_size=30))
def test_every_value_and_tick_lies_on_the_axis(values):
    scale = scale_over(values, start=0, end=500)
    assert all(0 <= scale.position(value) <= 500 for value in values)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 16
    assert all(scale.low * (1 - 1e-9) <= tick <= scale.high * (1 + 1e-9) for tick in ticks)
    assert sorted(set(ticks)) == list(ticks)


def test_a_wide_span_is_logarithmic_and_a_narrow_one_is_not():
    assert scale_over([1, 1000], start=0, end=1).log
    assert not scale_over([900, 1000], start=0, end=1).log


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis():
    scale = Scale(low=1, high=100, start=0, end=200, log=True)
    assert (scale.position(1), scale.position(10), scale.position(100)) == (0, 100, 200)


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0, 10, False, (0, 2, 4, 6, 8, 10)),
        (22.1, 27.4, False, (23, 24, 25, 26, 27)),
        (1, 1000, True, (1, 3, 10, 30, 100, 300, 1000)),
        (10, 40, True, (10, 15, 20, 30)),
    ],
)
def test_ticks_are_round(low, high, log, expected):
    assert Scale(low=low, high=high, start=0, end=1, log=log).ticks() == expected


def test_one_value_alone_stands_in_the_middle():
    scale = scale_over([40.0], start=0, end=100)
    assert math.isclose(scale.position(40.0), 50)

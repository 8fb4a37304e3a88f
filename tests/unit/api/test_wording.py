"""How numbers read."""

import doctest
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.core.policy import Rule
from ncclt_api.pages import wording

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_the_examples_of_the_docstrings_hold():
    tried = doctest.testmod(wording)
    assert tried.attempted > 5
    assert tried.failed == 0


def test_times_have_three_digits_and_a_unit():
    times = [None, 0.5, 99.96, 999.4, 999.6, 2.5e6]
    assert list(map(wording.format_time, times)) == ["–", "0.50 µs", "100 µs", "999 µs", "1.00 ms", "2.50 s"]


@given(st.floats(min_value=1e-3, max_value=1e10))
def test_a_time_read_back_is_the_time(time_us):
    number, unit = wording.format_time(time_us).rsplit(" ", 1)
    value = float(number.replace("\u202f", "")) * {"µs": 1, "ms": 1e3, "s": 1e6}[unit]
    assert value == pytest.approx(time_us, rel=0.006, abs=0.006)


def test_ranges_are_written_in_round_sizes():
    for low, high, expected in (
        (0, None, "every size"),
        (0, 1 << 20, "up to 1 MiB"),
        ((1 << 20) + 1, None, "above 1 MiB"),
        ((1 << 20) + 1, 1 << 26, "above 1 MiB to 64 MiB"),
        (1 << 20, None, "from 1 MiB"),
    ):
        rule = Rule(collective=Collective.ALL_REDUCE, min_bytes=low, max_bytes=high)
        assert wording.format_range(rule) == expected


def test_ages_are_rounded_down():
    for iso, expected in (
        ("2026-11-21T11:59:30+00:00", "just now"),
        ("2026-11-21T11:15:00Z", "45 min ago"),
        ("2026-11-18T11:00:00.123+00:00", "3 d ago"),
        ("2026-11-21T09:00:00", "3 h ago"),
        ("", "–"),
        ("yesterday", "–"),
    ):
        assert wording.format_ago(iso, NOW) == expected

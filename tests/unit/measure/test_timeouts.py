"""How long a launch may take, before and after the default is known."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.measure import Timeouts

SMALL, LARGE = (
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4)
    for size in (1 << 20, 1 << 32)
)
RULE = {"start_s": 100, "slowest_gbps": 1.0, "calls": 50, "floor_s": 30, "factor": 4}


def test_at_first_the_bytes_count():
    """A start, and a speed that nobody would want to keep."""
    assert Timeouts(**RULE).limit_s([SMALL]) == pytest.approx(100 + 50 * (1 << 20) / 1e9)


def test_afterwards_the_default_counts_with_a_floor():
    """A hang then costs no more than a few times what is known to be enough; of several times the longest counts."""
    timeouts = Timeouts(**RULE)
    timeouts.learn([SMALL], 2.0)
    assert timeouts.limit_s([SMALL]) == 30
    timeouts.learn([SMALL], 20.0)
    timeouts.learn([SMALL], 10.0)
    assert timeouts.limit_s([SMALL]) == 80
    timeouts.learn([SMALL, LARGE], 25.0)
    assert timeouts.limit_s([LARGE, SMALL]) == 100, "in any order"


def test_other_commands_keep_the_generous_limit():
    """What the default took for a megabyte says nothing about four gigabytes."""
    timeouts = Timeouts(**RULE)
    timeouts.learn([SMALL], 2.0)
    timeouts.calibrate(2.0, [SMALL])
    assert timeouts.limit_s([LARGE]) == pytest.approx(100 + 50 * (1 << 32) / 1e9)


@pytest.mark.parametrize("measured", [[SMALL, LARGE], None])
def test_a_part_takes_no_longer_than_the_whole(measured):
    """Confirmation launches fewer messages, in commands that were never launched so; a stored default has all."""
    timeouts = Timeouts(**RULE)
    timeouts.calibrate(20.0, measured)
    assert timeouts.limit_s([LARGE]) == 80


def test_the_default_never_makes_the_limit_longer():
    """A default that took very long for another reason must not make hangs expensive."""
    timeouts = Timeouts(**RULE)
    timeouts.learn([SMALL], 1000.0)
    assert timeouts.limit_s([SMALL]) == pytest.approx(Timeouts(**RULE).limit_s([SMALL]))

"""When a message has been sampled enough."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.measure import SamplingLimit
from ncclt.measure.limits import ENOUGH_FACTOR

SMALL, LARGE = (
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4)
    for size in (1 << 20, 1 << 30)
)


def test_before_the_default_everything_is_sampled_in_full():
    assert SamplingLimit().enough_us([SMALL, LARGE]) == (None, None)


def test_the_typical_default_says_what_is_enough_for_each_message():
    """One launch of several may have been disturbed; what was never measured has no limit."""
    sampling = SamplingLimit()
    for time_us in (10.0, 80.0, 12.0):
        sampling.learn({SMALL: time_us})

    assert sampling.enough_us([LARGE, SMALL]) == (None, pytest.approx(ENOUGH_FACTOR * 12))

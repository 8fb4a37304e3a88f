"""Which messages dominate: by time where every one has a time, else by bytes."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload


def _workload(*rows):
    """Rows of (bytes, calls, µs or None)."""
    return Workload(
        name="w",
        provenance=Provenance(source="kineto"),
        messages=tuple(
            MessageCalls(
                message=Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=size),
                calls_per_step=calls,
                recorded_us=time_us,
            )
            for size, calls, time_us in rows
        ),
    )


def _dominant(workload, share=0.95):
    return [calls.message.size_bytes for calls in workload.dominant(share)]


def test_time_decides_where_all_messages_have_one():
    workload = _workload((1000, 1.0, 10.0), (10, 50.0, 20.0), (500, 1.0, 1.0))
    assert workload.communication_us == 10 + 1000 + 1
    assert _dominant(workload) == [10]


def test_bytes_decide_where_one_message_has_no_time():
    workload = _workload((1000, 1.0, 10.0), (10, 50.0, None))
    assert workload.communication_us is None
    assert _dominant(workload) == [1000, 10]


def test_times_of_zero_say_nothing():
    assert _dominant(_workload((1000, 1.0, 0.0), (10, 1.0, 0.0))) == [1000]


def test_the_set_is_the_smallest_that_covers_the_share():
    workload = _workload((60, 1.0, None), (30, 1.0, None), (10, 1.0, None))
    assert _dominant(workload, 0.6) == [60]
    assert _dominant(workload, 0.61) == [60, 30]
    assert _dominant(workload, 1.0) == [60, 30, 10]


def test_weights_are_in_the_order_of_the_messages():
    workload = _workload((10, 50.0, 20.0), (1000, 1.0, 10.0))
    assert [m.message.size_bytes for m in workload.messages] == [1000, 10]
    assert workload.weights() == (10.0, 1000.0)
    assert sum(workload.weights()) == pytest.approx(workload.communication_us)

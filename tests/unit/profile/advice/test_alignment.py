"""Advice to pad messages, with a gain only where both sizes were measured."""

import pytest
from made_workloads import workload

from ncclt.core.message import Collective, Message
from ncclt.core.trial import Measurement, TimesOrigin
from ncclt.core.workload import MessageCalls
from ncclt.profile.advice.alignment import UNKNOWN, find_unaligned

MIB = 1024**2
SHARD = 67_108_944
"""8,388,618 bytes per rank of 8."""


def message(collective=Collective.ALL_GATHER, size_bytes=SHARD, dtype="bfloat16"):
    return Message(collective=collective, dtype=dtype, size_bytes=size_bytes, group_size=8)


def found_of(*messages, measured=(), **more):
    calls = (MessageCalls(message=one, calls_per_step=2) for one in messages)
    return find_unaligned(workload(*calls), measured, **more)


def timed(size_bytes, time_us, **more):
    dtype = more.pop("dtype", "bfloat16")
    return Measurement(message=message(size_bytes=size_bytes, dtype=dtype), samples_us=(time_us,), **more)


def test_shards_of_all_collectives_are_found_and_aligned_ones_are_not(subtests):
    for collective in Collective:
        with subtests.test(collective=collective):
            (one,) = found_of(*(message(collective, 8 * size, "int8") for size in (4097, 4096)))
            assert one.calls.message.begins_unaligned == collective.has_rank_parts
            assert not one.calls.message.begins_unaligned or one.padding == 15
            assert one.speedup is None
            assert one.gain.startswith(UNKNOWN if one.calls.message.begins_unaligned else "no gain expected")


def test_a_published_ratio_has_its_source_and_is_no_prediction():
    (gather,), (exchange,) = found_of(message()), found_of(message(Collective.ALL_TO_ALL))
    assert "horovod/horovod#3727" in gather.gain
    assert exchange.gain == UNKNOWN
    assert gather.saved_us is None


def test_the_gain_is_that_of_the_exact_and_an_aligned_size_measured_here():
    measured = [timed(SHARD, 700.0), timed(SHARD + 48, 200.0)]
    (one,) = found_of(message(), measured=measured)
    assert one.speedup == pytest.approx(3.5)
    assert one.saved_us == pytest.approx(1000.0)
    assert one.gain == ("measured: 700.0 µs as it is (1 launch), 200.0 µs aligned (1 launch): 3.50x, 1 ms per step")


def test_pooled_interpolated_and_recorded_times_are_named():
    near = [timed(48 * MIB, 150.0), timed(96 * MIB, 300.0)]
    exact = [timed(SHARD, 700.0), timed(SHARD, 900.0)]
    (one,) = found_of(message(), measured=[*exact, *near], origin=TimesOrigin.RECORDED)
    assert one.gain.startswith("recorded: 800.0 µs as it is (2 launches), 200.0 µs aligned (interpolated): 4.00x")


def test_an_aligned_time_is_read_between_near_sizes_only():
    (one,) = found_of(message(), measured=[timed(SHARD, 700.0), timed(48 * MIB, 150.0), timed(96 * MIB, 300.0)])
    assert one.times.padded_us == pytest.approx(200.0, rel=0.01)
    (far,) = found_of(message(), measured=[timed(SHARD, 700.0), timed(MIB, 3.0), timed(1024 * MIB, 3000.0)])
    assert far.times is None


def test_what_was_not_measured_says_nothing(subtests):
    """nccl-tests sends the padded size: that it takes no longer is no news."""
    for why, changes in {
        "rounded": {"measured_bytes": SHARD + 48},
        "interpolated": {"interpolated": True},
        "another dtype": {"dtype": "float16"},
    }.items():
        with subtests.test(why):
            (one,) = found_of(message(), measured=[timed(SHARD, 200.0, **changes), timed(SHARD + 48, 200.0)])
            assert one.times is None


def test_a_size_of_another_number_of_ranks_is_not_called_unaligned():
    """A workload keeps its sizes on a cluster of another size; its real shards are padded to that."""
    (one,) = found_of(message(size_bytes=1000))
    assert not one.calls.message.begins_unaligned
    assert "another number of ranks" in one.gain

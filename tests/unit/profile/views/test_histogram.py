"""Which sizes carry what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_workloads import calls, workload

from ncclt.core.message import Collective
from ncclt.profile.views.histogram import count_traffic, find_median_sizes, group_by_size, histogram

_KIB, _MIB = 1024, 1024 * 1024


def test_a_bin_reaches_from_a_power_of_two_to_below_the_next():
    bins = histogram(workload(calls(8), calls(15, 2.0), calls(16), calls(64)))
    found = [(b.exponent, b.calls, b.bytes_per_step) for b in bins]
    assert found == [(3, 3.0, 38.0), (4, 1.0, 16.0), (5, 0, 0), (6, 1.0, 64.0)]


@given(st.lists(st.tuples(st.integers(1, 2**40), st.floats(0.1, 100)), min_size=1, max_size=20))
def test_bins_and_classes_carry_everything(rows):
    made = workload(*(calls(size, count) for size, count in rows))
    for parts in (histogram(made), group_by_size(made)):
        assert sum(p.bytes_per_step for p in parts) == pytest.approx(made.bytes_per_step)
        assert sum(p.calls for p in parts) == pytest.approx(sum(count for _, count in rows))


def test_classes_are_kept_apart_by_collective_and_size():
    made = workload(
        calls(64 * _KIB - 1),
        calls(64 * _KIB),
        calls(4 * _MIB - 1),
        calls(4 * _MIB, us=9.0),
        calls(8, collective=Collective.BROADCAST),
    )
    found = {(c.collective.value, c.name): (c.calls, c.time_us) for c in group_by_size(made)}
    assert found == {
        ("all_reduce", "small"): (1.0, None),
        ("all_reduce", "medium"): (2.0, None),
        ("all_reduce", "large"): (1.0, 9.0),
        ("broadcast", "small"): (1.0, None),
    }


def test_many_small_calls_and_one_large_message_cross_over():
    half = find_median_sizes(workload(calls(8, 100.0, us=1.0), calls(_MIB, us=50.0)))
    assert (half.calls_bytes, half.bytes_bytes, half.time_bytes) == (8, _MIB, 8)
    assert find_median_sizes(workload(calls(8), calls(9, us=1.0))).time_bytes is None


def test_bytes_on_the_wire_of_four_ranks():
    for collective, per_rank in [
        ("all_reduce", 1500),
        ("all_gather", 750),
        ("reduce_scatter", 750),
        ("all_to_all", 750),
        ("broadcast", 750),
        ("reduce", 750),
        ("send_recv", 1000),
    ]:
        sent = count_traffic(workload(calls(1000, collective=Collective(collective)), world_size=4))
        assert sent == (per_rank, 4 * per_rank)


def test_traffic_needs_the_size_of_the_group():
    assert count_traffic(workload(calls(1000))) == (None, None)
    assert count_traffic(workload(calls(1000, group=2)))[1] is None
    assert count_traffic(workload(calls(1000, group=1), world_size=8))[0] == 0

"""The two streams of a step: bounds that hold whatever the figures, and steps that are easily worked out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective, Message
from ncclt.core.workload import TimedCall
from ncclt.profile.advice.step_model import (
    Backward,
    Compute,
    GradientBucket,
    Unit,
    ddp_us,
    even_backward,
    find_backward,
    fsdp_us,
    gpu_figures,
    slowdown_beside,
)
from ncclt.testing.samples import sample_cluster

_US = st.floats(0, 1e5)
_BUCKETS = st.lists(
    st.builds(GradientBucket, bytes=st.floats(1, 1e9), call_us=_US, before_us=_US, after_us=_US),
    min_size=1,
    max_size=12,
)
_UNITS = st.lists(st.builds(Unit, gather_us=_US, reduce_us=_US), min_size=1, max_size=12)
_COMPUTE = st.builds(Compute, forward_us=_US, backward_us=_US, rest_us=_US)


@given(
    buckets=_BUCKETS,
    length=st.floats(1, 1e6),
    slowdown=st.floats(0, 0.5),
    stretch=st.floats(1, 3),
    share=st.floats(0, 1),
)
def test_more_bandwidth_is_never_slower_under_ddp(buckets, length, slowdown, stretch, share):
    def step(factor):
        calls = [replace(bucket, call_us=bucket.call_us * factor) for bucket in buckets]
        return ddp_us(calls, even_backward(length), front_us=5.0, slowdown=slowdown, stretch=stretch)

    assert step(share) <= step(1.0) * (1 + 1e-9)


@given(buckets=_BUCKETS, length=st.floats(1, 1e6), stretch=st.floats(1, 3))
def test_a_step_lies_between_its_compute_and_everything_in_a_row(buckets, length, stretch):
    step = ddp_us(buckets, even_backward(length), front_us=7.0, stretch=stretch)
    compute = 7.0 + length + sum(bucket.before_us for bucket in buckets)
    calls = sum(bucket.call_us for bucket in buckets)
    assert compute * (1 - 1e-9) <= step <= (compute + calls * stretch + buckets[-1].after_us) * (1 + 1e-9)


@given(units=_UNITS, compute=_COMPUTE, again=st.booleans(), share=st.floats(0, 1))
def test_more_bandwidth_is_never_slower_under_fsdp(units, compute, again, share):
    faster = [Unit(gather_us=unit.gather_us * share, reduce_us=unit.reduce_us * share) for unit in units]
    slow = fsdp_us(units, compute, gathers_again=again)
    assert fsdp_us(faster, compute, gathers_again=again) <= slow * (1 + 1e-9)
    assert slow >= compute.step_us * (1 - 1e-9)
    assert fsdp_us(units, compute, gathers_again=False) <= slow * (1 + 1e-9)
    assert fsdp_us(units, compute, gathers_again=again, stretch=1.5) >= slow * (1 - 1e-9)


def test_one_bucket_waits_for_the_whole_backward_pass_and_is_exposed():
    assert ddp_us([GradientBucket(bytes=8, call_us=50)], even_backward(100), front_us=30) == 180


def test_of_equal_buckets_that_keep_up_the_last_is_exposed():
    buckets = [GradientBucket(bytes=1, call_us=10)] * 4
    assert ddp_us(buckets, even_backward(100), front_us=0) == 110


def test_slow_buckets_queue_behind_the_first():
    assert ddp_us([GradientBucket(bytes=1, call_us=100)] * 4, even_backward(100), front_us=0) == 25 + 400


def test_a_call_beside_compute_is_longer_and_makes_it_slower():
    buckets = [GradientBucket(bytes=1, call_us=20), GradientBucket(bytes=1, call_us=10)]
    assert ddp_us(buckets, even_backward(100), front_us=0, stretch=1.5) == 110
    assert ddp_us(buckets, even_backward(100), front_us=0, stretch=1.5, slowdown=0.5) == pytest.approx(125)


def test_casts_delay_what_follows_and_the_last_has_to_be_undone():
    bucket = GradientBucket(bytes=1, call_us=10, before_us=3, after_us=2)
    assert ddp_us([bucket] * 2, even_backward(100), front_us=0) == 100 + 6 + 10 + 2


def test_fsdp_hides_what_compute_covers_but_the_first_gather_and_the_last_reduction():
    units = [Unit(gather_us=4, reduce_us=6)] * 3
    compute = Compute(forward_us=300, backward_us=600, rest_us=10)
    assert fsdp_us(units, compute, gathers_again=True) == 4 + 900 + 6 + 10
    assert fsdp_us([Unit(gather_us=0, reduce_us=0)], compute, gathers_again=True, stretch=2) == 910


def _call(size, start, duration):
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size)
    return TimedCall(message=message, start_us=start, duration_us=duration)


def test_buckets_that_found_the_stream_free_show_when_gradients_are_ready():
    calls = [_call(100, 1000, 50), _call(100, 1300, 50), _call(200, 1500, 50)]
    found = find_backward(calls, exposed_us=50, compute_us=5000)
    assert [share for share, _ in found.knots] == [0, 0.25, 0.5, 1]
    # 500 µs for three quarters of the bytes: the first quarter is taken to have had a third of that.
    assert [round(at) for _, at in found.knots] == [0, 167, 467, 667]


def test_a_queued_last_bucket_was_ready_where_exposure_begins():
    calls = [_call(100, 0, 400), _call(100, 401, 400)]
    assert find_backward(calls, exposed_us=500, compute_us=5000).knots[-1][1] == pytest.approx(301 * 2)


def test_a_single_bucket_shows_no_pace():
    assert find_backward([_call(100, 0, 9)], exposed_us=9, compute_us=100) is None
    assert find_backward([], exposed_us=0, compute_us=100) is None
    assert find_backward([_call(100, 0, 9), _call(100, 9, 9)], exposed_us=18, compute_us=100) is None


def test_no_backward_pass_is_longer_than_the_compute_of_a_step():
    calls = [_call(100, 0, 5), _call(100, 90, 5)]
    assert find_backward(calls, exposed_us=5, compute_us=100).length_us == 100


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_gradients_are_ready_later(first, second):
    backward = Backward(knots=((0.0, 0.0), (0.3, 50.0), (0.31, 300.0), (1.0, 400.0)))
    low, high = sorted((first, second))
    assert backward.ready_us(low) <= backward.ready_us(high) <= backward.length_us


def test_figures_are_those_of_the_memory_that_a_model_has():
    known = {name: gpu_figures(name)[0] for name in ("A100-SXM4-40GB", "A100-SXM4-80GB", "L40S", "L4")}
    assert known == {"A100-SXM4-40GB": 1555, "A100-SXM4-80GB": 2000, "L40S": 864, "L4": 300}
    assert gpu_figures("NVIDIA H100 80GB HBM3") == (3350, 132)
    assert gpu_figures("Abacus 1") is None


def test_channels_take_multiprocessors_from_compute():
    cluster = replace(sample_cluster("one"), gpu="A100-SXM4-40GB", nodes=1, gpus_per_node=8)
    assert 0 < slowdown_beside(cluster, 2**25) <= 0.5
    assert slowdown_beside(replace(cluster, gpu="Abacus 1"), 2**25) == 0
    assert slowdown_beside(replace(cluster, gpus_per_node=1), 2**25) == 0

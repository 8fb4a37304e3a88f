"""Times of calls: a recording corrects the curve, and says how far it reaches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_workloads import calls, workload

from ncclt.core.message import Collective
from ncclt.profile.advice.job import RECORDING, call_times
from ncclt.profile.views.estimate import CurvePoint
from ncclt.testing.samples import sample_cluster

REDUCE, GATHER = Collective.ALL_REDUCE, Collective.ALL_GATHER
ONE_NODE = replace(sample_cluster("one").sized(nodes=1), name=RECORDING)
TWO_NODES = ONE_NODE.sized(nodes=2)
CURVE = {(REDUCE, ONE_NODE.world_size, False): (CurvePoint(2**20, 100.0), CurvePoint(2**24, 1000.0))}


def _workload(*recorded, collective=REDUCE):
    return workload(*(calls(size, 1, collective, us=us) for size, us in recorded))


@given(st.integers(8, 2**31), st.floats(1, 1e6))
def test_a_recorded_size_takes_what_was_recorded(size, us):
    times = call_times(_workload((size, us)), ONE_NODE, {})
    assert times.time_us(REDUCE, size) == pytest.approx(us)
    assert times.spread(REDUCE, size) == 1


def test_between_recorded_sizes_the_correction_is_between_theirs():
    times = call_times(_workload((2**20, 200.0), (2**24, 8000.0)), ONE_NODE, CURVE)
    assert times.factors[REDUCE] == ((20.0, 2.0), (24.0, 8.0))
    assert times.time_us(REDUCE, 2**22) == pytest.approx(5 * (100 * 1000) ** 0.5)
    assert times.time_us(REDUCE, 2**26) == pytest.approx(8 * 4000)


def test_what_took_longer_than_a_larger_call_was_waiting():
    times = call_times(_workload((2**20, 5000.0), (2**24, 1500.0)), ONE_NODE, CURVE)
    assert times.time_us(REDUCE, 2**20) == pytest.approx(1500)


def test_beyond_a_curve_bandwidth_stays_and_small_calls_are_shorter():
    times = call_times(_workload((64, None)), ONE_NODE, CURVE)
    assert times.time_us(REDUCE, 2**26) == pytest.approx(4000)
    assert 0 < times.time_us(REDUCE, 2**12) < 100


def test_one_rank_sends_nothing():
    times = call_times(_workload((64, None)), ONE_NODE, {})
    assert times.time_us(REDUCE, 2**20, ONE_NODE.sized(gpus_per_node=1)) == 0


def test_the_less_is_known_the_wider_is_the_range():
    recorded = call_times(_workload((2**24, 1500.0)), ONE_NODE, CURVE)
    measured, modelled = (call_times(_workload((64, None)), ONE_NODE, curves) for curves in (CURVE, {}))
    near, far = recorded.spread(REDUCE, 2**23), recorded.spread(REDUCE, 2**10)
    assert 1 < near < measured.spread(REDUCE, 2**23) < far < modelled.spread(REDUCE, 2**23)
    assert recorded.spread(REDUCE, 2**24, TWO_NODES) > recorded.spread(REDUCE, 2**24)
    assert recorded.spread(GATHER, 2**24) > recorded.spread(REDUCE, 2**24)


def test_a_recording_corrects_its_own_collectives_on_its_own_cluster_alone():
    plain, recorded = (call_times(_workload((2**24, us)), ONE_NODE, {}) for us in (None, 9e5))
    assert recorded.time_us(REDUCE, 2**24) > plain.time_us(REDUCE, 2**24)
    assert recorded.time_us(GATHER, 2**24) == plain.time_us(GATHER, 2**24)
    assert (recorded.has_times(REDUCE), recorded.has_times(GATHER)) == (True, False)
    named = call_times(_workload((2**24, 9e5)), replace(ONE_NODE, name="named"), {})
    assert named.time_us(REDUCE, 2**24) == plain.time_us(REDUCE, 2**24)
    assert named.has_times(GATHER)


def test_another_number_of_nodes_takes_what_the_model_says_of_both():
    plain, measured = (call_times(_workload((64, None)), ONE_NODE, curves) for curves in ({}, CURVE))
    ratio = plain.time_us(REDUCE, 2**24, TWO_NODES) / plain.time_us(REDUCE, 2**24)
    assert measured.time_us(REDUCE, 2**24, TWO_NODES) == pytest.approx(1000 * ratio)

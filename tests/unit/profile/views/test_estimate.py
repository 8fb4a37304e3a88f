"""How long a step takes before it is run."""

from dataclasses import replace

import pytest
from made_workloads import message, workload

from ncclt.core.message import Collective
from ncclt.core.trial import Measurement
from ncclt.core.workload import MessageCalls
from ncclt.errors import UsageError
from ncclt.profile.views.estimate import (
    CurvePoint,
    build_curves,
    compute_seconds,
    estimate,
    link_busbw_gbps,
    read_curve,
)
from ncclt.store.shipped import profiles_folder, shipped_clusters

H100 = shipped_clusters(profiles_folder())["dgx-h100"].sized(nodes=2)


def _message(size, *, group=16, spans=True, **more):
    return message(size, dtype="float32", group=group, spans=spans, **more)


def _workload(*messages, calls=1.0):
    return workload(*(MessageCalls(message=m, calls_per_step=calls) for m in messages))


def test_the_figures_of_the_fabric_checks_come_out():
    """7 B parameters, sequence 2048, batch 16, 16 H100 at 396 TFLOP/s, a quarter recomputed (seed tables, 2)."""
    for node_gbps, links_s in [(125, 0.42), (400, 0.13)]:
        compute_s = compute_seconds(parameters=7e9, tokens_per_step=2048 * 16, gpus=16, tflops=297)
        found = estimate(
            _workload(_message(28 * 10**9)), replace(H100, nic_gbps=node_gbps / 8), compute_s=compute_s, measured={}
        )
        assert round(compute_s, 2) == 0.29
        assert round(found.links_s, 2) == links_s
        assert found.turning_gbps == pytest.approx(28 * 1.875 / compute_s)


def test_impossible_figures_are_refused():
    for change in [{"parameters": 0}, {"tokens_per_step": -1}, {"tflops": float("nan")}]:
        with pytest.raises(UsageError):
            compute_seconds(**{"parameters": 1e9, "tokens_per_step": 1e3, "gpus": 8, "tflops": 100, **change})


def test_the_links_of_a_group_are_its_own_share():
    for sent, gbps in [
        (_message(8), 400),
        (_message(8, collective=Collective.ALL_TO_ALL), 50),
        (_message(8, collective=Collective.SEND_RECV), 50),
        (_message(8, group=8, spans=False), 450),
        (_message(8, group=2, spans=True), 50),
        (_message(8, group=4, spans=True), 100),
    ]:
        assert link_busbw_gbps(H100, sent) == pytest.approx(gbps)


def test_direct_links_to_other_gpus_stay_idle():
    direct = replace(H100, nodes=1, gpus_per_node=4, link_class="nvlink", link_gbps=300.0)
    assert link_busbw_gbps(direct, _message(8, group=2, spans=False)) == pytest.approx(100)
    assert link_busbw_gbps(direct, _message(8, group=4, spans=False)) == pytest.approx(300)


def test_a_curve_is_taken_where_it_reaches_and_nothing_beyond_it():
    curve = (CurvePoint(1000, 10.0), CurvePoint(4000, 40.0))
    assert read_curve(curve, 1000) == (10.0, "measured")
    assert read_curve(curve, 4000) == (40.0, "measured")
    time_us, source = read_curve(curve, 2000)
    assert (time_us, source) == (pytest.approx(20.0), "interpolated")
    assert read_curve(curve, 999) is None
    assert read_curve(curve, 4001) is None
    assert read_curve((), 8) is None
    assert read_curve(curve, 990, rounding=16) == (10.0, "nearest")
    assert read_curve(curve, 983, rounding=16) is None


def test_a_rounded_or_interpolated_time_is_not_called_measured():
    """nccl-tests rounds parts to 16 bytes: a time belongs to the size that was sent."""
    gather = _message(1000, collective=Collective.ALL_GATHER)
    for changes, origin in (({"measured_bytes": 1024}, "nearest"), ({"interpolated": True}, "interpolated")):
        measured = build_curves([Measurement(message=gather, samples_us=(30.0,), **changes)])
        (row,) = estimate(_workload(gather), H100, measured=measured).messages
        assert (row.time_us, row.source) == (30.0, origin)
    both = [Measurement(message=gather, samples_us=(t,), interpolated=t > 30) for t in (30.0, 50.0, 60.0)]
    ((point,),) = build_curves(both).values()
    assert point == CurvePoint(1000, 30.0)


def test_measured_times_replace_those_of_the_model_for_their_kind_alone():
    measured = build_curves(
        [
            Measurement(message=_message(1000), samples_us=(30.0, 50.0)),
            Measurement(message=_message(1000), samples_us=(60.0,)),
            Measurement(message=_message(1000, group=8, spans=False), samples_us=(7.0,)),
        ]
    )
    found = estimate(
        _workload(_message(1000), _message(2000), _message(1000, collective=Collective.ALL_GATHER), calls=2.0),
        H100,
        measured=measured,
    )
    rows = {(r.message.collective.value, r.message.size_bytes): (r.time_us, r.source) for r in found.messages}
    assert rows["all_reduce", 1000] == (50.0, "measured")
    assert rows["all_reduce", 2000][1] == rows["all_gather", 1000][1] == "model"
    assert found.communication_s == pytest.approx(sum(2 * time_us for time_us, _ in rows.values()) / 1e6)
    assert (found.compute_s, found.is_network_bound, found.turning_gbps) == (None, None, None)
    assert found.messages[0].message.size_bytes == 1000


def test_a_group_of_one_rank_sends_nothing():
    found = estimate(_workload(_message(1000, group=1, spans=False)), H100, compute_s=1.0, measured={})
    assert (found.messages, found.communication_s, found.bus_gbps, found.is_network_bound) == ((), 0, 0, False)

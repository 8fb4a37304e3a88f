"""The table of changes: what it can know, what it must not claim, and what it refuses."""

import ast
import inspect
import itertools
from dataclasses import replace

import made_workloads
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.core.workload import Provenance
from ncclt.errors import InputError, NccltError, UsageError
from ncclt.profile.advice.advice import advise
from ncclt.profile.advice.changes import Ddp
from ncclt.profile.advice.job import LIKELY, recorded_cluster
from ncclt.profile.model.workload import ddp_messages
from ncclt.profile.views.estimate import CurvePoint
from ncclt.testing.samples import sample_cluster

torch = pytest.importorskip("torch")

NODE = replace(sample_cluster("node"), nodes=1, gpus_per_node=8, gpu="A100-SXM4-40GB", link_class="nvswitch")
REDUCE, GATHER, SCATTER = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def _calls(collective, size, *, dtype="float32", **more):
    return made_workloads.calls(size, collective=collective, dtype=dtype, **more)


def _workload(*rows, **more):
    return made_workloads.workload(*rows, source="kineto", **more)


def _advise(workload, cluster=NODE, **more):
    """Advise on a job whose step was timed on the cluster, where it has one."""
    if workload.exposed_us is not None:
        more = {
            "step_us": workload.step_time_us,
            "compute_us": workload.step_time_us - workload.exposed_us,
            **more,
        }
    return advise(workload, cluster, **{"measured": {}, **more})


def _rows(advice):
    return {row.name.split("=")[0]: row for row in advice.changes}


SIZES = st.lists(st.integers(4, 5 * 10**8).map(lambda n: n * 4), min_size=1, max_size=6, unique=True)


@settings(max_examples=40)
@given(
    sizes=SIZES, compute=st.floats(1e3, 1e6), exposed=st.floats(0, 1e6), dtype=st.sampled_from(["float32", "bfloat16"])
)
def test_whatever_the_job_predictions_are_possible(sizes, compute, exposed, dtype):
    calls = [_calls(REDUCE, size, dtype=dtype) for size in sizes]
    advice = _advise(_workload(*calls, step_time_us=compute + exposed, exposed_us=exposed))
    assert (advice.as_is.low_us, advice.as_is.step_us, advice.as_is.high_us) == pytest.approx([compute + exposed] * 3)
    times = [row.prediction.step_us for row in advice.changes if row.prediction]
    assert times == sorted(times)
    copies = 4 * sum(sizes) / 1555 / 0.6 / 1e3
    for row in advice.changes:
        assert (row.prediction is not None) == (row.modelled is not None)
        if row.prediction is None:
            assert row.why
        else:
            assert row.code
            assert row.prediction.low_us <= row.prediction.step_us <= row.prediction.high_us
            # No change of communication makes a step shorter than its compute, but for the copies that a view saves.
            assert row.prediction.step_us >= compute * (1 - 1e-6) - copies


@settings(max_examples=10)
@given(size=st.integers(100, 10**8).map(lambda n: n * 4))
def test_compression_never_sends_longer(size):
    advice = _advise(_workload(_calls(REDUCE, size), step_time_us=2e5, exposed_us=1e5))
    model = Ddp(advice.job, advice.job.workload.messages, [size])
    plain, bf16 = (model._bucket(size, hook, NODE, LIKELY, False) for hook in ("", "bf16"))
    assert bf16.call_us <= plain.call_us
    assert bf16.before_us > plain.before_us == 0


@pytest.mark.parametrize("recorded", ["sharded", "whole"])
def test_one_trace_is_never_predicted_slower_on_a_faster_network(recorded):
    """A recorded step and recorded calls are of the GPUs of the recording, and say nothing of another cluster."""
    calls = {
        "sharded": (
            _calls(REDUCE, 4096, us=900.0),
            _calls(GATHER, 4 * 10**7, count=63.0, dtype="bfloat16", us=3e3),
            _calls(SCATTER, 8 * 10**7, count=32.0, us=6e3),
        ),
        "whole": (_calls(REDUCE, 28351488, count=12.0, us=2e3),),
    }[recorded]
    workload = _workload(*calls, step_time_us=7e4, exposed_us=2e4)
    advices = [advise(workload, replace(NODE, link_gbps=gbps), measured={}) for gbps in (16, 32, 100, 300, 450)]
    exposed = [advice.exposed_us for advice in advices]
    assert exposed[0] > 2 * exposed[-1]
    _require_falling(exposed)
    _require_falling([advice.as_is.step_us for advice in advices])
    for name in _rows(advices[0]):
        predictions = [_rows(advice)[name].prediction for advice in advices if name in _rows(advice)]
        _require_falling([prediction.step_us for prediction in predictions if prediction])
    for advice in advices:
        assert advice.exposed_us <= advice.as_is.step_us - advice.job.compute_us
        times = advice.job.times
        sent = ((c.calls_per_step, c.message) for c in calls)
        assert advice.exposed_us <= sum(n * times.time_us(m.collective, m.size_bytes) for n, m in sent)


def _require_falling(times):
    """Channels of a faster network hold more of the GPU, which costs compute up to 1 %."""
    assert all(later <= 1.01 * earlier for earlier, later in itertools.pairwise(times)), times


def test_times_of_one_collective_say_nothing_of_another():
    """What a recording of DDP has no times of is not predicted; on a named cluster NCCL's model has them."""
    origin = Provenance(source="kineto", world_size=8)
    times = {"step_time_us": 2e5, "exposed_us": 5e4}
    traced = _workload(_calls(REDUCE, 10**8, us=5e4), origin=origin, **times)
    row = _rows(advise(traced, recorded_cluster(traced), measured={}))["FSDP instead of DDP"]
    assert row.prediction is None
    assert "all_gather and reduce_scatter not recorded" in row.why
    slow, fast = (
        _rows(advise(replace(traced, messages=(_calls(REDUCE, 10**8, us=us),)), NODE, measured={}, compute_us=1.5e5))[
            row.name
        ]
        for us in (5e4, 5e2)
    )
    assert slow.prediction == fast.prediction


def test_a_step_without_recorded_calls_scales_them_until_they_explain_it():
    workload = _workload(_calls(REDUCE, 28351488, count=12.0), step_time_us=3e5, exposed_us=1.5e5)
    advice = _advise(workload)
    assert advice.model_us == pytest.approx(3e5, rel=1e-3)
    assert any("scaled" in note for note in advice.notes)
    assert _rows(advice)["bf16 or fp16 compression"].prediction.step_us < 2.5e5


def test_a_step_that_hides_everything_has_nothing_to_gain_from_communication():
    advice = _advise(_workload(_calls(REDUCE, 28351488, count=12.0, us=100.0), step_time_us=3e5, exposed_us=0.0))
    assert advice.exposed_us == 0
    rows = _rows(advice)
    assert rows["bf16 or fp16 compression"].prediction.step_us >= 3e5
    assert rows["gradient accumulation over 4"].prediction.step_us == pytest.approx(3e5)


def test_one_bucket_gains_from_several():
    rows = _rows(_advise(_workload(_calls(REDUCE, 4 * 10**8, us=50_000.0), step_time_us=2e5, exposed_us=5e4)))
    assert rows["bucket_cap_mb"].prediction.step_us < 1.9e5
    assert "DDP's default buckets" in rows
    assert "first bucket of 8 MiB" not in rows


def test_default_buckets_are_recognised_and_a_first_bucket_suggested():
    shapes = [("w", (1024, 1024))] * 60
    rows = _rows(_advise(_workload(*ddp_messages(shapes, "float32"), step_time_us=2e5, exposed_us=5e4)))
    assert any(name.startswith("first bucket") for name in rows)
    assert "DDP's default buckets" not in rows


def test_gradients_of_two_bytes_are_not_compressed_again():
    rows = _rows(_advise(_workload(_calls(REDUCE, 10**8, dtype="bfloat16"), step_time_us=2e5, exposed_us=5e4)))
    assert rows["bf16 or fp16 compression"].prediction is None
    assert "bfloat16 already" in rows["bf16 or fp16 compression"].why


def test_copies_of_the_trace_are_what_a_view_saves():
    calls = _calls(REDUCE, 10**8, us=5e4)
    rows = _rows(_advise(_workload(calls, step_time_us=2e5, exposed_us=5e4, copied_us=900.0)))
    assert rows["gradient_as_bucket_view"].prediction.step_us == pytest.approx(2e5 - 900)
    assert "0.90 ms of copies" in rows["gradient_as_bucket_view"].why


def _sharded(**more):
    gathers = _calls(GATHER, 4 * 10**8, count=63.0, dtype="bfloat16")
    return _workload(gathers, _calls(SCATTER, 8 * 10**8, count=32.0), **more)


def test_a_sharded_job_has_its_own_rows():
    advice = _advise(_sharded(step_time_us=6e5, exposed_us=2e5))
    assert advice.sharding == "FSDP"
    rows = _rows(advice)
    assert rows["gradients reduced in bf16"].prediction.step_us < 6e5
    assert rows["parameters kept after the forward pass"].prediction.step_us < 6e5
    assert "95.37 GiB" in rows["DDP instead of FSDP"].why
    assert rows["bucket_cap_mb, compression hooks, gradient_as_bucket_view, static_graph"].prediction is None


def test_numbers_of_nodes_are_rows():
    two = replace(NODE, nodes=2)
    workload = _workload(_calls(REDUCE, 10**8, us=2e4), step_time_us=2e5, exposed_us=2e4)
    rows = _rows(_advise(workload, two, others=(NODE, replace(NODE, nodes=4))))
    assert rows["1 node x 8 GPUs"].prediction.step_us < rows["4 nodes x 8 GPUs"].prediction.step_us
    assert "2x the global batch" in rows["4 nodes x 8 GPUs"].why


def test_measured_curves_stand_in_for_the_cost_model():
    workload = _workload(_calls(REDUCE, 10**8))
    slow = {(REDUCE, 8, False): (CurvePoint(2**20, 1e3), CurvePoint(2**28, 1e6))}
    plain, measured = (_advise(workload, compute_us=1e5, measured=m) for m in ({}, slow))
    assert measured.as_is.step_us > 2 * plain.as_is.step_us
    assert any("cost model" in note for note in plain.notes)
    assert not any("cost model" in note for note in measured.notes)


def test_what_is_not_known_is_asked_for():
    for workload, times, said in [
        (_workload(_calls(REDUCE, 8)), {}, "the step time"),
        (_workload(_calls(REDUCE, 8), step_time_us=9.0), {}, "exposed communication"),
        (_workload(_calls(REDUCE, 8)), {"step_us": 9.0}, "exposed communication"),
        (_workload(_calls(REDUCE, 8)), {"step_us": 9.0, "compute_us": 10.0}, "cannot hold"),
        (_workload(_calls(REDUCE, 8)), {"compute_us": float("nan")}, "--compute-ms must be above 0"),
        (_workload(_calls(REDUCE, 8)), {"step_us": -1.0}, "--step-ms must be above 0"),
        (_workload(_calls(REDUCE, 8), step_time_us=5.0, exposed_us=5.0), {}, "cannot hold"),
        (
            _workload(_calls(REDUCE, 8), origin=Provenance(source="kineto", whole_file=True)),
            {},
            "no known number of steps",
        ),
        (_workload(_calls(REDUCE, 8), origin=Provenance(source="horovod")), {"compute_us": 9.0}, "Horovod"),
    ]:
        with pytest.raises(UsageError, match=said):
            advise(workload, NODE, measured={}, **times)


def test_other_parallel_jobs_are_refused():
    mixed = _workload(_calls(REDUCE, 800, group=8), _calls(REDUCE, 800, group=2))
    with pytest.raises(InputError, match="neither like DDP nor like FSDP"):
        _advise(mixed, compute_us=9.0)
    with pytest.raises(NccltError, match="neither"):
        _advise(_workload(_calls(Collective.ALL_TO_ALL, 800)), compute_us=9.0)
    with pytest.raises(UsageError, match="one GPU"):
        _advise(_workload(_calls(REDUCE, 8)), NODE.sized(gpus_per_node=1), compute_us=9.0)


def test_every_line_to_try_is_valid_for_the_pytorch_at_hand():
    """Imports are made for real, and options looked up in the signatures that take them."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    assert isinstance(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, int)
    takers = {"DDP": DistributedDataParallel, "PowerSGDState": PowerSGDState}
    takers |= {"MixedPrecisionPolicy": MixedPrecisionPolicy, "fully_shard": fully_shard}
    jobs = [
        _workload(_calls(REDUCE, 4 * 10**8), step_time_us=2e5, exposed_us=5e4),
        _workload(*ddp_messages([("w", (1024, 1024))] * 60, "float32"), step_time_us=2e5, exposed_us=5e4),
        _sharded(step_time_us=6e5, exposed_us=2e5),
    ]
    lines = [row.code for job in jobs for row in _advise(job).changes if row.code]
    assert len(lines) > 20
    looked_up = set()
    for line in lines:
        for node in ast.walk(ast.parse(line)):
            if isinstance(node, ast.ImportFrom):
                exec(ast.unparse(node), {})
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in takers:
                known = inspect.signature(takers[node.func.id]).parameters
                looked_up |= {keyword.arg for keyword in node.keywords}
                assert {keyword.arg for keyword in node.keywords} <= set(known)
    assert {"bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "reshard_after_forward"} <= looked_up

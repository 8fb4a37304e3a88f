"""The calls of one step on the GPU's time line."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.workload import Workload
from ncclt.profile import read_workload
from ncclt.profile.readers.kineto.reader import KernelTimes, KinetoSteps, median_step_calls
from ncclt.profile.readers.kineto.trace import Event

MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=8)


def _run(made_us, start_us, duration_us=5.0):
    return made_us, MESSAGE, Event(name="nccl", start_us=start_us, duration_us=duration_us, thread="0/7", args={})


def _times(*runs):
    return KernelTimes(mean_us={}, runs=runs, without_metadata=0, unmatched=0, total=len(runs))


def _steps(*ranges):
    numbered = tuple(enumerate(ranges))
    return KinetoSteps(calls=(), count=len(ranges), ranges=numbered)


def test_the_median_step_counts_by_when_the_cpu_made_the_call():
    runs = [_run(1, 50), _run(11, 60), _run(12, 80, 7.0), _run(31, 90)]
    timeline = median_step_calls(_times(*runs), _steps((0.0, 9.0), (10.0, 20.0), (30.0, 99.0)))
    assert [(call.start_us, call.duration_us) for call in timeline] == [(0.0, 5.0), (20.0, 7.0)]


def test_no_timeline_without_steps_or_with_too_many_calls():
    assert median_step_calls(_times(_run(1, 2)), _steps()) == ()
    assert median_step_calls(_times(_run(50, 60)), _steps((0.0, 9.0))) == ()
    assert median_step_calls(_times(*[_run(1, n) for n in range(1001)]), _steps((0.0, 9.0))) == ()


@pytest.mark.shared
def test_resnet_shows_its_backward_pass_and_the_copies_of_its_gradients(shared_data):
    """Two broadcasts of buffers, five buckets in the order of DDP; 102 MB of gradients are copied back."""
    path = shared_data / "traces" / "kineto_hta" / "nccl_parser_config__nccl_data.json.gz"
    workload = read_workload([path], name="r50")
    sizes = [call.message.size_bytes for call in workload.timeline]
    assert sizes == [212480, 424, 8196000, 31502336, 26255360, 26550272, 9724160]
    starts = [call.start_us for call in workload.timeline]
    assert starts == sorted(starts)
    assert starts[0] == 0.0
    assert workload.copied_us == pytest.approx(2262.78 / 3, rel=1e-3)
    assert Workload.from_document(workload.to_document()) == workload

"""Exposed communication from kernels as a Kineto trace shows them."""

import gzip
import json

import pytest

from ncclt.profile.readers.kineto.exposure import (
    NO_COMMUNICATION,
    NO_COMPUTE,
    NO_KERNELS,
    NO_NCCL_PART,
    KernelTimeline,
    RankExposure,
    least_exposed,
)

NCCL, GEMM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ampere_sgemm_128x64_tn"


def _timeline(*kernels):
    timeline = KernelTimeline()
    for name, start, duration, *device in kernels:
        timeline.add_kernel(name, start, duration, *device)
    return timeline


def test_what_no_compute_covers_is_exposed_per_step():
    timeline = _timeline((NCCL, 10, 20), (GEMM, 15, 5), (NCCL, 110, 20), (GEMM, 100, 100))
    found = timeline.exposure([(1, (0.0, 100.0)), (2, (100.0, 200.0))])
    assert (found.communication_us, found.exposed_us) == (20.0, 7.5)
    assert "on the CPU" in found.note


def test_kernels_outside_of_the_steps_do_not_count():
    timeline = _timeline((NCCL, 10, 20), (NCCL, 500, 20), (GEMM, 0, 5))
    assert timeline.exposure([(1, (0.0, 100.0))]).exposed_us == 20.0
    assert timeline.exposure([]).exposed_us == 40.0


def test_ranges_on_the_gpu_are_taken_where_all_steps_have_one():
    timeline = _timeline((NCCL, 120, 20), (GEMM, 0, 5))
    timeline.add_gpu_step(1, 100.0, 100.0)
    assert timeline.exposure([(1, (0.0, 100.0))]) == RankExposure(communication_us=20.0, exposed_us=20.0)
    assert timeline.exposure([(1, (0.0, 100.0)), (2, (100.0, 150.0))]).exposed_us == 10.0


def test_a_range_on_the_gpu_without_the_backward_pass_is_not_taken():
    # Seen on an H100: the range holds the forward pass alone, for the backward pass has a thread of its own.
    timeline = _timeline((GEMM, 10, 5), (NCCL, 20, 40), (GEMM, 40, 5))
    timeline.add_gpu_step(1, 8.0, 8.0)
    found = timeline.exposure([(1, (0.0, 100.0))])
    assert (found.communication_us, found.exposed_us) == (40.0, 35.0)
    assert found.note


def test_what_is_not_known_is_said():
    for kernels, note in [
        ((), NO_KERNELS),
        (((GEMM, 0, 5),), NO_COMMUNICATION),
        (((NCCL, 0, 5),), NO_COMPUTE),
        (((NCCL, 900, 5), (GEMM, 0, 5)), NO_COMMUNICATION),
    ]:
        assert _timeline(*kernels).exposure([(1, (0.0, 100.0))]) == RankExposure(note=note)


def test_another_library_is_neither_nccl_nor_compute():
    """It hides nothing; where compute hides all of NCCL, what is exposed of the other library is not known."""
    other = "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)"
    timeline = _timeline((NCCL, 10, 20), (other, 5, 50), (GEMM, 15, 5))
    assert timeline.exposure([]).exposed_us == 15.0
    assert (timeline.others_us, dict(timeline.libraries)) == (50.0, {"vLLM's custom all-reduce": 1})
    hidden = _timeline((NCCL, 10, 20), (other, 5, 50), (GEMM, 0, 40)).exposure([])
    assert (hidden.communication_us, hidden.exposed_us, hidden.note) == (20.0, None, NO_NCCL_PART)
    assert _timeline((other, 5, 50), (GEMM, 0, 40)).exposure([]).note == NO_COMMUNICATION


def test_copies_between_gpus_are_communication_of_others():
    timeline = _timeline((NCCL, 10, 20), (GEMM, 0, 5))
    timeline.add_copy(10, 20, leaves_gpu=True)
    assert (timeline.others_us, timeline.exposure([]).exposed_us) == (20.0, 20.0)


def test_numbers_that_make_no_interval_are_ignored():
    nan, inf = float("nan"), float("inf")
    broken = [(NCCL, nan, 5), (NCCL, 0, nan), (NCCL, 0, inf), (NCCL, inf, 1), (NCCL, 0, -5), (NCCL, 0, 0)]
    timeline = _timeline(*broken)
    timeline.add_gpu_step(1, 0.0, nan)
    assert timeline.exposure([]).note == NO_KERNELS


def test_gpus_of_one_process_do_not_hide_each_other():
    timeline = _timeline((NCCL, 0, 10, "0"), (GEMM, 50, 1, "0"), (NCCL, 0, 10, "1"), (GEMM, 0, 4, "1"))
    assert timeline.exposure([]).exposed_us == 6.0


def test_the_least_exposed_rank_bounds_the_gain():
    ranks = [RankExposure(exposed_us=30.0, note="a"), RankExposure(exposed_us=20.0, note="a"), RankExposure(note="b")]
    assert least_exposed(ranks) == (20.0, ("a", "b"))
    assert least_exposed([RankExposure(note="b")]) == (None, ("b",))


def _events(path):
    return json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]


def _read(path):
    timeline, steps = KernelTimeline(), []
    for event in _events(path):
        if event.get("cat") == "kernel":
            timeline.add_kernel(event["name"], float(event["ts"]), float(event["dur"]), str(event["pid"]))
        elif str(event.get("name")).startswith("ProfilerStep#") and "dur" in event:
            start = float(event["ts"])
            steps.append((int(event["name"][13:]), (start, start + event["dur"])))
    return timeline, steps


def _swept(path):
    """The exposed µs of a whole file by another way: counting kernels that begin and end, in order of time."""
    edges = []
    for event in _events(path):
        if event.get("cat") == "kernel":
            kind = 0 if event["name"].startswith("nccl") else 1
            edges += [(event["ts"], kind, 1), (event["ts"] + event["dur"], kind, -1)]
    running, before, exposed = [0, 0], 0.0, 0.0
    for at, kind, change in sorted(edges):
        exposed += (at - before) * (running[0] > 0 and running[1] == 0)
        running[kind] += change
        before = at
    return exposed


@pytest.mark.shared
def test_resnet_on_two_gpus_exposes_most_of_its_communication(shared_data):
    """All kernels lie inside the three steps of 222 ms, the last of which waits longest; the median step counts."""
    path = shared_data / "traces" / "kineto_hta" / "nccl_parser_config__nccl_data.json.gz"
    timeline, steps = _read(path)
    each = [timeline.exposure([step]) for step in steps]
    assert [round(one.communication_us) for one in each] == [11_989, 12_300, 22_587]
    assert sum(one.exposed_us for one in each) == pytest.approx(_swept(path), abs=1)
    found = timeline.exposure(steps)
    assert (found.communication_us, found.exposed_us) == (each[1].communication_us, each[1].exposed_us)


@pytest.mark.shared
def test_gloo_on_cpus_is_not_known(shared_data):
    timeline, steps = _read(shared_data / "traces" / "generated" / "kineto_gloo_torch2.8_rank0.json.gz")
    assert timeline.exposure(steps) == RankExposure(note=NO_KERNELS)


def test_copies_within_the_gpu_count_per_step():
    timeline = _timeline((NCCL, 10, 20), (GEMM, 15, 5))
    timeline.add_copy(30, 8)
    timeline.add_copy(34, 8)
    timeline.add_copy(500, 8)
    assert timeline.exposure([(1, (0.0, 50.0)), (2, (50.0, 100.0))]).copied_us == 6.0
    assert timeline.exposure([]).copied_us is None


def test_copies_alone_are_no_kernels():
    timeline = KernelTimeline()
    timeline.add_copy(0, 5)
    assert timeline.exposure([]).note == NO_KERNELS

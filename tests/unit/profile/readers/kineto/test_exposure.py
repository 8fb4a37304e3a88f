"""Exposed communication from kernels as a Kineto trace shows them."""

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

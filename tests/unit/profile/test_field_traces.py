"""Traces of kinds that people report, with the right values beside them (data/field/README.md)."""

import pytest

from ncclt.errors import TraceError
from ncclt.profile import read_workload
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import count_traffic
from ncclt.testing.reader_contract import message_table

pytestmark = pytest.mark.shared


@pytest.fixture
def read(shared_data):
    """Return a function that reads files of the field."""
    return lambda *names: read_workload([shared_data / "field" / name for name in names], name="field")


rows = message_table


def test_pipeline_stages_give_the_role_with_most_bytes(read):
    """4000 B on rank 0 and 8000 B on rank 1: no rank sends both."""
    workload = read("stage_rank0.json", "stage_rank1.json")
    assert rows(workload) == {("all_reduce", "float32", 8000, 2): 1.0}
    assert [note for note in workload.provenance.notes if "messages" in note or "left out: rank" in note] == [
        "ranks send different messages: using those of rank 1 (most bytes)",
        "left out: rank 0, 1 x all_reduce 3.91 KiB float32",
    ]
    assert {call.message.size_bytes for call in workload.timeline} == {8000}
    assert count_traffic(workload)[1] is None, "the others send something else"


def test_group_of_one_is_left_out_with_a_note(read):
    workload = read("group_of_one.json")
    assert rows(workload) == {("all_reduce", "float32", 8000, 8): 1.0}
    assert "left out: all_reduce in a group of one rank, which sends nothing" in workload.provenance.notes


def test_communication_of_another_library_alone_is_refused(read):
    """It was refused as a recording without communication, which it is not."""
    with pytest.raises(TraceError, match=r"2 x vLLM's custom all-reduce.*NCCL settings do not affect") as caught:
        read("14a_custom_all_reduce_only.json")
    assert "--disable-custom-all-reduce" in caught.value.hint


def test_other_libraries_hide_nothing_of_nccl(read):
    """NCCL's 2 of 10 ms are exposed: the other library's kernels beside them are no compute."""
    for name, library in [
        ("14b_custom_all_reduce_beside_nccl.json", "vLLM's custom"),
        ("14c_expert_dispatch_beside_nccl.json", "DeepEP"),
    ]:
        workload = read(name)
        assert bound_gain(workload).share == pytest.approx(0.2)
        assert any(f"6.00 ms in the file (2 x {library}" in note for note in workload.provenance.notes)


def test_step_is_an_optimizer_step(read):
    """Without marks, with marks of microbatches and of an evaluation, and in two profiler cycles of one rank."""
    for names, row, steps, step_us in [
        (["optimizer_steps_no_profilerstep.json"], ("all_reduce", "float32", 4000, 8), 3, 1000),
        (["profilerstep_per_microbatch.json"], ("all_reduce", "float32", 4_000_000, 8), 2, 4000),
        (["eval_step_among_train_steps.json"], ("all_reduce", "float32", 4_000_000, 8), 2, 1000),
        (["cycle1_rank0.json", "cycle2_rank0.json"], ("all_reduce", "float32", 4000, 4), 6, 1000),
    ]:
        workload = read(*names)
        assert rows(workload) == {row: 1.0}
        assert (workload.provenance.steps, workload.step_time_us) == (steps, step_us)
        assert workload.provenance.ranks_read == (0,)


def test_copy_of_a_cycle_is_refused(read, shared_data, tmp_path):
    """It marks the same steps."""
    copy = tmp_path / "copy.json"
    copy.write_bytes((shared_data / "field" / "cycle1_rank0.json").read_bytes())
    with pytest.raises(TraceError, match="rank 0 appears twice"):
        read_workload([shared_data / "field" / "cycle1_rank0.json", copy], name="twice")


def test_collective_of_the_program_counts(read):
    """Not the all_reduces by which gloo emulates it, nor the sum of coalesced tensors."""
    for name, expected in [
        ("gloo_functional_reduce_scatter.json", {("reduce_scatter", "float32", 256, 2): 1.0}),
        ("gloo_list_reduce_scatter.json", {("reduce_scatter", "float32", 320, 4): 1.0}),
        (
            "allreduce_coalesced_two_tensors.json",
            {("all_reduce", "float32", 4000, 8): 1.0, ("all_reduce", "float32", 8000, 8): 1.0},
        ),
    ]:
        assert rows(read(name)) == expected


def test_example_profiler_of_nccl_is_read(read):
    """It names neither the ranks of its communicator nor a time of transfer."""
    workload = read("04_nccl_example_profiler.json")
    assert rows(workload) == {("all_reduce", "float32", 2**20, 0): 3.0, ("all_gather", "bfloat16", 2**17, 0): 1.0}
    choices = "all_reduce 1 MiB: RING/LL128/24; all_gather 128 KiB per rank: RING/SIMPLE/24"
    assert workload.provenance.detail["nccl_choices"] == choices
    assert workload.communication_us is None


def test_xla_trace_is_refused_by_name(read):
    """Its NCCL kernels have no sizes; it was taken for a trace of PyTorch."""
    with pytest.raises(TraceError, match="a trace of XLA, whose kernels have no message sizes") as caught:
        read("xla_gpu_trace.json")
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL" in caught.value.hint

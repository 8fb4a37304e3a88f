"""Traces without metadata: operators and annotations together give each call once."""

from ncclt.profile.readers.kineto.reader import KinetoReader
from ncclt.testing.reader_contract import message_table


def _rows(trace):
    workload = KinetoReader().read([trace.write()], name="t")
    return message_table(workload), workload.provenance.notes


def test_operator_tells_the_group_that_the_annotation_hides(new_trace):
    """An all_gather in a group of 4 of a world of 16."""
    trace = new_trace().job(0, 16)
    trace.shaped("c10d::_allgather_base_", ([400], "float"), ([100], "float"))
    trace.shaped("nccl:_all_gather_base", ([100], "float"))
    assert _rows(trace)[0] == {("all_gather", "float32", 1600, 4): 1.0}


def test_annotation_alone_takes_the_world(new_trace):
    """Torch before 2.0 has no operators; the sentence about it is in the notes."""
    trace = new_trace().job(0, 4)
    trace.shaped("nccl:_all_gather_base", ([100], "float"))
    trace.shaped("nccl:all_reduce", ([], "long int"))
    found, notes = _rows(trace)
    assert found == {("all_gather", "float32", 1600, 4): 1.0, ("all_reduce", "int64", 8, 4): 1.0}
    assert any("assuming all 4 ranks" in note for note in notes)


def test_gloo_reduce_scatter_of_lists_is_one_message_per_output(new_trace):
    """Per output as many all_reduces as ranks, or one per input of a coalesced call; another all_reduce remains."""
    trace = new_trace().job(0, 2, "gloo")
    trace.shaped("c10d::reduce_scatter_", ([[20]], "TensorList"), ([], "GenericList"))
    trace.shaped("c10d::reduce_scatter_tensor_coalesced_", ([[30], [4]], "TensorList"), ([[60], [8]], "TensorList"))
    for elements in (20, 20, 60, 8, 20):
        trace.shaped("gloo:all_reduce", ([elements], "c10::BFloat16"))
    found, notes = _rows(trace)
    assert found == {
        ("reduce_scatter", "bfloat16", 80, 2): 1.0,
        ("reduce_scatter", "bfloat16", 120, 2): 1.0,
        ("reduce_scatter", "bfloat16", 16, 2): 1.0,
        ("all_reduce", "bfloat16", 40, 2): 1.0,
    }
    assert not any("without shapes" in note for note in notes)


def test_gloo_reduce_scatter_whose_all_reduces_are_missing_is_noted(new_trace):
    """Its dtype is not known without them."""
    trace = new_trace().job(0, 2, "gloo")
    trace.shaped("c10d::reduce_scatter_", ([[20]], "TensorList"))
    trace.shaped("gloo:all_reduce", ([7], "float"))
    found, notes = _rows(trace)
    assert found == {("all_reduce", "float32", 28, 2): 1.0}
    assert any("1 x reducescatter without shapes" in note for note in notes)


def test_gloo_beside_nccl_is_left_out(new_trace):
    """It never reaches NCCL."""
    trace = new_trace().job(0, 2)
    trace.shaped("nccl:all_reduce", ([100], "float"))
    trace.shaped("gloo:broadcast", ([7], "float"))
    trace.shaped("c10d::_allgather_base_", ([60], "float"), ([30], "float"))
    trace.shaped("gloo:all_gather", ([30], "float"))
    found, notes = _rows(trace)
    assert found == {("all_reduce", "float32", 400, 2): 1.0}
    assert any("2 x collective over gloo" in note for note in notes)


def test_list_of_tensors_is_one_exchange_and_several_reductions(new_trace):
    """all_to_all splits one buffer; a coalesced all_reduce is one NCCL call per tensor."""
    trace = new_trace().job(0, 2)
    trace.shaped("nccl:all_to_all", ([10], "float"), ([30], "float"))
    trace.shaped("nccl:allreduce_coalesced", ([5], "c10::BFloat16"), ([6], "c10::BFloat16"))
    assert _rows(trace)[0] == {
        ("all_to_all", "float32", 160, 2): 1.0,
        ("all_reduce", "bfloat16", 10, 2): 1.0,
        ("all_reduce", "bfloat16", 12, 2): 1.0,
    }


def test_unknown_world_is_the_whole_job_with_a_note(new_trace):
    """A hand-cut trace without distributedInfo."""
    trace = new_trace()
    trace.shaped("nccl:_all_gather_base", ([100], "float"))
    found, notes = _rows(trace)
    assert found == {("all_gather", "float32", 400, 0): 1.0}
    assert any("one rank's share" in note for note in notes)


def test_calls_of_any_backend_are_read_or_named(new_trace):
    """With shapes they count, without they are counted in a note."""
    for backend in ["hccl", "xccl", "mccl", "cncl", "gloo"]:
        trace = new_trace().job(0, 2)
        trace.shaped(f"{backend}:all_reduce", ([4], "float"))
        trace.shaped(f"{backend}:broadcast")
        workload = KinetoReader().read([trace.write()], name="t")
        assert [(m.message.label, m.calls_per_step) for m in workload.messages] == [("all_reduce 16 B float32", 1.0)]
        notes = workload.provenance.notes
        assert f"recorded over {backend}: NCCL would get the same messages" in notes
        assert "left out: 1 x broadcast without shapes (record with record_shapes=True)" in notes


def test_operators_that_nothing_sizes_are_named(trace):
    """No shapes of their own, and no annotation: the call is left out, but not in silence."""
    trace.shaped("c10d::allreduce_")
    trace.shaped("c10d::_allgather_base_", ([4], "float"), ([2], "float"))
    workload = KinetoReader().read([trace.write()], name="t")
    assert [m.message.collective.value for m in workload.messages] == ["all_gather"]
    assert any("1 x allreduce without shapes" in note for note in workload.provenance.notes)


def test_metadata_without_a_size_are_named(trace):
    """The collective is known, its elements are not."""
    trace.comm("allreduce", 4)
    trace.event("record_param_comms", "cpu_op", **{"Collective name": "allgather"})
    notes = KinetoReader().read([trace.write()], name="t").provenance.notes
    assert "left out: 1 x allgather without a size" in notes

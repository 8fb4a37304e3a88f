"""The rules by which a Kineto trace becomes a workload, one small trace each."""

import pytest

from ncclt.core.message import MOST_BYTES, Collective, Message
from ncclt.errors import InputError, TraceError
from ncclt.profile.readers.kineto.reader import KinetoReader
from ncclt.testing.reader_contract import message_table


def _read(*paths):
    return KinetoReader().read(paths, name="t")


_rows = message_table


def test_kernels_are_counted_where_operators_are_missing(trace):
    """A recording of the GPU alone."""
    facts = trace.comm("allreduce", 256)["args"]
    trace.rows.clear()
    for _ in range(3):
        trace.event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", "kernel", **facts)
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 1024, 2): 3.0}
    assert workload.provenance.detail["read_from"] == "metadata of NCCL kernels"


def test_size_is_the_size_column_of_nccl_tests(new_trace):
    """The full buffer for all_gather and reduce_scatter, what is sent for all_to_all."""
    for name, into, out, row in [
        ("_allgather_base", 100, 200, ("all_gather", "float32", 800, 2)),
        ("all_gather", 100, 200, ("all_gather", "float32", 800, 2)),
        ("_reduce_scatter_base", 200, 100, ("reduce_scatter", "float32", 800, 2)),
        ("all_to_allv", 300, 500, ("all_to_all", "float32", 1200, 2)),
        ("broadcast", 10, 10, ("broadcast", "float32", 40, 2)),
        ("reduce", 10, 10, ("reduce", "float32", 40, 2)),
        ("send", 10, 10, ("send_recv", "float32", 40, 2)),
    ]:
        trace = new_trace().job(0, 2)
        trace.comm(name, into, out)
        assert _rows(_read(trace.write())) == {row: 1.0}


def test_waiting_and_barriers_are_no_messages(trace):
    """Nor the all_reduce of one element that an older barrier records inside itself."""
    trace.comm("allreduce", 256)
    trace.comm("wait", 0, dtype="Byte")
    trace.comm("init", 0, dtype="Byte")
    barrier = trace.comm("barrier", 0, dtype="Byte")
    barrier["dur"] = 9
    inner = trace.comm("allreduce", 1)
    inner["ts"] = barrier["ts"] + 1
    assert _rows(_read(trace.write())) == {("all_reduce", "float32", 1024, 2): 1.0}


def test_sends_stand_for_both_halves(trace):
    """A rank that sends and receives shows each message twice."""
    trace.comm("send", 64)
    trace.comm("recv", 64)
    assert _rows(_read(trace.write())) == {("send_recv", "float32", 256, 2): 1.0}


def test_overflowed_count_is_unwrapped_and_noted(trace):
    """Torch 2.3 and 2.4 keep it in a C int."""
    trace.comm("allreduce", 3 * 2**30 - 2**32)
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 12 * 2**30, 2): 1.0}
    assert any("32 bits" in note for note in workload.provenance.notes)


def test_older_spelling_of_the_counts(trace):
    """Torch 2.2 wrote `In msg size`, and meant elements."""
    args = trace.comm("allreduce", 0)["args"]
    args["In msg size"], args["Out msg size"] = args.pop("In msg nelems") or 5, args.pop("Out msg nelems") or 5
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 20, 2): 1.0}


def test_what_makes_no_message_is_noted(trace):
    """Gather, complex numbers and empty messages are left out in the open."""
    trace.comm("allreduce", 256)
    trace.comm("gather", 256)
    trace.comm("allreduce", 256, dtype="ComplexFloat")
    trace.comm("all_to_allv", 0, 10)
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 1024, 2): 1.0}
    notes = "\n".join(workload.provenance.notes)
    assert "1 x gather" in notes
    assert "ComplexFloat" in notes
    assert "1 x alltoallv of 0 bytes" in notes


def test_coalesced_call_is_a_message_per_tensor(trace):
    """The operator around it has their sizes; a kernel that they share counts by its bytes, else each has its own."""
    for kernels, times in (((60,), {4000: 20.0, 8000: 40.0}), ((25, 35), {4000: 25.0, 8000: 35.0})):
        trace.rows.clear()
        operator = trace.shaped("c10d::allreduce_coalesced_", ([[1000], [2000]], "TensorList"))
        operator["dur"] = 100
        facts = trace.comm("allreduce_coalesced", 3000, **{"External id": 9})["args"]
        for duration in kernels:
            trace.event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", "kernel", dur=duration, **facts)
        workload = _read(trace.write())
        assert {m.message.size_bytes: m.recorded_us for m in workload.messages} == times
        assert set(_rows(workload).values()) == {1.0}


def test_coalesced_call_without_its_operator_is_one_message(trace):
    """And a note says so; an operator of other tensors does not help."""
    trace.shaped("c10d::allreduce_coalesced_", ([[1], [2]], "TensorList"))["dur"] = 100
    trace.comm("allreduce_coalesced", 3000)
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 12000, 2): 1.0}
    assert any("the sum of its tensors" in note for note in workload.provenance.notes)


def test_kernels_without_metadata_are_counted_in_a_note(trace):
    """As in steps that began before the recording."""
    facts = trace.comm("allreduce", 256)["args"]
    trace.event("ncclDevKernel_Generic(args)", "kernel", **facts)
    trace.event("ncclDevKernel_SendRecv(args)", "kernel")
    notes = _read(trace.write()).provenance.notes
    assert "kernels without metadata: 1 of 2" in notes


def test_group_of_the_trace_head_that_bypasses_nccl_is_left_out(trace):
    """A gloo side group of a job over NCCL."""
    config = [
        {"pg_name": "0", "backend_config": "cuda:nccl", "pg_size": 2},
        {"pg_name": "1", "backend_config": "cpu:gloo,cuda:gloo", "pg_size": 2},
    ]
    trace.job(0, 2, pg_config=config)
    trace.comm("allreduce", 256)
    trace.comm("broadcast", 256, **{"Process Group Name": "1"})
    workload = _read(trace.write())
    assert _rows(workload) == {("all_reduce", "float32", 1024, 2): 1.0}
    assert any("bypasses NCCL" in note for note in workload.provenance.notes)


def test_subgroup_spans_nodes_by_its_stride(trace):
    """Of 8 ranks on nodes of 4, ranks 0 and 4 do and ranks 0 and 1 do not; a group of all is decided later."""
    trace.job(0, 8).head["deviceProperties"] = [{"id": n} for n in range(4)]
    for elements, size, stride in ((10, 2, 4), (20, 2, 1), (30, 8, 1)):
        trace.comm("allreduce", elements, **{"Group size": size, "Global rank start": 0, "Global rank stride": stride})
    found = {m.message.size_bytes: m.message.spans_nodes for m in _read(trace.write()).messages}
    assert found == {40: True, 80: False, 120: False}


def test_rank_may_be_a_string_or_missing(new_trace):
    """On-demand traces print it as text; older ones leave it out."""
    for rank, expected in (("1", (1,)), (None, ())):
        trace = new_trace().job(rank, 2)
        trace.comm("allreduce", 256)
        assert _read(trace.write()).provenance.ranks_read == expected


def test_no_collectives_says_why(new_trace):
    """Sizes not recorded is another matter than nothing recorded."""
    for name, category, reason in [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "kernel", "1 NCCL kernels"),
        ("nccl:all_reduce", "user_annotation", "none of them has a size"),
        ("aten::add", "cpu_op", "no event"),
    ]:
        trace = new_trace().job(0, 2)
        trace.event(name, category)
        with pytest.raises(TraceError, match="no collectives") as caught:
            _read(trace.write())
        assert reason in caught.value.message
        assert caught.value.hint


def test_sizes_have_the_limit_of_every_reader(trace):
    """A larger count is damage: counted in a note, never a message."""
    trace.comm("allreduce", MOST_BYTES // 4)
    trace.comm("allreduce", MOST_BYTES // 4 + 1)
    workload = KinetoReader().read([trace.write()], name="t")
    assert [m.message.size_bytes for m in workload.messages] == [MOST_BYTES]
    assert "left out: 1 x allreduce of an impossible size" in workload.provenance.notes
    with pytest.raises(InputError):
        Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=MOST_BYTES + 1)

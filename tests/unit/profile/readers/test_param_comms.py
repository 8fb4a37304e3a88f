"""The rules by which PARAM's comms traces become a workload."""

import json

import pytest

from ncclt.errors import TraceError
from ncclt.profile.readers.param_comms import ParamCommsReader
from ncclt.testing.reader_contract import message_table


def _row(comms, into, out, dtype="float", **more):
    return {"comms": comms, "in_msg_size": into, "out_msg_size": out, "dtype": dtype, "world_size": 4, **more}


@pytest.fixture
def read(read_files):
    return lambda *rows: read_files(ParamCommsReader(), [json.dumps(rows)])


_rows = message_table


def test_elements_become_the_size_column_of_nccl_tests(read):
    """Sizes of a comms trace are elements, of one rank."""
    for row, expected in [
        (_row("all_reduce", 10, 10), ("all_reduce", "float32", 40, 4)),
        (_row("allreduce", 10, 10, "bfloat16"), ("all_reduce", "bfloat16", 20, 4)),
        (_row("all_gather_base", 10, 40), ("all_gather", "float32", 160, 4)),
        (_row("reduce_scatter", 40, 10, "Half"), ("reduce_scatter", "float16", 80, 4)),
        (_row("all_to_allv", 12, 99, in_split=[3] * 4, out_split=[9] * 4), ("all_to_all", "float32", 48, 4)),
        (_row("all_to_all_single", 12, 12), ("all_to_all", "float32", 48, 4)),
        (_row("broadcast", 3, 3, "long", root=0), ("broadcast", "int64", 24, 4)),
        (_row("isend", 5, 5, src_rank=2, dst_rank=3, use_batch=True), ("send_recv", "float32", 20, 4)),
        (_row("all_reduce", 10, 10, global_ranks=[2, 3]), ("all_reduce", "float32", 40, 2)),
    ]:
        assert _rows(read(row)) == {expected: 1.0}


def test_what_is_no_call_does_not_count(read):
    """Compute, waiting, barriers, set-up and the mark of a batch."""
    others = [{"comms": c} for c in ("wait", "barrier", "init", "batch_isend_irecv")]
    workload = read(_row("all_reduce", 10, 10), *others, {"compute": "gemm", "mm_dim": 1000})
    assert _rows(workload) == {("all_reduce", "float32", 40, 4): 1.0}
    assert not any("left out" in note for note in workload.provenance.notes)


def test_point_to_point_names_the_rank(read):
    """The sender of sends, the receiver of receives."""
    rows = [_row("send", 5, 5, src_rank=2, dst_rank=3), _row("recv", 5, 5, src_rank=1, dst_rank=2)]
    workload = read(*rows)
    assert _rows(workload) == {("send_recv", "float32", 20, 4): 1.0}
    assert workload.provenance.ranks_read == (2,)


def test_unusable_entries_are_left_out_and_said(read):
    """And a trace of them alone is refused with the same reason."""
    for row, reason in [
        (_row("all_reduce", -1, -1), "without a usable size"),
        (_row("all_reduce", float("nan"), None), "without a usable size"),
        (_row("all_reduce", 2**70, 2**70), "without a usable size"),
        (_row("all_reduce", 0, 0), "0 bytes"),
        (_row("all_reduce", 8, 8, "qint4"), "qint4"),
        (_row("all_reduce", 8, 8, None), "without a dtype"),
        (_row("gather", 8, 8), "ncclt does not support"),
        ({"neither": 1, "comms": 5}, "neither communication nor compute"),
    ]:
        workload = read(row, _row("all_reduce", 10, 10))
        assert _rows(workload) == {("all_reduce", "float32", 40, 4): 1.0}
        assert any(note.startswith("left out: 1 x") and reason in note for note in workload.provenance.notes)
        with pytest.raises(TraceError, match=reason):
            read(row)


def test_notes_stay_few_however_many_reasons_there_are(read):
    """A damaged file must not fill the profile with its words."""
    strange = [_row(f"op{n}", 1, 1) for n in range(500)]
    notes = read(_row("all_reduce", 10, 10), *strange).provenance.notes
    assert len(notes) < 30
    assert "left out: 480 x call for other reasons" in notes

"""The three collective tables of TraceLens."""

import json
from collections import Counter
from functools import partial

import pytest

from ncclt.core.message import parse_dtype
from ncclt.errors import TraceError
from ncclt.profile import read_workload
from ncclt.profile.readers.tracelens import TraceLensReader
from ncclt.testing.reader_contract import message_table

LONG = "rank,Process Group Name,Collective name,Group size,dtype,In msg nelems,Out msg nelems,dur_mean,operation_count"
COLLAPSED = (
    "Collective name,dtype,In msg nelems,Process Group Name,Group size,Full msg size (MB),comm_latency_mean,count"
)


@pytest.fixture
def read(read_files):
    return partial(read_files, TraceLensReader())


found = message_table


def test_ranks_are_not_added_up_and_the_fastest_tells_the_time(read):
    """Each rank shows the same calls; a rank that comes early waits inside its kernel."""
    workload = read(
        [
            LONG,
            "0,0,_allgather_base,3,BFloat16,100,300,30.0,7",
            "1,0,_allgather_base,3,BFloat16,100,300,10.0,7",
            "2,0,_allgather_base,3,BFloat16,100,300,20.0,7",
            "0,0,wait,2,Byte,0,0,1,9",
            "0,5,allreduce,2,Float,100,100,5,2",
            "0,6,allreduce,2,Float,100,100,7,2",
        ]
    )
    assert found(workload) == {("all_gather", "bfloat16", 600, 3): 7, ("all_reduce", "float32", 400, 2): 4}
    times = {m.message.collective.value: m.recorded_us for m in workload.messages}
    assert times == {"all_gather": 10.0, "all_reduce": 6.0}
    assert (workload.provenance.ranks_read, workload.provenance.world_size) == ((0, 1, 2), 3)


def test_tables_per_rank_are_merged_and_missing_ranks_said(read):
    """In any number of files."""
    tables = [[LONG, f"{rank},0,allreduce,4,Float,100,100,5.0,{rank + 1}"] for rank in (2, 0)]
    workload = read(*tables)
    assert found(workload) == {("all_reduce", "float32", 400, 4): 3}
    assert "read 2 of 4 ranks; using the busiest rank's counts" in workload.provenance.notes
    with pytest.raises(TraceError, match="rank 2 is in two tables"):
        read(*tables, tables[0])
    with pytest.raises(TraceError, match="does not say which ranks"):
        read(tables[0], [COLLAPSED, "allreduce,Float,1024,0,4,0.00390625,5,1"])


def test_sends_stand_for_their_receives(read):
    """As in the traces that the table was made from."""
    both = [LONG, "0,0,send,4,Float,100,100,5.0,3", "0,0,recv,4,Float,100,100,5.0,3"]
    assert found(read(both)) == {("send_recv", "float32", 400, 4): 3}
    assert found(read([both[0], both[2]])) == {("send_recv", "float32", 400, 4): 3}


def test_span_over_nodes_is_kept(read):
    """The column is there in newer tables."""
    workload = read([LONG + ",node_span", "0,9,allreduce,4,Float,100,100,5.0,1,inter_node"])
    assert workload.messages[0].message.spans_nodes


def test_what_makes_no_message_is_said(read):
    """Unknown dtype, no elements, no such collective here."""
    rows = ["0,0,allreduce,4,Float,100,100,5.0,1", "0,0,allreduce,4,Odd,100,100,5.0,2", "0,0,gather,4,Float,1,1,5.0,3"]
    notes = read([LONG, *rows, "0,0,broadcast,4,Float,0,0,5.0,4"]).provenance.notes
    assert "left out: 2 x allreduce of dtype 'Odd', of unknown size" in notes
    assert "left out: 3 x gather, which ncclt does not support" in notes
    assert "left out: 4 x broadcast of 0 bytes" in notes


def test_bad_tables_are_refused(read):
    """With the line."""
    for lines, why in [
        ([LONG, "0,0,allreduce,4,Float,-5,100,5.0,1"], "line 2: In msg nelems is '-5'"),
        ([LONG, "0,0,allreduce,4,Float,100,100,5.0,0"], "line 2: operation_count is '0'"),
        ([LONG, "0,0,allreduce,4,Float,100,100,nan,1"], "line 2: dur_mean is 'nan', not a number above 0"),
        ([LONG, "x,0,allreduce,4,Float,100,100,5.0,1"], "line 2: rank is 'x'"),
        ([LONG, "0,0,allreduce,4,Float,999999999999999999,100,5.0,1"], "line 2: a message of"),
        ([LONG, "0,0,allreduce,4,Float,100"], "line 2: 6 cells under a header of 9"),
        ([COLLAPSED, "allreduce,Float,1048576,0,8,5.0,5,1"], "line 2: the elements are 4194304 bytes but"),
        ([LONG, "0,0,barrier,4,Float,1,1,5.0,1"], "no collectives"),
        ([LONG], "no collectives"),
    ]:
        with pytest.raises(TraceError) as caught:
            read(lines)
        assert why in caught.value.message
        assert caught.value.hint


def expected_of(traces, file):
    counted = Counter()
    for entry in json.loads((traces / "expected.json").read_text())[f"tracelens_reports/{file}"]["messages"]:
        key = (entry["collective"], parse_dtype(entry["dtype"]), entry["size_bytes"], entry["group_size"])
        counted[key] += entry["calls"]
    return counted


@pytest.mark.shared
def test_real_tables_give_the_extractors_messages(shared_data):
    """Exactly, in all three forms."""
    for file, key in [
        ("ddp_28ch_rank0__coll_analysis.csv", "ddp_28ch_rank0__coll_analysis.csv"),
        ("llama_70b_fsdp__nccl_summary_long.csv", "llama_70b_fsdp__nccl_summary_long.csv"),
        # The extractor did not read the collapsed form; it is of the same run, so it must say the same.
        ("llama_70b_fsdp__nccl_summary_implicit_sync.csv", "llama_70b_fsdp__nccl_summary_long.csv"),
    ]:
        traces = shared_data / "traces"
        workload = read_workload([traces / "tracelens_reports" / file], name="real")
        assert found(workload) == expected_of(traces, key)
        assert workload.provenance.world_size == 8

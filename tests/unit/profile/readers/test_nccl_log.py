"""Whole NCCL logs: ranks, groups, nodes, and what is said where something is missing."""

import time
import tracemalloc
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.errors import TraceError
from ncclt.profile import read_workload, workload_builder
from ncclt.profile.readers.nccl_log import NcclLogReader
from ncclt.testing.reader_contract import message_table


def call(operation, count, *, host="n0", pid=1, dev=0, comm="0xa", ranks=4, datatype=7, op="0"):
    return (
        f"{host}:{pid}:9 [{dev}] NCCL INFO {operation}: opCount {op} sendbuff 0x1 recvbuff 0x2 count {count} "
        f"datatype {datatype} op 0 root 0 comm {comm} [nranks={ranks}] stream 0x3"
    )


def init(rank, *, host="n0", pid=1, dev=0, comm="0xa", ranks=4, comm_id="0xc", nodes=1):
    origin = f"{host}:{pid}:9 [{dev}] NCCL INFO"
    return (
        f"{origin} ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev {dev} busId 1 "
        f"commId {comm_id} - Init START\n"
        f"{origin} comm {comm} rank {rank} nRanks {ranks} nNodes {nodes} localRanks 4 localRank 0 MNNVL 0"
    )


@pytest.fixture
def log(read_files):
    return partial(read_files, NcclLogReader())


table = message_table


def test_ranks_of_one_file_are_never_added_up(log):
    """Four ranks log the same two calls."""
    rows = [call("AllReduce", 256, pid=p, comm=f"0xa{p}") for p in range(4) for _ in range(2)]
    assert table(log(rows)) == {("all_reduce", "float32", 1024, 4): 2.0}


def test_equal_addresses_in_different_processes_are_different_ranks(log):
    """Address and operation counter repeat from process to process."""
    rows = [call("AllReduce", 256, host=h, pid=p) for h in ("n0", "n1") for p in (1, 2)]
    assert table(log(rows)) == {("all_reduce", "float32", 1024, 4): 1.0}


def test_one_process_can_drive_several_gpus(log):
    """The device tells its ranks apart; without it their calls would add up."""
    rows = [init(d, dev=d, comm=f"0xa{d}") for d in range(4)]
    rows += [call("AllReduce", 256, dev=0, comm=f"0xa{d}") for d in range(4)]
    workload = log(rows)
    assert table(workload) == {("all_reduce", "float32", 1024, 4): 1.0}
    assert workload.provenance.ranks_read == (0, 1, 2, 3)


def test_sizes_follow_the_convention(log):
    """Per-rank counts become full buffers; send_recv keeps one message."""
    rows = [call("AllGather", 10, datatype=9), call("ReduceScatter", 10, datatype=6), call("AlltoAll", 10, datatype=8)]
    rows += [call("Broadcast", 10), call("Reduce", 10, datatype=4), call("Send", 10, datatype=10)]
    assert table(log(rows)) == {
        ("all_gather", "bfloat16", 80, 4): 1.0,
        ("reduce_scatter", "float16", 80, 4): 1.0,
        ("all_to_all", "float64", 320, 4): 1.0,
        ("broadcast", "float32", 40, 4): 1.0,
        ("reduce", "int64", 80, 4): 1.0,
        ("send_recv", "float8_e4m3", 10, 4): 1.0,
    }


def test_receives_count_only_where_nothing_is_sent(log):
    """A rank that does both is counted by its sends; one that only receives by its receives."""
    both = [call("Send", 10), call("Recv", 99), call("Recv", 10)]
    only = [call("Recv", 20, host="n1")]
    workload = log(both + only)
    assert table(workload) == {("send_recv", "float32", 80, 4): 1.0}
    assert table(log(both)) == {("send_recv", "float32", 40, 4): 1.0}
    assert any("all_to_all" in note for note in workload.provenance.notes)


def test_nodes_come_from_init_lines(log):
    """A part of the job that has ranks on two hosts spans nodes; the whole job is placed later."""
    rows = [init(r, host=f"n{r // 2}", pid=r, ranks=4, nodes=2) for r in range(4)]
    rows += [init(0, host="n0", pid=0, comm="0xb", ranks=2, comm_id="0xd", nodes=0)]
    rows += [init(1, host="n1", pid=2, comm="0xb", ranks=2, comm_id="0xd", nodes=0)]
    rows += [call("AllReduce", 1, pid=0, comm="0xb", ranks=2), call("AllReduce", 2, pid=0)]
    workload = log(rows)
    spans = {m.message.group_size: m.message.spans_nodes for m in workload.messages}
    assert spans == {2: True, 4: False}
    assert workload.provenance.world_size == 4
    assert dict(workload.provenance.detail)["nodes"] == "2"


def test_more_ranks_than_the_largest_group_leave_the_job_unknown(log):
    """Two pairs of two ranks: the job has at least four, and no line says how many."""
    workload = log([call("AllReduce", 1, pid=p, ranks=2) for p in range(4)])
    assert workload.provenance.world_size == 0
    assert any("job's size is unknown" in note for note in workload.provenance.notes)


def test_glued_hosts_are_the_same_process(log):
    """Text of another program runs into the host's name."""
    rows = [call("AllReduce", 256), "  1024   256   float  sum  -1" + call("AllReduce", 256)]
    assert table(log(rows)) == {("all_reduce", "float32", 1024, 4): 2.0}


def test_call_without_origin_joins_the_known_communicator(log):
    """Its beginning stands on another line."""
    torn = call("AllReduce", 256).split("INFO ")[1]
    workload = log([call("AllReduce", 256), torn])
    assert not any("left out" in note for note in workload.provenance.notes)
    assert table(workload) == {("all_reduce", "float32", 1024, 4): 2.0}
    assert table(log([torn, torn])) == {("all_reduce", "float32", 1024, 4): 2.0}


def test_what_makes_no_message_is_said(log):
    """Gather, empty calls, unknown datatypes, impossible sizes."""
    rows = [call("AllReduce", 1), call("Gather", 5), call("Broadcast", 0), call("Reduce", 5, datatype=99)]
    rows += [call("Reduce", 9 * 10**18)]
    notes = log(rows).provenance.notes
    assert sum(note.startswith("left out: 1 x") for note in notes) == 4
    assert any("Gather" in note for note in notes)


def test_int8_single_ranks_and_graphs_are_noted(log):
    """Each of them means something else than it seems."""
    rows = ["NCCL INFO capturing a CUDA graph", call("AllGather", 8, datatype=0), call("AllReduce", 1, ranks=1)]
    notes = " ".join(log(rows).provenance.notes)
    assert "int8" in notes
    assert "all_reduce in a group of one rank, which sends nothing" in notes
    assert "mentions CUDA graphs" in notes


def test_tuning_lines_stand_in_for_calls(log):
    """Later than 2.23 they tell one rank's part, so the group of INIT is needed for an all_gather."""
    decided = [
        "n0:1:9 [0] NCCL INFO AllGather: 100 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        "n0:1:9 [0] NCCL INFO AllReduce: 100 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}",
        "n0:1:9 [0] NCCL INFO AllReduce: 100 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}",
    ]
    workload = log([init(0), *decided])
    assert table(workload) == {("all_gather", "uint8", 400, 4): 1.0, ("all_reduce", "uint8", 100, 4): 2.0}
    assert (
        dict(workload.provenance.detail)["nccl_choices"] == "all_gather 400 B: RING/LL/4; all_reduce 100 B: TREE/LL/2"
    )
    without = log(decided)
    assert table(without) == {("all_reduce", "uint8", 100, 0): 2.0}
    assert any("one rank's part" in note for note in without.provenance.notes)
    assert "all_gather 100 B per rank: RING/LL/4" in dict(without.provenance.detail)["nccl_choices"]


def test_old_tuning_lines_tell_the_full_buffer(log):
    """NCCL 2.23: numbers instead of names, and no multiplication."""
    workload = log([init(0), "n0:1:9 [0] NCCL INFO AllGather: 400 Bytes -> Algo 1 proto 0 time 3.5"])
    assert table(workload) == {("all_gather", "uint8", 400, 4): 1.0}


def test_groups_that_cannot_be_told_apart_stay_unknown(log):
    """Rank 0 of a pair and of a four: a TUNING line may be of either."""
    rows = [init(0), init(0, comm="0xb", ranks=2, comm_id="0xd")]
    rows += ["n0:1:9 [0] NCCL INFO AllReduce: 100 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"]
    assert table(log(rows)) == {("all_reduce", "uint8", 100, 0): 1.0}


def test_calls_win_over_tuning_lines_and_keep_the_choice(log):
    """One call, shown by both, counts once; two choices for one size carry their calls."""
    rows = [call("AllReduce", 256)] * 3
    rows += ["n0:1:9 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}"] * 2
    rows += ["n0:1:9 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"]
    workload = log(rows)
    assert table(workload) == {("all_reduce", "float32", 1024, 4): 3.0}
    assert dict(workload.provenance.detail)["nccl_choices"] == "all_reduce 1 KiB: TREE/LL/2 x2, RING/LL/2 x1"


def test_log_without_messages_is_refused_with_the_reason(log):
    """And with the variables that record a better one."""
    for rows, why in [
        (["n0:1:9 [0] NCCL INFO Using network Socket"], "without COLL and TUNING lines"),
        (["n0:1:9 [0] NCCL INFO 64 Bytes -> Algo 1 proto 2 time 3.5"], "do not name the collective"),
        ([call("Gather", 7)], "Gather"),
        (["hello"], "not an NCCL debug log"),
    ]:
        with pytest.raises(TraceError, match=why) as caught:
            log(rows)
        assert "NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING" in caught.value.hint


def test_process_in_two_files_is_refused(log):
    """A copy under another name would count twice."""
    with pytest.raises(TraceError, match="in two files"):
        log([call("AllReduce", 1)], [call("AllReduce", 1)])


def test_too_many_different_calls_are_refused(log, monkeypatch):
    """Memory is bounded whatever the file holds."""
    monkeypatch.setattr(workload_builder, "MOST_KINDS", 100)
    with pytest.raises(TraceError, match="different calls"):
        log([call("AllReduce", n) for n in range(1, 102)])


def test_memory_does_not_grow_with_the_log(tmp_path):
    """20 000 equal lines of 3 MB, and a line of 8 MB without an end."""
    path = tmp_path / "long.log"
    path.write_text((call("AllReduce", 256) + "\n") * 20_000 + "x" * 8_000_000)
    tracemalloc.start()
    workload = NcclLogReader().read([path], name="long")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert table(workload) == {("all_reduce", "float32", 1024, 4): 20_000.0}
    assert peak_bytes < 2_000_000


def test_detection_prefers_the_exact_source(tmp_path):
    """A training log with Megatron's buckets and NCCL's calls is read by the calls."""
    path = tmp_path / "train.log"
    buckets = "Number of buckets for gradient all-reduce / reduce-scatter: 1\nParams for bucket 1 (9 elements):\n"
    path.write_text("NCCL version 2.27.3\n" + buckets)
    assert read_workload([path], name="x").provenance.source == "megatron_log"
    path.write_text(buckets + call("AllReduce", 9))
    workload = read_workload([path], name="x")
    assert workload.provenance.source == "nccl_log"
    assert workload.collectives == {Collective.ALL_REDUCE}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=600), st.integers(0, 200))
def test_damaged_logs_are_read_in_part_or_refused(tmp_path, noise, at):
    """Noise in the middle, unless it is digits, never makes a message of another size."""
    good = call("AllReduce", 256).encode()
    path = tmp_path / "fuzz.log"
    for garbage in (noise, noise.translate(None, b"0123456789")):
        path.write_bytes(good + b"\n" + good[:at] + garbage + good[at:] + b"\n" + garbage)
        NcclLogReader().recognises(path)
        workload = NcclLogReader().read([path], name="fuzz")
        assert ("all_reduce", "float32", 1024, 4) in table(workload)
    assert {words[1:] for words in table(workload)} == {("float32", 1024, 4)}


def test_hostile_lines_take_linear_time(tmp_path):
    """A megabyte that almost matches, again and again, is refused at once and not after minutes."""
    for piece in [b"# nThread ", b"# raph graph: 0 ", b"aA: opCount 1 sendbuff ", b"a:1:1 [", b"9"]:
        path = tmp_path / "hostile.log"
        path.write_bytes(piece * (1_000_000 // len(piece)))
        started = time.process_time()
        with pytest.raises(TraceError):
            NcclLogReader().read([path], name="hostile")
        assert time.process_time() - started < 5


def _shared_log():
    """Two nodes of two ranks in one file, longer than the piece of a line that is read at once."""
    places = [(h, p) for h in ("n0", "n1") for p in (1, 2)]
    rows = [
        row
        for rank, (h, p) in enumerate(places)
        for row in init(rank, host=h, pid=p, dev=p - 1, comm=f"0xa{p}", nodes=2).split("\n")
    ]
    for n in range(150):
        for h, p in places:
            rows += [
                call(c, 256, host=h, pid=p, dev=p - 1, comm=f"0xa{p}", op=f"{n:x}") for c in ("AllReduce", "AllGather")
            ]
    return rows


def test_a_log_without_line_feeds_reads_the_same(tmp_path):
    """Through `tr`, a terminal, or a JSON of somebody's log service."""
    rows, path = _shared_log(), tmp_path / "job.log"
    for tag in ("", "[1,0]<stdout>:"):
        found = []
        for end in ("\n", "\r\n", "\r", " ", "\t", "\\n"):
            path.write_bytes("".join(f"{tag}{row}{end}" for row in rows).encode())
            found.append(NcclLogReader().read([path], name="job"))
        assert [workload == found[0] for workload in found] == [True] * 6
        assert table(found[0]) == {("all_reduce", "float32", 1024, 4): 150.0, ("all_gather", "float32", 4096, 4): 150.0}


def test_a_log_whose_statements_run_into_each_other_is_refused(tmp_path):
    """Where one ends the host of the next begins: nothing tells `0x3` and `n0` apart."""
    path = tmp_path / "glued.log"
    path.write_text("".join(_shared_log()))
    with pytest.raises(TraceError, match="has lost its line ends") as caught:
        NcclLogReader().read([path], name="job")
    assert "NCCL_DEBUG_FILE" in caught.value.hint

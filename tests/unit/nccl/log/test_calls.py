"""Single lines of NCCL's debug log, in the forms of its versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.nccl.log.calls import (
    NOWHERE,
    LineOrigin,
    coll_lines,
    comm_line,
    library_version,
    mentions_graphs,
    tuning_lines,
)

CALL = (
    "AllReduce: opCount 1f sendbuff 0x7f01 recvbuff (nil) count 77 datatype 7 op 0 root 0 comm 0xa1 [nranks=8] "
    "stream 0x2"
)


def test_origin_is_the_last_one_before_the_call(subtests):
    """Launchers, time stamps, quote marks and a torn line in front of it."""
    for before, origin in [
        ("gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("5: gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("(Worker pid=77, ip=10.0.0.1) gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("[1,0]<stdout>:gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("[2026-01-02 03:04:05] gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("gpu1:77:78 [3] 1700000000123456 NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("> gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("gpu9:1:1 [0] NCCL INFO gpu1:77:78 [3] NCCL INFO ", LineOrigin("gpu1", "77", "3")),
        ("[7] NCCL INFO ", NOWHERE),
        ("", NOWHERE),
    ]:
        with subtests.test(before=before, origin=origin):
            (call,) = coll_lines(before + CALL)
            assert call.origin == origin
            assert (call.operation, call.elements, call.datatype, call.comm, call.ranks) == (
                "AllReduce",
                "77",
                "7",
                "0xa1",
                "8",
            )


def test_rccl_adds_words():
    """`acc` before the count, a task behind the stream."""
    line = CALL.replace(" count", " acc (nil) count") + " task 0 globalrank 0"
    assert [call.elements for call in coll_lines(line)] == ["77"]


def test_two_calls_on_one_line_keep_their_origins():
    """Without a line end between them."""
    line = "a:1:1 [0] NCCL INFO " + CALL + "b:2:2 [1] NCCL INFO " + CALL
    assert [call.origin.host for call in coll_lines(line)] == ["a", "0x2b"]


@pytest.mark.parametrize("cut", [10, 60, len(CALL) - 25])
def test_cut_calls_are_not_guessed(cut):
    """A count may be cut in the middle of its digits, so nothing of the line is used."""
    assert list(coll_lines(CALL[:cut])) == []


def test_impossible_counts_are_no_calls(subtests):
    """Negative, not whole, or longer than 64 bits."""
    for text in ["count -77", "count 7e3", "count 0x77", "count nan", "count " + "9" * 30]:
        with subtests.test(text=text):
            assert list(coll_lines(CALL.replace("count 77", text))) == []


def test_tuning_lines_of_every_form(subtests):
    """NCCL 2.20 to 2.32."""
    for line, operation, size, choice, full in [
        ("2048 Bytes -> Algo 1 proto 2 time 12.5", "", "2048", "RING/SIMPLE", True),
        ("AllGather: 2048 Bytes -> Algo 0 proto 1 time 12.5", "AllGather", "2048", "TREE/LL128", True),
        (
            "AllReduce: 2048 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={4..11}",
            "AllReduce",
            "2048",
            "NVLS_TREE/SIMPLE/8",
            False,
        ),
        (
            "AllReduce: 2048 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4",
            "AllReduce",
            "2048",
            "RING/LL/1",
            False,
        ),
        (
            "AllGather [Symmetric]: 2048 Bytes -> Kernel AllGather_LLMC nchannels 8 nthreads 512 nWorks 1",
            "AllGather",
            "2048",
            "AllGather_LLMC/8",
            False,
        ),
        ("AlltoAll [Copy Engine]: 2048 Bytes -> cudaMemcpy; CE sync", "AlltoAll", "2048", "Copy Engine", False),
        ("AllGather [Hierarchical CE]: 2048 Bytes -> RMA proxy + CE", "AllGather", "2048", "Hierarchical CE", False),
        ("Broadcast: 9 Bytes -> Algo 42 proto 9 time 1.0", "Broadcast", "9", "42/9", True),
    ]:
        with subtests.test(line=line, operation=operation, size=size, choice=choice, full=full):
            (decision,) = tuning_lines("gpu1:7:8 [2] NCCL INFO " + line)
            assert decision == (LineOrigin("gpu1", "7", "2"), operation, size, choice, full)


def test_init_lines_of_every_form():
    """The two lines of one communicator tell different parts."""
    start = "n:1:2 [0] NCCL INFO ncclCommInitRankConfig comm 0xa rank 3 nranks 8 cudaDev 1 nvmlDev 1 busId 44000 "
    start += "commId 0xbe - Init START"
    nodes = "n:1:2 [0] NCCL INFO comm 0xa rank 3 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0"
    first, second = comm_line(start), comm_line(nodes)
    assert (first.rank, first.ranks, first.device, first.comm_id, first.nodes) == (3, "8", "1", "0xbe", 0)
    assert (second.rank, second.ranks, second.device, second.comm_id, second.nodes) == (3, "8", "", "", 2)
    assert comm_line("n:1:2 [0] NCCL INFO Ring 00 : 0 -> 1 rank 3") is None


def test_versions_and_graphs():
    """Both libraries, with and without a colon."""
    assert library_version("NCCL INFO NCCL version 2.29.7+cuda12.9") == "2.29.7+cuda12.9"
    assert library_version("RCCL version : 2.22.3-develop:abc") == "RCCL 2.22.3-develop"
    assert library_version("NCCL version unknown") == ""
    assert mentions_graphs("NCCL INFO CUDA Graph capture")
    assert mentions_graphs("# nThread 1 graph: 1 unalign: 0")
    assert not mentions_graphs("# nThread 1 graph: 0 unalign: 0")
    assert not mentions_graphs("NCCL INFO GRAPH/Topo paragraph")


@given(st.binary(max_size=400).map(lambda noise: noise.decode(errors="replace")), st.integers(0, len(CALL)))
def test_any_bytes_are_survived(noise, at):
    """Noise before, inside and behind a call: at most that call is found, and never another size."""
    noise_without_digits = noise.translate(dict.fromkeys(map(ord, "0123456789")))
    whole, torn = (noise_without_digits + CALL + noise_without_digits, CALL[:at] + noise_without_digits + CALL[at:])
    sizes = [[(call.elements, call.datatype, call.ranks) for call in coll_lines(line)] for line in (whole, torn)]
    assert sizes[0] == [("77", "7", "8")]
    assert sizes[1] in ([], sizes[0])
    for line in (noise + CALL + noise, CALL[:at] + noise + CALL[at:]):
        assert len(list(coll_lines(line))) <= 2
        list(tuning_lines(line))
        comm_line(line)
        library_version(line)

"""NCCL's log, in the forms of its versions and of what stands between it and a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_log import read_log

from ncclt.errors import InputError
from ncclt.nccl.log import startup

INIT = (
    "ncclCommInitRankConfig comm {comm} rank {rank} nranks {ranks} cudaDev {dev} nvmlDev {dev} busId {bus} commId {id} "
    "- Init {state}"
)


def _init(rank, *, state="START", ranks=2, dev=0, comm="0xa", id="0xc0", bus="18000"):
    return INIT.format(comm=comm, rank=rank, ranks=ranks, dev=dev, bus=bus, id=id, state=state)


def test_prefixes(subtests):
    """Whatever launchers and versions put before a sentence, its process is found."""
    for prefix in [
        "node7:12:34 [3] ",
        "[1,0]<stdout>:node7:12:34 [3] ",
        "3: node7:12:34 [3] ",
        "(RayTrainWorker pid=12, ip=10.0.0.7) node7:12:34 [3] ",
        "[2025-10-23 10:26:31] node7:12:34 [3] ",
        "node7:12:34 [3] 1558545003174220 ",
        "[2025-10-23 10:26:31] node7:12:34 [3] graph/search.cc:1127 (ncclTopoCompute) ",
        "-1node7:12:34 [3] ",
    ]:
        with subtests.test(prefix=prefix):
            facts = read_log("node7:12:34 [3] NCCL INFO Bootstrap: Using eth0", f"{prefix}NCCL INFO Using network IB")

            (process,) = facts.processes
            assert (process.host, process.pid, process.network.value) == ("node7", 12, "IB")


def test_what_a_process_tells():
    facts = read_log(
        "a:1:1 [0] NCCL INFO cudaDriverVersion 12080",
        "a:1:1 [0] NCCL INFO NCCL version 2.26.5+cuda12.9",
        "a:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5",
        "a:1:2 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.",
        "a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]bnxt_re0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "a:1:2 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)",
        "a:1:2 [0] NCCL INFO TUNER/Plugin: Using tuner plugin ncclt",
        "a:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 0",
        "a:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "a:1:2 [0] NCCL INFO Topology detection : could not read /sys/x/max_link_speed, ignoring",
        "a:1:2 [0] NCCL INFO CPU/0-0 (1/2/-1)",
        "a:1:2 [0] NCCL INFO  + NET[25.0] - NET/0 (b8/1/25.000000)",
    )

    (process,) = facts.processes
    assert (process.version.value, process.driver, process.provider.value) == ("2.26.5", "12080", "efa")
    assert {name: said.value for name, said in process.variables.items()} == {
        "NCCL_IB_HCA": "mlx5",
        "NCCL_BUFFSIZE": "8388608",
    }
    assert process.adapters == {"mlx5_0": "RoCE", "bnxt_re0": "RoCE"}
    assert [said.value for said in process.plugins.values()] == ["TUNER/Plugin: Using tuner plugin ncclt"]
    assert [available for available, _ in facts.multicast] == [False]
    assert [enabled for enabled, _ in facts.gpudirect] == [False]
    assert (len(facts.unreadable), facts.cpu, facts.net_gbps) == (1, "amd", 25.0)
    assert str(process.version.evidence) == "job.log:2: a:1:1 [0] NCCL INFO NCCL version 2.26.5+cuda12.9"


def test_variables_that_were_set_for_the_log_are_not_of_the_job():
    facts = read_log(
        "a:1:1 [0] NCCL INFO NCCL_RUNTIME_CONNECT set by environment to 0.", ignored=frozenset({"NCCL_RUNTIME_CONNECT"})
    )

    assert facts.processes[0].variables == {}


def test_ranks_of_one_process_are_told_apart_by_their_threads():
    """all_reduce_perf -g 2 starts its ranks in threads; others connect them, when they are first needed."""
    facts = read_log(
        f"a:1:10 [0] NCCL INFO {_init(0)}",
        f"a:1:11 [1] NCCL INFO {_init(1, dev=1, comm='0xb', bus='29000')}",
        "a:1:11 [1] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 8 p2p channels per peer",
        "a:1:10 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per peer",
        "a:1:99 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer",
        "a:1:99 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/direct pointer",
        f"a:1:10 [0] NCCL INFO {_init(0, state='COMPLETE')}",
    )

    zero, one = facts.starts
    assert (zero.rank, zero.nvml_device, zero.channels["coll"], zero.complete) == (0, 0, 2, True)
    assert (one.rank, one.bus_id, one.channels["p2p"], one.complete) == (1, "29000", 8, False)
    assert [(c.kind, c.channels) for c in one.connections] == [("P2P/direct pointer", {0, 1})]


def test_a_thread_starts_one_communicator_after_the_other():
    facts = read_log(
        f"a:1:10 [0] NCCL INFO {_init(0, ranks=8, id='0x1')}",
        f"a:1:10 [0] NCCL INFO {_init(0, ranks=8, id='0x1', state='COMPLETE')}",
        f"a:1:10 [0] NCCL INFO {_init(3, ranks=4, id='0x2')}",
        "a:1:10 [0] NCCL INFO 1 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    )

    assert [(s.ranks, s.comm_id, s.complete, s.channels.get("coll")) for s in facts.starts] == [
        (8, "0x1", True, None),
        (4, "0x2", False, 1),
    ]


def test_transports(subtests):
    """The forms of 2.4 to 2.32."""
    for line, kind, words in [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM", ("0", "1")),
        ("Channel 00 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA", "NET/IB/GDRDMA", ("c7000", "87000")),
        ("Channel 01/0 : 15[7] -> 6[6] [send] via NET/Socket/3", "NET/Socket", ("7", "6")),
        ("Channel 00/1 : 0[41000] -> 3[81000] [receive] via NET/IB/1/Shared", "NET/IB", ("41000", "81000")),
        ("Ring 00 : 7 -> 8 [receive] via NET/AWS Libfabric/0", "NET/AWS Libfabric", ("", "")),
        ("Channel 00 : 1[89000] -> 0[3d000] via direct shared memory", "SHM", ("89000", "3d000")),
        ("Channel 02 : 3[3] -> 2[2] via SHM/direct/direct", "SHM", ("3", "2")),
    ]:
        with subtests.test(line=line, kind=kind, words=words):
            (start,) = read_log(f"a:1:1 [0] NCCL INFO {line}").starts

            (connection,) = start.connections
            assert connection.kind == kind
            assert (connection.source[1], connection.target[1]) == words


# Rows of real tables are wider than our lines.
# ruff: noqa: E501
NEW_TABLE = (
    "  Algorithm   |   Tree   |   Ring   |",
    "  Protocol    |  LL | LL128 | Simple | LL | LL128 | Simple |",
    " Max NThreads | 512 | 640 | 512 | 512 | 640 | 512 |",
    "    AllGather |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     7.2/ 282.0 |    15.9/ 662.4 |    11.8/ 720.0 |",
    "  Algorithm   |   NVLS   |",
    "    AllGather |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |",
)
OLD_TABLE = (
    "   Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |",
    "       AllGather |    0.0/    0.0 |    0.0/    0.0 |    0.0/    0.0 |    4.8/    0.0 |    8.6/    0.0 |    9.2/    0.0 |",
)


@pytest.mark.parametrize(("table", "disabled"), [(NEW_TABLE, ["NVLS"]), (OLD_TABLE, ["Ring"])], ids=["2.23", "before"])
def test_algorithms_that_the_cost_table_rules_out(table, disabled):
    """Of those that NCCL has for the collective; a second rank's table is not taken for a second one."""
    lines = [f"a:1:1 [0] NCCL INFO {text}" for text in (*table, *table)]

    facts = read_log(*lines)
    assert facts.disabled() == {"AllGather": disabled}
    assert len(facts.cost_table) == 1


def test_processes_that_share_a_communicator_are_one_job():
    facts = read_log(
        f"a:1:1 [0] NCCL INFO {_init(0)}",
        f"b:2:1 [0] NCCL INFO {_init(1)}",
        f"b:2:1 [0] NCCL INFO {_init(0, id='0xd0')}",
        f"c:3:1 [0] NCCL INFO {_init(1, id='0xd0')}",
        f"x:9:1 [0] NCCL INFO {_init(0, id='0xe0')}",
    )

    assert facts.jobs == ((("a", 1), ("b", 2), ("c", 3)),)


def test_unnamed_communicators_are_one_job_unless_a_rank_occurs_twice():
    """Before 2.17 the log has no commId."""
    line = "{h}:{p}:1 [0] NCCL INFO comm 0x7f rank {r} nranks 2 cudaDev 0 busId 18000 - Init COMPLETE"
    one = [line.format(h="a", p=1, r=0), line.format(h="b", p=2, r=1)]

    assert read_log(*one).jobs == ((("a", 1), ("b", 2)),)
    assert read_log(*one, line.format(h="c", p=3, r=0)).jobs == ()


def test_headers_of_nccl_tests_name_models_and_version():
    facts = read_log(
        "# nccl-tests version 2.18.3 nccl-headers=22902 nccl-library=22902",
        "#  Rank  0 Group  0 Pid   1343 on 38dcf168f605 device  0 [0000:41:00] NVIDIA H100 80GB HBM3",
    )

    assert facts.gpu_models == ("NVIDIA H100 80GB HBM3",)
    assert facts.announced.value == "22902"


def test_lines_without_end_and_endless_ranks(monkeypatch):
    """A damaged file costs neither memory nor time."""
    assert read_log("NCCL INFO " + "a:1:1 [0] NCCL INFO x " * 100_000).lines == 0
    monkeypatch.setattr(startup, "_MOST_STARTS", 3)
    with pytest.raises(InputError, match="starts of ranks"):
        read_log(*(f"h{n}:1:1 [0] NCCL INFO 1 coll channels" for n in range(5)))


_PIECES = [
    "a:1:2 [0] ",
    "NCCL INFO ",
    "NCCL WARN ",
    "Channel 00/0 : 0[0] -> 1[1] via ",
    "Pattern 4, crossNic 0, nChannels 1, bw ",
    "1.2.3/4.5, type NVL/PIX",
    " AllReduce | 1/2 | ",
    "  Algorithm | Tree |",
    "comm 0x1 rank 0 nranks 2 cudaDev 0 - Init START",
    "3 coll channels",
    "NCCL_ALGO set by environment to ",
    "NET[..] - NET/",
    "CPU/0 (9/9/9)",
    "\x00",
    "é",
    "[",
    ":",
]


@given(st.lists(st.lists(st.sampled_from(_PIECES), max_size=8).map("".join), max_size=20))
def test_any_text_is_read(lines):
    """A log may be cut, glued and garbled anywhere: that costs facts, never the reading."""
    facts = read_log(*lines)

    assert facts.lines >= 0
    assert facts.transports() is not None
    assert facts.disabled() is not None


def test_the_p2p_chunk_of_each_communicator_is_read_with_its_nodes():
    """A communicator of one rank, which nothing is sent in, does not count."""
    lines = []
    for tid, ranks, nodes, chunk in ((2, 16, 2, 1048576), (3, 8, 1, 524288), (4, 1, 1, 131072), (5, 8, None, 131072)):
        prefix = f"a:1:{tid} [0] NCCL INFO "
        comm = f"0x{tid}"
        lines.append(prefix + _init(0, ranks=ranks, comm=comm, id=comm))
        if nodes:
            lines.append(f"{prefix}comm {comm} rank 0 nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0 MNNVL 0")
        lines += [f"{prefix}P2P Chunksize set to {chunk}", prefix + _init(0, state="COMPLETE", ranks=ranks, comm=comm)]

    assert read_log(*lines).p2p_chunks == ((0, 131072), (1, 524288), (2, 1048576))

"""NCCL's table of latencies and bandwidths in logs of every age and shape."""

import random
import re
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.errors import InputError
from ncclt.health.doctor.files import read_printed_costs_file
from ncclt.nccl.cost_model.model import predict_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.nccl.log.startup import read_printed_costs
from ncclt.store.shipped import profiles_folder, shipped_clusters

SHIPPED = shipped_clusters(profiles_folder())
HEAD = "  Algorithm   |  Tree  |  Ring  |"
ROW = "    AllReduce |     8.0/  61.1 |    16.5/   0.0 |    16.4/ 232.2 |     7.8/ 141.0 |    17.8/ 331.2 |    15.2/ 360.0 |"  # noqa: E501
MORE = ("  Algorithm   |  NVLS  |", "    AllReduce |     0.0/   0.0 |     0.0/   0.0 |    25.0/ 102.0 |")
OLD = (
    "   Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |",  # noqa: E501
    "       AllReduce |    6.8/   10.0 |   14.0/    0.0 |    8.4/   20.0 |    4.8/   30.0 |    8.6/    0.0 |    9.2/   40.0 |",  # noqa: E501
)


def start(rank, ranks, state="START", comm_id="0xc1"):
    return f"ncclCommInitRank comm 0x7f rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1 commId {comm_id} - Init {state}"  # noqa: E501


def shape(ranks, nodes):
    return f"comm 0x7f rank 0 nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0"


def read(*texts, host="a", tid=1):
    return read_printed_costs([f"{host}:1:{tid} [0] NCCL INFO {text}\n" for text in texts], "log")


def test_a_table_is_read_with_the_job_that_it_is_of():
    costs = read(
        "NCCL version 2.29.2+cuda13.1",
        start(0, 16),
        shape(16, 2),
        HEAD,
        ROW,
        *MORE,
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels",
        "24 coll channels, 32 p2p channels per peer",
    )

    (table,) = costs.tables
    assert (costs.version, table.ranks, table.nodes, table.channels, table.nvls_channels) == ("2.29.2", 16, 2, 24, 16)
    # What NCCL has ruled out is left out.
    assert table.costs == (
        (Collective.ALL_REDUCE, Algorithm.TREE, Protocol.LL, 8.0, 61.1),
        (Collective.ALL_REDUCE, Algorithm.TREE, Protocol.SIMPLE, 16.4, 232.2),
        (Collective.ALL_REDUCE, Algorithm.RING, Protocol.LL, 7.8, 141.0),
        (Collective.ALL_REDUCE, Algorithm.RING, Protocol.LL128, 17.8, 331.2),
        (Collective.ALL_REDUCE, Algorithm.RING, Protocol.SIMPLE, 15.2, 360.0),
        (Collective.ALL_REDUCE, Algorithm.NVLS, Protocol.SIMPLE, 25.0, 102.0),
    )


def test_the_form_before_2_23_is_read():
    (table,) = read(shape(4, 1), *OLD).tables

    assert [cost.gbps for cost in table.costs] == [10.0, 20.0, 30.0, 40.0]


def test_each_communicator_has_its_own():
    """One after another on a thread, and at the same time on others; of equal ones the first counts."""
    small = ROW.replace("61.1", "11.1")
    costs = read(
        start(0, 8),
        shape(8, 1),
        HEAD,
        ROW,
        start(0, 8, "COMPLETE"),
        start(0, 2, comm_id="0xc2"),
        shape(2, 1),
        HEAD,
        small,
        start(0, 2, "COMPLETE", "0xc2"),
        start(0, 2, comm_id="0xc3"),
        shape(2, 1),
        HEAD,
        ROW,
        start(0, 2, "COMPLETE", "0xc3"),
    )

    assert [(t.ranks, t.nodes, t.costs[0].gbps) for t in costs.tables] == [(8, 1, 61.1), (2, 1, 11.1)]


def test_where_nobody_tells_the_nodes_the_hosts_of_all_ranks_count():
    def log(*hosts):
        lines = [f"{h}:1:1 [0] NCCL INFO {start(rank, 2, 'COMPLETE')}\n" for rank, h in enumerate(hosts)]
        table = [f"a:1:1 [0] NCCL INFO {text}\n" for text in (HEAD, ROW)]
        return read_printed_costs([*table, *lines], "log").tables

    assert [(t.ranks, t.nodes) for t in log("a", "b")] == [(2, 2)]
    with pytest.raises(InputError, match="of how many ranks and nodes"):
        log("a")  # rank 1 may be anywhere


def test_a_log_that_cannot_be_used_says_what_to_set(subtests):
    for texts, said in [
        (["NCCL version 2.29.2", start(0, 2), shape(2, 1)], "log holds no table"),
        ([HEAD, ROW], "of how many ranks and nodes"),
        (["NCCL_ALGO set by environment to Ring.", shape(2, 1), HEAD, ROW], "forced NCCL_ALGO=Ring,"),
        ([], "holds no table"),
    ]:
        with subtests.test(texts=texts, said=said):
            with pytest.raises(InputError, match=said) as caught:
                read(*texts)
            assert "NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING" in caught.value.hint or "without NCCL_ALGO" in caught.value.hint


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_printed_costs_file(tmp_path / "none.log")


LINES = [f"a:1:1 [0] NCCL INFO {t}\n" for t in (start(0, 16), shape(16, 2), HEAD, ROW, *MORE, start(0, 16, "COMPLETE"))]


@given(st.randoms(use_true_random=False))
def test_a_garbled_log_costs_the_table_and_never_the_reading(chance: random.Random):
    """Cut, glued, doubled and spoilt lines."""
    lines = chance.choices(LINES, k=12)
    text = list("".join(lines))
    for _ in range(chance.randrange(40)):
        text[chance.randrange(len(text))] = chance.choice(string.printable)
    try:
        costs = read_printed_costs("".join(text).splitlines(keepends=True), "log")
    except InputError:
        return
    assert all(cost.gbps > 0 for table in costs.tables for cost in table.costs)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("log", "before", "cluster", "calls"),
    [
        (
            "wayne_tuning_2.29.2_g2_auto.log",
            "",
            SHIPPED["dgx-h100"].sized(gpus_per_node=2, nccl_version="2.29.2"),
            6,
        ),
        (
            # Published without the lines of its start: two ranks that took each other for two nodes.
            "eunomia_tuning_2.29.7.log",
            f"lab:3038984:3038984 [0] NCCL INFO {shape(2, 2)}\n",
            replace(SHIPPED["aws-p4d"], nodes=2, gpus_per_node=1, compute_capability=120, nccl_version="2.29.7"),
            18,
        ),
    ],
    ids=["2 x H100", "2 sockets"],
)
def test_real_tables_tell_what_nccl_chose_in_the_same_log(log, before, cluster, calls, shared_data):
    """NCCL's line of each call names the pair that it took."""
    text = (shared_data / "traces/nccl_log" / log).read_text()
    costs = read_printed_costs([before, *text.splitlines(keepends=True)], log)
    costs.require(cluster)
    pattern = r"(Broadcast|AllReduce|AllGather|ReduceScatter): (\d+) Bytes -> Algo (\w+) proto (\w+)"
    chosen = {(name, int(size)): (a.lower(), p.lower()) for name, size, a, p in re.findall(pattern, text)}
    words = {"Broadcast": "broadcast", "AllReduce": "all_reduce", "AllGather": "all_gather"}
    words |= {"ReduceScatter": "reduce_scatter"}

    assert len(chosen) == calls
    for (name, size), pair in chosen.items():
        # The line counts the bytes of one rank, the tuner those of all.
        full = size * (cluster.world_size if name in ("AllGather", "ReduceScatter") else 1)
        found = predict_choice(costs.tables[0], Collective(words[name]), full, build_topology(cluster))
        assert (found.algorithm, found.protocol) == pair, (name, size)

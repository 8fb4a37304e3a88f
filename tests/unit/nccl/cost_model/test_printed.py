"""NCCL's own cost table: the last step to a time, and which job it is of."""

import json

import pytest

from ncclt.core.algorithms import Algorithm, Protocol, available_algorithms, available_protocols
from ncclt.core.message import Collective, Message
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.model import find_table, nccl_choice, predict_choice, predicted_us
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.store.shipped import profiles_folder, shipped_clusters

AR = Collective.ALL_REDUCE
PAIR = shipped_clusters(profiles_folder())["dgx-a100"].sized(nodes=2, nccl_version="2.27.3")
TABLE = PrintedTable(
    ranks=16,
    nodes=2,
    channels=24,
    costs=(
        PrintedCost(AR, Algorithm.TREE, Protocol.LL, 20.0, 50.0),
        PrintedCost(AR, Algorithm.RING, Protocol.LL, 40.0, 40.0),
        PrintedCost(AR, Algorithm.RING, Protocol.SIMPLE, 100.0, 200.0),
    ),
)
COSTS = PrintedCosts(version="2.27.3", tables=(TABLE,))


def picked(size_bytes, **forced):
    return predict_choice(TABLE, AR, size_bytes, build_topology(PAIR), **forced)


def test_the_cheapest_pair_is_taken_by_hand():
    """Latency + bytes / bandwidth; trees are corrected, the ring's latency grows by 1.4 where its plateau begins."""
    assert picked(64) == (Algorithm.TREE, Protocol.LL, pytest.approx(20 + 64 / 50e3))
    assert picked(1 << 30) == (Algorithm.RING, Protocol.SIMPLE, pytest.approx(140 + (1 << 30) / 200e3))
    assert picked(1 << 14, algorithm=Algorithm.TREE).time_us == pytest.approx(20 + (1 << 14) / (0.7 * 50e3))
    assert picked(24 * 16 * 64, protocol=Protocol.SIMPLE).time_us == pytest.approx(140 + 24 * 16 * 64 / 200e3)
    assert picked(24 * 16 * 64 - 1, protocol=Protocol.SIMPLE).time_us == pytest.approx(100 + 24 * 16 * 64 / 200e3)


def test_what_is_not_in_the_table_has_no_time():
    assert picked(64, algorithm=Algorithm.NVLS) is None
    assert picked(64, protocol=Protocol.LL128) is None
    assert TABLE.rules_out(AR, Algorithm.NVLS)
    assert TABLE.rules_out(Collective.BROADCAST, Algorithm.RING)
    assert not TABLE.rules_out(AR, Algorithm.RING)


def test_a_table_that_says_what_we_estimate_predicts_what_we_predict():
    """The two ways differ in nothing but where latency and bandwidth come from."""
    graph = build_topology(PAIR)
    costs = []
    for algorithm in available_algorithms(AR, graph.cluster):
        for protocol in available_protocols(AR, algorithm, graph.cluster):
            # Two sizes without any correction give the line through them.
            small, large = (predicted_us(AR, algorithm, protocol, s, graph) for s in (64, 128))
            gbps = 64 / (large - small) / 1e3
            correction = {Protocol.SIMPLE: 0.9}.get(protocol, 1.0) if algorithm is Algorithm.TREE else 1.0
            costs.append(PrintedCost(AR, algorithm, protocol, small - 64 / gbps / 1e3, gbps / correction))
    table = PrintedTable(ranks=16, nodes=2, channels=graph.channels, costs=tuple(costs))

    for size in (1 << e for e in range(6, 33)):
        found, choice = predict_choice(table, AR, size, graph), nccl_choice(AR, size, graph)
        assert (found.algorithm, found.protocol) == (choice.algorithm, choice.protocol)
        assert found.time_us == pytest.approx(choice.time_us, rel=1e-6)


def test_each_group_has_the_table_of_its_own_communicator():
    inside = PrintedTable(ranks=8, nodes=1, costs=TABLE.costs)
    costs = PrintedCosts(tables=(TABLE, inside))

    def found(group_size, spans_nodes):
        return find_table(
            costs,
            Message(collective=AR, dtype="float32", size_bytes=64, group_size=group_size, spans_nodes=spans_nodes),
            PAIR,
        )

    assert found(16, True) is TABLE
    assert found(8, False) is inside
    assert found(2, True) is None


def test_tables_of_another_job_are_refused_with_both_shapes():
    COSTS.require(PAIR)
    with pytest.raises(
        UsageError, match="the log has the cost tables of 16 ranks on 2 nodes, not of 8 ranks on 1 node"
    ):
        COSTS.require(PAIR.sized(nodes=1))


def test_another_version_is_told():
    assert "tuning NCCL" not in COSTS.note(PAIR)
    assert "printed by NCCL 2.27.3 (tuning NCCL 2.28.9)" in COSTS.note(PAIR.sized(nccl_version="2.28.9"))


def test_a_document_comes_back_as_it_was():
    assert PrintedCosts.from_document(json.loads(json.dumps(COSTS.to_document()))) == COSTS

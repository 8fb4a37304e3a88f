"""NCCL's cost model: known choices of real machines, and its shape everywhere."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol, available_algorithms, available_protocols
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.model import nccl_choice, predicted_us
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.store.shipped import profiles_folder, shipped_clusters

AR = Collective.ALL_REDUCE
TUNABLE = [c for c in Collective if c.is_tunable]

SHIPPED = shipped_clusters(profiles_folder())
DGX_A100, DGX_H100 = (SHIPPED[name].sized(nodes=2, nccl_version="2.28.9") for name in ("dgx-a100", "dgx-h100"))
L40S = Cluster(
    name="l", gpus_per_node=2, gpu="L40S", compute_capability=89, link_class="shm", link_gbps=32.0, cpu="amd",
    nccl_version="2.29.2",
)  # fmt: skip
TCP = Cluster(
    name="t", nodes=4, gpus_per_node=1, gpu="T4", compute_capability=75, link_class="pcie", link_gbps=16.0,
    fabric="ethernet", nics_per_node=1, nic_gbps=1.25, nccl_version="2.19.3",
)  # fmt: skip
CLUSTERS = [DGX_A100, DGX_H100, DGX_A100.sized(nodes=1), DGX_H100.sized(nodes=1), L40S, TCP]


def test_the_graph_of_a_dgx_a100_has_12_channels_of_20_gbps_doubled_to_24():
    graph = build_topology(DGX_A100.sized(nodes=1))
    assert (graph.graph_channels, graph.ring_gbps, graph.channels) == (12, 20.0, 24)


def test_the_graph_of_two_dgx_h100_is_bound_by_its_ports_and_runs_16_channels():
    graph = build_topology(DGX_H100)
    assert graph.channels == 16
    assert graph.ring_gbps * graph.graph_channels <= 8 * 50.0


def test_a_tree_over_two_nodes_may_use_twice_the_bandwidth_of_a_ring_and_over_four_not():
    slow = replace(DGX_A100, nodes=4, gpus_per_node=4, link_class="nvlink", nics_per_node=4, nic_gbps=12.5)
    two, four = build_topology(slow.sized(nodes=2)), build_topology(slow)
    assert two.tree_gbps == 2 * two.ring_gbps
    assert four.tree_gbps == four.ring_gbps


def test_nvls_is_chosen_for_large_messages_on_6_and_8_gpus_of_an_h100_node_as_recorded(subtests):
    """waynehacking8/nccl-collectives-bench: the default equals the forced ring on 2 and 4, the forced NVLS on 6."""
    for gpus, algorithm in [(2, "ring"), (4, "ring"), (6, "nvls"), (8, "nvls")]:
        with subtests.test(gpus=gpus, algorithm=algorithm):
            node = DGX_H100.sized(nodes=1, gpus_per_node=gpus)
            choice = nccl_choice(AR, 1 << 28, build_topology(node))
            assert choice is not None
            assert choice.algorithm == algorithm


def test_two_l40s_move_from_ll_to_simple_where_they_were_recorded_to(subtests):
    """CS244C data: NCCL_PROTO unset follows LL up to 128 KiB and Simple from 256 KiB; LL128 is off over PCIe."""
    for size, protocol in [(8, "ll"), (65536, "ll"), (524288, "simple"), (1 << 27, "simple")]:
        with subtests.test(size=size, protocol=protocol):
            choice = nccl_choice(AR, size, build_topology(L40S))
            assert choice is not None
            assert (choice.algorithm, choice.protocol) == ("ring", protocol)


def test_latencies_by_hand():
    """Ring LL on 8 GPUs: 6.6 + 14 x 0.6; tree LL on 2 x 8: 6.8 + 2 (7 x 0.6 + 5) µs."""
    ring = predicted_us(AR, Algorithm.RING, Protocol.LL, 8, build_topology(DGX_A100.sized(nodes=1)))
    tree = predicted_us(AR, Algorithm.TREE, Protocol.LL, 8, build_topology(DGX_A100))
    assert ring == pytest.approx(6.6 + 14 * 0.6, abs=0.01)
    assert tree == pytest.approx(6.8 + 2 * (7 * 0.6 + 5.0), abs=0.01)


def test_what_nccl_does_not_offer_is_not_chosen():
    graph = build_topology(DGX_A100)
    assert nccl_choice(Collective.ALL_TO_ALL, 1024, graph) is None
    assert nccl_choice(Collective.BROADCAST, 1024, graph, algorithm=Algorithm.TREE) is None
    assert nccl_choice(AR, 1024, graph, algorithm=Algorithm.NVLS) is None


def test_a_forced_ll128_is_taken_even_where_it_is_not_automatic():
    choice = nccl_choice(AR, 1024, build_topology(L40S), protocol=Protocol.LL128)
    assert choice is not None
    assert choice.protocol is Protocol.LL128


def test_forced_threads_are_clamped_as_nccl_does():
    def threads(value: int) -> int:
        graph = build_topology(DGX_A100.sized(nodes=1))
        choice = nccl_choice(AR, 1 << 26, graph, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, max_threads=value)
        assert choice is not None
        return choice.threads - 32  # one warp more for the fence of Simple

    assert [threads(v) for v in (256, 100, 4096, 32)] == [256, 512, 512, 64]


def test_groups_lie_evenly_over_their_nodes(subtests):
    for size, spans, shape in [
        (0, False, (2, 8)),
        (16, False, (2, 8)),
        (8, False, (1, 8)),
        (2, True, (2, 1)),
        (4, True, (2, 2)),
        (2, False, (1, 2)),
    ]:
        with subtests.test(size=size, spans=spans, shape=shape):
            graph = build_topology(DGX_A100, size, spans)
            assert (graph.nodes, graph.per_node) == shape


def test_a_group_larger_than_the_cluster_is_refused():
    with pytest.raises(UsageError, match="does not fit") as caught:
        build_topology(DGX_A100, 17)
    assert caught.value.hint


@given(cluster=st.sampled_from(CLUSTERS), collective=st.sampled_from(TUNABLE), size=st.integers(1, 1 << 34))
def test_the_choice_is_the_cheapest_pair_everywhere(cluster, collective, size):
    graph = build_topology(cluster)
    choice = nccl_choice(collective, size, graph)
    offered = [
        predicted_us(collective, a, p, size, graph)
        for a in available_algorithms(collective, cluster)
        for p in available_protocols(collective, a, cluster)
    ]
    assert choice is not None
    assert all(t is not None and math.isfinite(t) and t > 0 for t in offered)
    assert choice.time_us == min(t for t in offered if t is not None)
    assert 1 <= choice.channels <= 64
    assert 64 <= choice.threads <= 640


def test_two_ends_have_the_table_that_nccl_logged():
    """2 H100 (NCCL 2.29.2) and 2 x 1 over TCP (2.29.7): tree, PAT and broadcast as their jobs printed them."""
    from ncclt.nccl.cost_model.model import _latency_and_bandwidth

    pair = DGX_H100.sized(nodes=1, gpus_per_node=2, nccl_version="2.29.2")
    nodes = Cluster(
        name="nodes", nodes=2, gpus_per_node=1, gpu="RTX-5090", compute_capability=120, link_class="pcie",
        link_gbps=64.0, fabric="ethernet", nics_per_node=1, nic_gbps=2.4, nccl_version="2.29.7",
    )  # fmt: skip
    for cluster, collective, algorithm, protocol, logged in (
        (pair, Collective.ALL_REDUCE, Algorithm.TREE, Protocol.LL, (8.0, 61.1)),
        (pair, Collective.ALL_REDUCE, Algorithm.TREE, Protocol.LL128, (16.5, 180.6)),
        (pair, Collective.ALL_REDUCE, Algorithm.TREE, Protocol.SIMPLE, (16.4, 232.2)),
        (nodes, Collective.ALL_REDUCE, Algorithm.TREE, Protocol.SIMPLE, (36.4, 1.9)),
        (nodes, Collective.ALL_REDUCE, Algorithm.TREE, Protocol.LL, (16.8, 0.5)),
        (nodes, Collective.REDUCE_SCATTER, Algorithm.PAT, Protocol.SIMPLE, (17.6, 3.6)),
        (nodes, Collective.BROADCAST, Algorithm.RING, Protocol.LL, (9.3, 1.2)),
        (nodes, Collective.BROADCAST, Algorithm.RING, Protocol.SIMPLE, (22.4, 2.4)),
    ):
        costs = _latency_and_bandwidth(collective, algorithm, protocol, build_topology(cluster))
        assert tuple(round(cost, 1) for cost in costs) == logged, (cluster.name, collective, algorithm, protocol)

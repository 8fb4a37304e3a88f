"""Which algorithm and protocol exist for which collective, and which may be chosen where."""

from dataclasses import replace

from ncclt.core.algorithms import (
    LEGAL,
    Algorithm,
    Protocol,
    available_algorithms,
    available_protocols,
    choices,
    is_legal,
    ll128_is_automatic,
    serves_every_call,
)
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.testing.samples import sample_cluster

V = NcclVersion.parse("2.28.9")
LEONARDO = replace(sample_cluster(), gpudirect=True)
HOPPER = replace(LEONARDO, name="dgx-h100", gpus_per_node=8, compute_capability=90, link_class="nvswitch")
AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER


def test_the_table_of_nccl(subtests):
    """Source: algos_of_coll in NCCL's src/device/generate.py."""
    for collective, algorithm, protocol, legal in [
        (AR, Algorithm.TREE, Protocol.LL128, True),
        (AR, Algorithm.NVLS, Protocol.LL, False),
        (AR, Algorithm.PAT, Protocol.SIMPLE, False),
        (AG, Algorithm.TREE, Protocol.SIMPLE, False),
        (AG, Algorithm.PAT, Protocol.SIMPLE, True),
        (AG, Algorithm.COLLNET_CHAIN, None, False),
        (Collective.BROADCAST, Algorithm.RING, None, True),
        (Collective.BROADCAST, None, Protocol.LL, True),
        (Collective.REDUCE, None, None, True),
        (Collective.SEND_RECV, None, None, True),
        (Collective.SEND_RECV, None, Protocol.LL, False),
        (Collective.ALL_TO_ALL, Algorithm.RING, None, False),
    ]:
        with subtests.test(collective=collective, algorithm=algorithm, protocol=protocol, legal=legal):
            assert is_legal(collective, algorithm, protocol, version=V) is legal


def test_an_algorithm_exists_from_its_first_version_on(subtests):
    for algorithm, collective, first in [
        (Algorithm.PAT, AG, "2.23"),
        (Algorithm.NVLS_TREE, AR, "2.18"),
        (Algorithm.NVLS, AR, "2.17"),
        (Algorithm.COLLNET_CHAIN, AR, "2.14"),
        (Algorithm.COLLNET_DIRECT, AR, "2.14"),
    ]:
        with subtests.test(algorithm=algorithm, collective=collective, first=first):
            since = NcclVersion.parse(first)

            assert is_legal(collective, algorithm, None, version=since)
            assert not is_legal(collective, algorithm, None, version=since._replace(minor=since.minor - 1, patch=99))


def test_a_pair_is_legal_only_if_each_half_is(subtests):
    for collective in [collective for collective in Collective if collective.is_tunable]:
        with subtests.test(collective=collective):
            pairs = [(a, p) for a in Algorithm for p in Protocol if is_legal(collective, a, p, version=V)]

            assert (Algorithm.RING, Protocol.SIMPLE) in pairs
            assert {a for a, _ in pairs} == {a for a in Algorithm if is_legal(collective, a, None, version=V)}
            assert {p for _, p in pairs} == {p for p in Protocol if is_legal(collective, None, p, version=V)}


def test_every_tunable_collective_has_ring_and_the_others_have_nothing():
    for collective in Collective:
        assert (Algorithm.RING in LEGAL[collective]) is collective.is_tunable
        assert bool(LEGAL[collective]) is collective.is_tunable


def test_ll128_is_on_only_where_nccl_itself_turns_it_on(subtests):
    """Source: NCCL src/graph/tuning.cc:515-537; forcing it elsewhere may corrupt data."""
    for changes, automatic in [
        ({}, True),
        ({"link_class": "pcie"}, False),
        ({"link_class": "pcie", "gpus_per_node": 1}, True),
        ({"gpudirect": False}, False),
        ({"gpudirect": False, "nodes": 1}, True),
        ({"fabric": "ethernet"}, False),
        ({"compute_capability": 61}, False),
        ({"compute_capability": 90, "nodes": 1, "gpus_per_node": 2}, False),
    ]:
        with subtests.test(changes=changes, automatic=automatic):
            cluster = replace(LEONARDO, **changes)

            assert ll128_is_automatic(cluster) is automatic
            assert (Protocol.LL128 in available_protocols(AR, Algorithm.RING, cluster)) is automatic


def test_nvls_needs_nvswitch_and_hopper_and_the_right_number_of_nodes():
    assert Algorithm.NVLS_TREE in available_algorithms(AR, HOPPER)
    assert Algorithm.NVLS not in available_algorithms(AR, HOPPER)
    assert Algorithm.NVLS in available_algorithms(AR, replace(HOPPER, nodes=1))
    assert not {Algorithm.NVLS, Algorithm.NVLS_TREE} & set(available_algorithms(AR, LEONARDO))


def test_pat_is_offered_for_one_rank_on_each_of_several_nodes_from_its_version_on():
    for nodes, gpus_per_node, version, offered in (
        (2, 1, "2.28.9", True),
        (1, 1, "2.28.9", False),
        (2, 2, "2.28.9", False),
        (2, 1, "2.22.3", False),
    ):
        cluster = replace(HOPPER, nodes=nodes, gpus_per_node=gpus_per_node, nccl_version=version)
        assert (Algorithm.PAT in available_algorithms(AG, cluster)) is offered


def test_collnet_is_never_proposed():
    for collective in Collective:
        assert not {Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN} & set(available_algorithms(collective, HOPPER))


def test_choices_are_legal_for_some_collective_and_do_not_repeat():
    found = choices([AR, AG, Collective.SEND_RECV], LEONARDO)

    assert len(set(found)) == len(found) == 6
    assert (Algorithm.TREE, Protocol.LL) in found
    assert choices([Collective.SEND_RECV], LEONARDO) == ()
    assert all(any(is_legal(c, a, p, version=V) for c in (AR, AG)) for a, p in found)


def test_ring_serves_every_call_and_so_does_tree_of_all_reduce_alone():
    tunable = [c for c in Collective if c.is_tunable]
    served = {(c, a) for c in tunable for a in Algorithm if serves_every_call(c, a)}
    assert served == {*((c, Algorithm.RING) for c in tunable), (Collective.ALL_REDUCE, Algorithm.TREE)}

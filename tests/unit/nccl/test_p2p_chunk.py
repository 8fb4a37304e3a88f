"""The chunk of send_recv and all_to_all, by NCCL's rules (init.cc computeBuffSizes), and arms that NCCL runs alike."""

import itertools
from dataclasses import replace

import pytest
from made_workloads import workload as made_workload

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Workload
from ncclt.measure.testbed import simulated_testbed
from ncclt.nccl.p2p_chunk import (
    LEAST,
    MOST,
    P2P_CHANNELS,
    PER_PEER,
    default_process_wide,
    effective,
    find_chunk_doubt,
    find_chunk_problem,
    serves_all_peers,
)
from ncclt.nccl.parameters import CATALOGUE, go_together, parameter
from ncclt.search.space import build_space, describe_space
from ncclt.store.shipped import named_clusters, profiles_folder

KIB, MIB = 1024, 1024 * 1024
NET, NVL, PCI = "P2P_NET_CHUNKSIZE", "P2P_NVL_CHUNKSIZE", "P2P_PCI_CHUNKSIZE"
SHIPPED = named_clusters(profiles_folder())
H100, LEONARDO = SHIPPED["dgx-h100"].sized(nodes=4), SHIPPED["leonardo"].sized(nodes=2)
GB200 = replace(H100, name="gb200", cpu="arm", compute_capability=100, nccl_version="2.29.7")


def message(collective=Collective.SEND_RECV, *, size=16 * MIB, group=2, spans=True) -> Message:
    return Message(collective=collective, dtype="bfloat16", size_bytes=size, group_size=group, spans_nodes=spans)


SEND, REDUCE = message(), message(Collective.ALL_REDUCE)
EXPERTS = message(Collective.ALL_TO_ALL, group=8, spans=False)


def workload(*messages) -> Workload:
    return made_workload(*(MessageCalls(message=one, calls_per_step=8.0) for one in messages))


def nccl_chunk(parameters, *, nodes, ratio=1, nvlink=True) -> int:
    """The rule in NCCL's own words, not ours."""
    if nodes > 1:
        chunk = ratio * parameters.get(NET, 1 << 17)
    else:
        chunk = parameters.get(NVL, 1 << 19) if nvlink else parameters.get(PCI, 1 << 17)
    if chunk * 8 > parameters.get("BUFFSIZE", 1 << 22):
        chunk = parameters.get("BUFFSIZE", 1 << 22) // 8
    return chunk


def test_defaults_are_those_of_the_catalogue():
    assert {n: c for n in (NET, NVL, PCI) for c in [parameter(n).default]} == {
        NET: nccl_chunk({}, nodes=2),
        NVL: nccl_chunk({}, nodes=1),
        PCI: nccl_chunk({}, nodes=1, nvlink=False),
    }


def test_the_effective_chunk_is_that_of_nccl():
    names = ("BUFFSIZE", NET)
    for values in itertools.product(*((None, *parameter(name).ladder) for name in names)):
        given = {name: value for name, value in zip(names, values, strict=True) if value}
        for cluster, ratio in ((H100, 1), (GB200, 2), (replace(GB200, nccl_version="2.28.9"), 1)):
            assert effective(given, cluster, [SEND]) == {NET: nccl_chunk(given, nodes=4, ratio=ratio)}


def test_a_parameter_that_no_message_uses_has_no_effect():
    assert effective({NET: MIB}, H100, [REDUCE]) == {}
    assert effective({NVL: 64 * KIB, "NTHREADS": 64}, H100, [SEND]) == effective({}, H100, [SEND])
    assert effective({NET: 64 * KIB}, H100, [EXPERTS]) == effective({}, H100, [EXPERTS])
    assert effective({"IB_QPS_PER_CONNECTION": 4}, H100, [SEND]) != effective({}, H100, [SEND])


@pytest.mark.parametrize("cluster", [H100, LEONARDO, GB200, SHIPPED["pcie-pair"]], ids=lambda c: c.name)
@pytest.mark.parametrize(
    "messages",
    [(SEND,), (message(Collective.ALL_TO_ALL, group=8),), (SEND, REDUCE), (EXPERTS,), (SEND, EXPERTS)],
    ids=["pipeline", "moe", "pipeline+dp", "experts in a node", "both"],
)
def test_no_two_arms_are_run_alike_and_no_effect_is_missed(cluster, messages):
    """Against the clamp rules of NCCL; what a space leaves out has the effect of an arm that is in it."""
    if cluster.nodes == 1:
        messages = [replace(one, spans_nodes=False, group_size=2) for one in messages]
    testbed = simulated_testbed(cluster, seed=0, reason="test")
    default = default_process_wide(cluster, messages)
    for names in (default, (NET,), ("BUFFSIZE", "NTHREADS", NET), ("BUFFSIZE", NVL, PCI)):
        space = build_space(testbed, workload(*messages), names)
        ratio = 2 if cluster is GB200 else 1
        tunable = any(one.collective.is_tunable for one in messages)

        def run(given, ratio=ratio, tunable=tunable):
            places = {one.spans_nodes for one in messages if not one.collective.is_tunable}
            direct = cluster.link_class != "pcie"
            return (
                nccl_chunk(given, nodes=2, ratio=ratio) if True in places else 0,
                nccl_chunk(given, nodes=1) if False in places and direct else 0,
                # Some nodes with NVLink and without a switch lack links between some of their GPUs.
                nccl_chunk(given, nodes=1, nvlink=False)
                if False in places and cluster.link_class in ("pcie", "nvlink")
                else 0,
                *([given.get("BUFFSIZE", 4 * MIB), given.get("NTHREADS", 512)] if tunable else []),
            )

        arms = {s.parameters for s in space.distinct}
        assert len({run(dict(arm)) for arm in arms}) == len(arms)
        grid = itertools.product(*((None, *parameter(name).ladder) for name in names))
        asked = [{n: v for n, v in zip(names, values, strict=True) if v} for values in grid]
        every = {run(values) for values in asked if go_together(values)}
        assert {run(dict(arm)) for arm in arms} == every
        for arm in arms:
            if not tunable and NET in dict(arm):
                assert dict(arm).get("BUFFSIZE", 4 * MIB) >= 8 * ratio * dict(arm)[NET]


@pytest.mark.parametrize(
    ("cluster", "messages", "names"),
    [
        (H100, (REDUCE,), ("BUFFSIZE",)),
        (H100, (SEND, REDUCE), ("BUFFSIZE", NET)),
        (H100, (EXPERTS,), ("BUFFSIZE", NVL)),
        (LEONARDO, (EXPERTS,), ("BUFFSIZE", NVL)),
        (SHIPPED["pcie-pair"], (message(spans=False),), ("BUFFSIZE", PCI)),
        (H100, (replace(SEND, group_size=0),), ("BUFFSIZE", NET)),
    ],
)
def test_what_is_searched_follows_the_messages(cluster, messages, names):
    assert default_process_wide(cluster, messages) == names


def test_parameters_that_change_nothing_are_named(subtests):
    testbed = simulated_testbed(H100, seed=0, reason="test")
    for messages, names, said in [
        ((SEND,), ("BUFFSIZE", NET), "5 settings"),
        ((SEND,), ("BUFFSIZE",), "1 setting (BUFFSIZE: no effect on these messages)"),
        ((SEND,), (NET, "NTHREADS"), "4 settings (NTHREADS: no effect on these messages)"),
        ((SEND,), (MOST,), f"1 setting ({MOST}: no number alone reaches all 32 ranks in one round with NCCL 2.28.9)"),
    ]:
        with subtests.test(names=names):
            assert describe_space(testbed, workload(*messages), names) == said


def test_a_logged_chunk_is_compared_with_what_was_asked(subtests):
    for given, logged, problem in [
        ({NET: MIB, "BUFFSIZE": 8 * MIB}, [(2, MIB)], ""),
        ({NET: MIB, "BUFFSIZE": 8 * MIB}, [(2, 2 * MIB)], "2 MiB between nodes"),
        ({NET: 256 * KIB}, [(2, 512 * KIB)], ""),  # doubled, on an Arm host
        ({NET: MIB, "BUFFSIZE": 8 * MIB}, [(2, 128 * KIB)], "128 KiB between nodes"),
        ({NET: MIB, "BUFFSIZE": 8 * MIB}, [(1, 512 * KIB), (0, MIB)], ""),
        ({NET: MIB, "BUFFSIZE": 8 * MIB}, [(2, MIB), (2, 128 * KIB)], f"NCCL_{NET}={MIB}"),
        ({NVL: 64 * KIB}, [(1, 512 * KIB)], "512 KiB in a node"),
        ({NVL: 64 * KIB}, [(1, 64 * KIB), (2, 128 * KIB)], ""),
        ({"BUFFSIZE": 8 * MIB}, [(2, 4 * KIB)], ""),
        ({NET: MIB}, [], ""),
    ]:
        with subtests.test(given=given, logged=logged):
            said = find_chunk_problem(given, logged)
            assert problem in said
            assert bool(problem) is bool(said)


@pytest.mark.parametrize("cluster", [H100, GB200], ids=lambda c: c.name)
def test_buffers_between_nodes_never_overflow_the_int_of_nccl(cluster):
    """net.cc:666: P2P channels, at most 64, x 16 x chunk."""
    assert not parameter(NET).allows(2 * MIB)
    space = build_space(simulated_testbed(cluster, seed=0, reason="test"), workload(SEND, REDUCE), ("BUFFSIZE", NET))
    chunks = [effective(dict(setting.parameters), cluster, [SEND])[NET] for setting in space.distinct]
    assert max(chunks) == MIB
    assert 64 * 16 * max(chunks) < 2**31


def test_channels_of_an_arm_reach_every_rank_in_one_round(subtests):
    """By the rule of NCCL for its own numbers (graph/paths.cc); the published hangs are beyond it."""
    for cluster in (H100, H100.sized(nodes=16), replace(GB200, nodes=1), LEONARDO):
        testbed = replace(simulated_testbed(cluster, seed=0, reason="test"), beside_compute=True)
        one = SEND if cluster.nodes > 1 else replace(SEND, spans_nodes=False)
        arms = [dict(s.parameters) for s in build_space(testbed, workload(one), P2P_CHANNELS).distinct]
        with subtests.test(cluster=cluster.name, nodes=cluster.nodes):
            assert len(arms) == len({tuple(effective(arm, cluster, [one]).items()) for arm in arms})
            for arm in arms:
                rounds = -(-cluster.world_size // 8)
                assert arm.get(PER_PEER, 0) * rounds <= arm.get(LEAST, 1) or PER_PEER not in arm
                assert arm.get(PER_PEER, 0) <= 16
                old = cluster.nccl_version < "2.29.2"
                assert not (old and rounds > 1 and MOST in arm and PER_PEER not in arm)
            assert any(LEAST in arm for arm in arms)
    hangs = [(4, 8), (4, 10), (32, 2)]
    for per_peer, nodes in hangs:  # nccl#1835 with 64 and 80 ranks, nccl#1915 with 16
        assert not serves_all_peers({PER_PEER: per_peer, LEAST: 16}, H100.sized(nodes=nodes))
        assert not serves_all_peers({PER_PEER: per_peer}, H100.sized(nodes=nodes))


def test_the_least_number_of_channels_overrules_the_most():
    exact = [{LEAST: 32, MOST: 32}, {LEAST: 32, MOST: 8}]
    assert effective(exact[0], GB200, [SEND]) == effective(exact[1], GB200, [SEND])
    assert effective({MOST: 8}, GB200, [REDUCE]) == effective({}, GB200, [REDUCE])
    assert effective({PER_PEER: 8, LEAST: 64}, GB200, [EXPERTS]) == effective({LEAST: 64}, GB200, [EXPERTS])
    assert effective({PER_PEER: 8, LEAST: 64}, GB200, [SEND]) != effective({LEAST: 64}, GB200, [SEND])


def test_an_ignored_chunk_is_named_where_the_cpu_is_known_and_in_doubt_elsewhere(subtests):
    """64 KiB doubled, as on Arm, is the default of x86; 256 KiB is that of Arm."""
    for asked, logged, used_at in [(64 * KIB, 128 * KIB, 2), (256 * KIB, 256 * KIB, 1)]:
        given, chunks = {NET: asked}, [(2, logged)]
        with subtests.test(asked=asked):
            assert find_chunk_problem(given, chunks, ratio=used_at) == ""
            assert find_chunk_problem(given, chunks, ratio=3 - used_at).endswith(
                f"between nodes despite NCCL_{NET}={asked}"
            )
            assert find_chunk_problem(given, chunks) == ""
            assert find_chunk_doubt(given, chunks).startswith(f"cannot tell whether NCCL used NCCL_{NET}={asked}")
    for given, chunks in [
        ({NET: 64 * KIB}, [(2, 64 * KIB)]),
        ({NET: 128 * KIB}, [(2, 128 * KIB)]),
        ({NET: 64 * KIB}, [(1, 128 * KIB)]),
        ({NET: 256 * KIB, "BUFFSIZE": MIB}, [(2, 128 * KIB)]),
        ({NVL: 64 * KIB}, [(2, 128 * KIB)]),
    ]:
        with subtests.test(given=given):
            assert find_chunk_doubt(given, chunks) == ""


def test_every_chunk_of_a_ladder_fits_the_largest_buffer():
    most = max(parameter("BUFFSIZE").ladder)
    chunks = [value for row in CATALOGUE if row.name in (NET, NVL, PCI) for value in row.ladder]
    assert max(chunks) * 8 == most
    assert all(value & (value - 1) == 0 for value in chunks), "NCCL rounds other chunks down"

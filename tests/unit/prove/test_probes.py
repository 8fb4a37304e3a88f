"""How far a rule holds: what is probed beside the workload, and where a rule ends after it."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.prove.probes import compare_probes, find_hang_probes, find_probes, narrow_rules

KIB, MIB = 1 << 10, 1 << 20
RING = Rule(
    collective=Collective.ALL_REDUCE,
    min_bytes=6 * MIB,
    max_bytes=12 * MIB,
    group_size=8,
    algorithm=Algorithm.RING,
    protocol=Protocol.LL128,
)


def message(size_bytes, collective=Collective.ALL_REDUCE, dtype="float32"):
    return Message(collective=collective, dtype=dtype, size_bytes=size_bytes, group_size=8, spans_nodes=True)


def workload(*messages):
    calls = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in messages)
    return Workload(name="w", messages=calls, provenance=Provenance(source="test"))


def sizes(policy, *messages, covers=lambda *_: True):
    return [m.size_bytes / MIB for m in find_probes(policy, workload(*messages), covers=covers)]


def ends(rule, lost, won=(), own=(8 * MIB,)):
    slower = {message(size): True for size in lost} | {message(size): False for size in won}
    left = narrow_rules(Policy(rules=(rule,)), workload(*map(message, own)), slower)
    return [(part.min_bytes, part.max_bytes) for part in left.rules]


def test_both_ends_and_the_way_there_are_probed():
    found = sizes(Policy(rules=(RING,)), message(8 * MIB))
    assert found == pytest.approx([6, 48**0.5, 96**0.5, 12], rel=1e-3)
    assert all(6 <= size <= 12 for size in found)


def test_far_sizes_are_probed_between_and_near_ones_are_not():
    rule = replace(RING, min_bytes=1 * MIB, max_bytes=16 * MIB)
    near = message(1 * MIB), message(2 * MIB), message(16 * MIB)
    assert sizes(Policy(rules=(rule,)), *near) == pytest.approx([32**0.5], rel=1e-3), "the ends are the workload's own"


def test_open_ends_other_collectives_and_what_cannot_be_measured_are_not_probed():
    everywhere = replace(RING, min_bytes=0, max_bytes=None, group_size=0)
    assert sizes(Policy(rules=(everywhere,)), message(8 * MIB)) == []
    assert sizes(Policy(rules=(RING,)), message(8 * MIB, Collective.BROADCAST)) == []
    assert sizes(Policy(rules=(RING,)), message(8 * MIB), covers=lambda m, _: m.size_bytes < 7 * MIB) == pytest.approx(
        [6, 48**0.5], rel=1e-3
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_probe_is_a_message_that_can_be_sent_to_all_ranks_and_stays_in_the_rule(dtype):
    rule = replace(RING, collective=Collective.ALL_GATHER, min_bytes=333 * KIB + 1, max_bytes=499 * KIB + 7)
    found = find_probes(
        Policy(rules=(rule,)), workload(message(400 * KIB, Collective.ALL_GATHER, dtype)), covers=lambda *_: True
    )
    assert len(found) == 4
    assert all(rule.matches(m) and m.dtype == dtype and m.spans_nodes for m in found)
    assert all(m.size_bytes % (8 * {"bfloat16": 2, "float64": 8}[dtype]) == 0 for m in found)


def test_numbers_of_p2p_channels_have_to_end_calls_of_every_group_and_of_the_job(cluster):
    two = replace(cluster, nodes=2, fabric="infiniband", nics_per_node=1, nic_gbps=25.0)
    experts = replace(message(4 * MIB, Collective.ALL_TO_ALL), group_size=4, spans_nodes=False)
    assert find_hang_probes(Policy(parameters=(("BUFFSIZE", 1 << 20),)), workload(experts), two) == ()
    found = find_hang_probes(Policy(parameters=(("MIN_P2P_NCHANNELS", 32),)), workload(experts), two)
    assert {(m.collective.value, m.group_size, m.spans_nodes) for m in found} == {
        (collective, *group) for collective in ("all_to_all", "send_recv") for group in ((4, False), (8, True))
    }
    assert experts not in found, "the workload's own calls are measured anyway"


def test_a_probe_counts_where_a_rule_sent_it_and_both_sides_were_measured():
    policy, own = Policy(rules=(RING,)), workload(message(8 * MIB))
    default = {message(8 * MIB): 5.0, message(7 * MIB): 10.0, message(9 * MIB): 10.0, message(64 * MIB): 10.0}
    table = {message(8 * MIB): 9.0, message(7 * MIB): 10.1, message(9 * MIB): 10.0, message(64 * MIB): 11.0}
    assert compare_probes(policy, own, default, {**table, message(10 * MIB): 1.0}) == {
        message(7 * MIB): True,
        message(9 * MIB): False,
    }


def test_without_a_loss_the_rule_stays():
    assert ends(RING, []) == ends(RING, [], won=[6 * MIB, 12 * MIB]) == [(6 * MIB, 12 * MIB)]


def test_the_rule_ends_at_the_last_size_that_did_not_lose():
    assert ends(RING, [6 * MIB]) == [(8 * MIB, 12 * MIB)]
    assert ends(RING, [12 * MIB]) == [(6 * MIB, 8 * MIB)]
    assert ends(RING, [12 * MIB], won=[10 * MIB]) == [(6 * MIB, 10 * MIB)]
    assert ends(RING, [10 * MIB], won=[12 * MIB]) == [(6 * MIB, 8 * MIB)], "what holds nothing of the workload goes"
    assert ends(RING, [6 * MIB, 12 * MIB]) == [(8 * MIB, 8 * MIB)]


def test_a_loss_between_two_sizes_of_the_workload_parts_the_rule():
    rule = replace(RING, min_bytes=1 * MIB, max_bytes=16 * MIB)
    assert ends(rule, [4 * MIB], own=(2 * MIB, 8 * MIB)) == [(1 * MIB, 2 * MIB), (8 * MIB, 16 * MIB)]


def test_messages_of_the_workload_keep_their_setting_whatever_lost():
    own = workload(message(7 * MIB), message(8 * MIB), message(11 * MIB))
    policy = Policy(rules=(RING,), parameters=(("BUFFSIZE", 1 << 22),))
    lost = {message(size): True for size in (6 * MIB, 7 * MIB + 32, 9 * MIB, 12 * MIB)}
    left = narrow_rules(policy, own, lost)
    assert [left.setting_for(c.message) for c in own.messages] == [policy.setting_for(c.message) for c in own.messages]
    assert all(not left.setting_for(m).algorithm for m in lost)
    assert left.parameters == policy.parameters


def test_a_message_of_the_workload_that_lost_has_no_rule_and_the_rules_beside_it_end_there():
    rule = replace(RING, min_bytes=1 * MIB, max_bytes=16 * MIB)
    assert ends(rule, [4 * MIB], own=(2 * MIB, 4 * MIB, 8 * MIB)) == [(1 * MIB, 2 * MIB), (8 * MIB, 16 * MIB)]
    assert ends(rule, [4 * MIB, 8 * MIB], won=[12 * MIB], own=(2 * MIB, 4 * MIB, 8 * MIB)) == [(1 * MIB, 2 * MIB)]
    assert ends(rule, [4 * MIB], own=(4 * MIB,)) == []


def test_a_loss_of_one_group_leaves_the_rules_of_others_alone():
    other = replace(RING, group_size=4)
    left = narrow_rules(Policy(rules=(RING, other)), workload(message(8 * MIB)), {message(12 * MIB): True})
    assert other in left.rules
    assert RING not in left.rules

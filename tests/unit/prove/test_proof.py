"""What a verdict counts of the launches of a proof."""

import math
import random
from dataclasses import replace

import proof_launches
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision
from ncclt.core.study import Arm
from ncclt.prove.evidence import collect_evidence
from ncclt.prove.proof import average_unchanged, build_pairs, describe_blocks, judge_arm
from ncclt.prove.study_summary import proven_times_us

TABLE = Policy(
    rules=(Rule(collective=Collective.ALL_REDUCE, max_bytes=1 << 20, algorithm=Algorithm.TREE, protocol=Protocol.LL),)
)


def trials_of(workload, times, *, policy=TABLE, **options):
    return proof_launches.launch_pairs(workload, times, policy=policy, **options)


def gains_of(trials, workload, *, arm=Arm.TABLE, policy=TABLE):
    blocks = collect_evidence(trials).whole_blocks(arm)
    return build_pairs(arm, policy, blocks, workload).gains.tolist()


def restless(pairs, seed=0, gain=1.0):
    """The small message varies little, the large one, which has no rule, by a factor of two."""
    rng = random.Random(seed)
    return [
        ((20.0, 1000.0 * 2 ** rng.uniform(-1, 1)), (20.0 / gain, 1000.0 * 2 ** rng.uniform(-1, 1)))
        for _ in range(pairs)
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_left_to_nccl_counts_with_the_mean_of_both_launches(workload, whole):
    times = restless(8, gain=2.0)
    rests = [(own[1] + theirs[1]) / 2 for own, theirs in times]
    expected = [math.log((200.0 + rest) / (100.0 + rest)) for rest in rests]
    assert gains_of(trials_of(workload, times, whole=whole), workload) == pytest.approx(expected)


def test_a_verdict_is_not_delayed_by_what_the_policy_leaves_alone(workload):
    times = [((200.0, large), (100.0, other)) for ((_, large), (_, other)) in restless(8)]
    verdict = judge_arm(Arm.TABLE, TABLE, trials_of(workload, times), workload, min_effect=0.02)
    assert verdict.decision is Decision.TUNED
    assert verdict.speedup == pytest.approx(3000 / 2000, rel=0.1)


def test_exchanged_launches_change_the_sign_and_nothing_else(workload):
    """That is what makes the bets of `confidence` fair."""
    times = [((a * 1.1, b), (c, d)) for (a, b), (c, d) in restless(8, seed=1, gain=1.3)]
    exchanged = [(policy, default) for default, policy in times]
    gains = gains_of(trials_of(workload, times), workload)
    assert gains_of(trials_of(workload, exchanged), workload) == pytest.approx([-gain for gain in gains])


def test_what_is_left_to_nccl_counts_as_measured_once_it_is_shown_to_be_slower(workload):
    """A plugin that slowed every call down would otherwise go unnoticed."""
    times = [((20.0, 1000.0), (10.0, 1100.0))] * 8
    gains = gains_of(trials_of(workload, times), workload)
    assert gains == pytest.approx([math.log(1200 / 1200)] * 8)
    few = gains_of(trials_of(workload, times[:2]), workload)
    assert few == pytest.approx([math.log(1250 / 1150)] * 2), "two pairs show nothing yet"


def test_a_gain_that_the_times_of_all_messages_do_not_bear_out_is_not_delivered_yet(workload):
    """The rule wins a seventh of the step; if the rest lost as much, noise would hide that from eight pairs."""
    rng = random.Random(3)
    noise = [[math.exp(rng.gauss(0, 0.05)) for _ in range(2)] for _ in range(8)]
    for rest, decision in ((1.0, Decision.TUNED), (1.07, Decision.UNDECIDED)):
        times = [((40.0 * a, 1000.0 * a), (26.0 * b, 1000.0 * rest * b)) for a, b in noise]
        trials = trials_of(workload, times)
        assert len(set(gains_of(trials, workload))) == 8
        verdict = judge_arm(Arm.TABLE, TABLE, trials, workload, min_effect=0.02)
        assert verdict.decision is decision
    assert "on messages with rules, but only" in verdict.reason


def test_rows_of_what_is_left_to_nccl_are_the_same_on_both_sides_and_all_add_up(workload):
    trials = trials_of(workload, restless(8, gain=2.0))
    verdict = judge_arm(Arm.TABLE, TABLE, trials, workload, min_effect=0.02)
    default_us, policy_us = proven_times_us(collect_evidence(trials), Arm.TABLE, verdict, workload)
    large, small = (calls.message for calls in workload.messages)
    if large.size_bytes < small.size_bytes:
        large, small = small, large
    assert default_us[large] == policy_us[large]
    assert default_us[small] / policy_us[small] == pytest.approx(2.0, rel=0.2)
    for times_us, total_us in ((default_us, verdict.default_us), (policy_us, verdict.paired_policy_us)):
        assert sum(c.calls_per_step * times_us[c.message] for c in workload.messages) == pytest.approx(total_us)


def test_rows_add_up_where_noise_is_larger_than_what_the_policy_changes(workload):
    trials = trials_of(workload, restless(8, gain=2.0))
    verdict = replace(judge_arm(Arm.TABLE, TABLE, trials, workload, min_effect=0.02), speedup=1000.0)
    _, policy_us = proven_times_us(collect_evidence(trials), Arm.TABLE, verdict, workload)
    assert min(policy_us.values()) > 0
    found_us = sum(c.calls_per_step * policy_us[c.message] for c in workload.messages)
    assert found_us == pytest.approx(verdict.paired_policy_us)


@pytest.mark.parametrize(
    ("arm", "policy"),
    [(Arm.TABLE, replace(TABLE, parameters=(("BUFFSIZE", 1 << 22),))), (Arm.VARIABLES, TABLE)],
)
def test_process_wide_parameters_and_variables_reach_every_message(workload, arm, policy):
    times = restless(8, gain=2.0)
    trials = trials_of(workload, times, arm=arm, policy=policy)
    expected = [math.log((10 * a + b) / (10 * c + d)) for (a, b), (c, d) in times]
    assert gains_of(trials, workload, arm=arm, policy=policy) == pytest.approx(expected)


def test_a_policy_with_rules_for_all_messages_counts_as_measured(workload):
    everywhere = Policy(rules=(replace(TABLE.rules[0], max_bytes=None),))
    times = restless(8, gain=2.0)
    expected = [math.log((10 * a + b) / (10 * c + d)) for (a, b), (c, d) in times]
    assert gains_of(trials_of(workload, times, policy=everywhere), workload, policy=everywhere) == pytest.approx(
        expected
    )
    assert average_unchanged((), workload) == ()


def test_every_block_shows_the_times_that_were_counted_then(workload):
    """The rest is shown to be slower by all eight pairs, and was not by the first two."""
    trials = trials_of(workload, [((20.0, 1000.0), (10.0, 1100.0))] * 8)
    first, *_, last = describe_blocks(Arm.TABLE, TABLE, trials, workload, min_effect=0.02)
    assert (first["default_us"], first["policy_us"]) == ([1250.0] * 2, [1150.0] * 2)
    assert (last["default_us"], last["policy_us"]) == ([1200.0] * 2, [1200.0] * 2)
    for row in (first, last):
        ratios = zip(row["default_us"], row["policy_us"], strict=True)
        assert row["log_ratios"] == pytest.approx([math.log(default / policy) for default, policy in ratios])

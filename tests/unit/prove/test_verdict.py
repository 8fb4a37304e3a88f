"""The verdict: what counts as proven, as refuted, and as neither."""

import math
import random
from dataclasses import replace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision, Verdict
from ncclt.prove.verdict import Pairs, block_speedups, decide, find_dropped_messages, judge, keep_default

BROADCAST = Message(collective=Collective.BROADCAST, dtype="float32", size_bytes=4096, group_size=8)


def launches(seed: int, *, speedup: float, sigma: float, blocks: int = 6, drift: float = 0.0) -> Pairs:
    """Times of default and policy as A B B A gives them, with noise and a drift over the whole run."""
    rng = random.Random(seed)
    default, policy = [], []
    for position, arm in enumerate("ABBA" * blocks):
        scale = (1 + drift * position / (4 * blocks)) * rng.lognormvariate(0, sigma)
        (default if arm == "A" else policy).append(1000 * scale / (speedup if arm == "B" else 1))
    return Pairs(default_us=tuple(default), policy_us=tuple(policy))


def with_loss(pairs: Pairs, loss: float, *, sigma: float, seed: int = 0, messages: int = 1) -> Pairs:
    """Add messages of weight: the first one loses, the others do not."""
    rng = random.Random(seed)
    losses = {}
    for number in range(messages):
        message = Message(collective=Collective.BROADCAST, dtype="float32", size_bytes=4096 << number, group_size=8)
        centre = math.log1p(loss) if number == 0 else 0.0
        losses[message] = tuple(rng.gauss(centre, sigma) for _ in pairs.default_us)
    return Pairs(default_us=pairs.default_us, policy_us=pairs.policy_us, losses=losses)


def test_a_block_is_the_ratio_of_geometric_means():
    assert block_speedups([100, 400], [50, 200]) == pytest.approx((2.0,))


def test_a_linear_drift_within_a_block_cancels():
    speedups = block_speedups([100, 103], [101, 102])

    assert speedups[0] == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize(("default", "policy"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_half_a_block_is_refused(default, policy):
    with pytest.raises(ValueError, match="block"):
        block_speedups(default, policy)


def test_a_clear_gain_is_tuned_with_its_numbers():
    verdict = judge(launches(1, speedup=1.10, sigma=0.02))

    assert verdict.decision is Decision.TUNED
    assert verdict.interval[0] < verdict.speedup < verdict.interval[1]
    assert verdict.speedup == pytest.approx(1.10, abs=0.03)
    assert verdict.blocks == 6
    assert "6 blocks" in verdict.reason


def test_what_cannot_reach_the_minimum_keeps_the_default(subtests):
    cases = [
        (1.00, 0.002, 6, "below the 2 % threshold"),
        (1.01, 0.001, 6, "below the 2 % threshold"),
        (0.90, 0.010, 6, "is slower"),
    ]
    for speedup, sigma, blocks, words in cases:
        with subtests.test(speedup=speedup, sigma=sigma, blocks=blocks):
            verdict = judge(launches(1, speedup=speedup, sigma=sigma, blocks=blocks))

            assert verdict.decision is Decision.KEEP_DEFAULT
            assert words in verdict.reason
            assert verdict.interval[1] < 1.02


def test_noise_that_hides_the_answer_leaves_it_open_and_says_what_would_decide():
    verdict = judge(launches(1, speedup=1.04, sigma=0.05))

    assert verdict.decision is Decision.UNDECIDED
    assert verdict.interval[0] < 1.0 < verdict.interval[1]
    assert "more block" in verdict.reason


def test_a_run_of_luck_under_much_noise_is_not_a_gain_yet():
    """Eight pairs of eight won refute "no gain" at 1 %; whether they leave room for a loss depends on their scatter."""
    scatter = [0.2, -0.2, 0.0, -0.1, 0.3, -0.15, 0.1, -0.05]

    def pairs(share, *, times=1):
        gains = [0.3 + share * offset for offset in scatter] * times
        return Pairs(default_us=tuple(100 * math.exp(gain) for gain in gains), policy_us=(100.0,) * len(gains))

    lucky = judge(pairs(1.0))
    assert lucky.decision is Decision.UNDECIDED
    assert "but noise does not rule out a loss of 5 %" in lucky.reason
    assert "should decide it" in lucky.reason
    assert judge(pairs(0.3)).decision is Decision.TUNED
    assert judge(pairs(1.0, times=2)).decision is Decision.TUNED


def test_a_small_gain_near_the_minimum_is_settled_only_when_the_budget_ends():
    small = launches(3, speedup=1.016, sigma=0.012, blocks=10)

    assert decide(small) is judge(small, ended=False).decision is Decision.UNDECIDED
    verdict = judge(small)
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "does not reach the 2 % threshold; twice the threshold is ruled out" in verdict.reason


def test_the_minimum_effect_is_that_of_the_request():
    gain = launches(1, speedup=1.05, sigma=0.005, blocks=8)

    assert judge(gain).decision is Decision.TUNED
    higher = judge(gain, min_effect=0.08)
    assert (higher.decision, higher.min_effect) == (Decision.KEEP_DEFAULT, 0.08)
    assert Verdict.from_document(higher.to_document()) == higher


def test_a_failed_launch_disqualifies_whatever_the_gain():
    verdict = judge(launches(1, speedup=2.0, sigma=0.01), failure="wrong_result: 3 elements")

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "wrong_result: 3 elements" in verdict.reason


def test_a_default_that_fails_leaves_open_what_was_not_decided_before():
    failed = judge(launches(1, speedup=1.1, sigma=0.01, blocks=2), baseline_failure="crashed: node n7")
    assert failed.decision is Decision.UNDECIDED
    assert "node n7" in failed.reason

    decided = judge(launches(1, speedup=1.1, sigma=0.01), baseline_failure="crashed: node n7")
    assert decided.decision is Decision.TUNED


def test_one_message_of_weight_must_not_pay_for_the_others():
    verdict = judge(with_loss(launches(1, speedup=2.0, sigma=0.01), 0.10, sigma=0.01))

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "broadcast 4 KiB float32 is" in verdict.reason
    assert "slower, more than 3 %" in verdict.reason


def test_a_message_that_may_lose_too_much_holds_the_verdict_back():
    verdict = judge(with_loss(launches(1, speedup=1.2, sigma=0.01), 0.045, sigma=0.02))

    assert verdict.decision is Decision.UNDECIDED
    assert "but broadcast 4 KiB float32 looks" in verdict.reason


@pytest.mark.parametrize(("loss", "sigma"), [(0.10, 0.01), (0.045, 0.02)])
def test_a_message_that_can_be_left_out_holds_nothing_back(loss, sigma):
    pairs = replace(with_loss(launches(1, speedup=1.2, sigma=0.01), loss, sigma=sigma, messages=3), separable=True)
    assert judge(pairs).decision is Decision.TUNED
    assert [message.size_bytes for message in find_dropped_messages(pairs)] == [4096]
    assert find_dropped_messages(replace(pairs, separable=False)) == ()

    alone = replace(pairs, losses=dict(list(pairs.losses.items())[:1]))
    verdict = judge(alone)
    assert verdict.decision is Decision.UNDECIDED, "without it nothing is left to deliver"
    assert "but broadcast 4 KiB float32 looks" in verdict.reason


def test_the_worst_message_is_named_first():
    pairs = with_loss(launches(1, speedup=1.2, sigma=0.01), 0.05, sigma=0.005, messages=4)
    small, *_, large = pairs.losses
    losses = {**pairs.losses, large: tuple(log + 0.08 for log in pairs.losses[large])}
    assert find_dropped_messages(replace(pairs, losses=losses, separable=True)) == (large, small)


@pytest.mark.parametrize(("loss", "tuned", "kept"), [(0.0, (17, 20), (0, 1)), (0.25, (0, 1), (12, 20))])
def test_noise_on_small_messages_neither_vetoes_nor_hides(loss, tuned, kept):
    """Twelve messages under 10 % of noise, looked at after every block: none loses, or one loses a quarter."""
    decisions = []
    for seed in range(20):
        pairs = launches(seed, speedup=1.1, sigma=0.01, blocks=16)
        whole = with_loss(pairs, loss, sigma=0.1, seed=seed, messages=12)
        looks = (decide(whole.first(blocks)) for blocks in range(4, 17))
        decisions.append(next((look for look in looks if look is not Decision.UNDECIDED), Decision.UNDECIDED))

    assert tuned[0] <= decisions.count(Decision.TUNED) <= tuned[1]
    assert kept[0] <= decisions.count(Decision.KEEP_DEFAULT) <= kept[1]


def test_too_few_blocks_decide_nothing():
    verdict = judge(launches(1, speedup=2.0, sigma=0.01, blocks=2))

    assert verdict.decision is Decision.UNDECIDED
    assert "2 of at least 3 blocks" in verdict.reason


def test_a_gain_that_is_no_more_to_be_expected_ends_the_proof():
    """A gain of 2 % is not refuted yet, but nothing speaks for it."""
    hopeless = Pairs(default_us=(100.0,) * 6, policy_us=(101.0, 100.0, 99.0, 101.5, 100.5, 99.5))

    verdict = judge(hopeless)
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "is most likely below the 2 % threshold" in verdict.reason
    assert verdict.interval[1] > 1.02


def test_no_blocks_at_all_give_a_verdict_and_no_crash():
    none = Pairs(default_us=(), policy_us=())

    assert judge(none, failure="timeout").decision is Decision.KEEP_DEFAULT
    assert judge(none).decision is Decision.UNDECIDED


def test_the_first_blocks_judge_as_they_did_when_they_were_all_there_was():
    pairs = launches(1, speedup=1.05, sigma=0.02, blocks=9)

    shorter = Pairs(default_us=pairs.default_us[:10], policy_us=pairs.policy_us[:10])
    assert judge(pairs.first(5)) == judge(shorter)


def test_nothing_better_keeps_the_default():
    verdict = keep_default(12.0, why="none of 3 settings beats it")

    assert (verdict.decision, verdict.speedup, verdict.blocks) == (Decision.KEEP_DEFAULT, 1.0, 0)
    assert verdict.interval == (0.0, math.inf)
    assert (verdict.default_us, verdict.policy_us, verdict.reason) == (12.0, 12.0, "none of 3 settings beats it")

"""The verdict: what counts as proven, and what does not."""

import math
import random

import pytest

from ncclt.core.recommendation import Decision
from ncclt.core.verdict import block_speedups, bootstrap_interval, judge, nothing_better


def launches(seed: int, *, speedup: float, sigma: float, blocks: int = 6, drift: float = 0.0):
    """Times of default and policy as A B B A gives them, with noise and a drift over the whole run."""
    rng = random.Random(seed)
    default, policy = [], []
    for position, arm in enumerate("ABBA" * blocks):
        scale = (1 + drift * position / (4 * blocks)) * rng.lognormvariate(0, sigma)
        (default if arm == "A" else policy).append(1000 * scale / (speedup if arm == "B" else 1))
    return default, policy


def test_a_block_is_the_ratio_of_geometric_means():
    assert block_speedups([100, 400], [50, 200]) == (2.0,)


def test_a_linear_drift_within_a_block_cancels():
    speedups = block_speedups([100, 103], [101, 102])

    assert speedups[0] == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize(("default", "policy"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_half_a_block_is_refused(default, policy):
    with pytest.raises(ValueError, match="block"):
        block_speedups(default, policy)


def test_a_clear_gain_is_tuned_with_its_numbers():
    verdict = judge(*launches(1, speedup=1.10, sigma=0.02), seed=0)

    assert verdict.decision is Decision.TUNED
    assert verdict.interval[0] < verdict.speedup < verdict.interval[1]
    assert verdict.speedup == pytest.approx(1.10, abs=0.03)
    assert verdict.blocks == 6
    assert "6 blocks" in verdict.reason


def test_a_gain_below_the_minimum_is_not_worth_a_change():
    verdict = judge(*launches(1, speedup=1.01, sigma=0.0001), seed=0)

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "below the minimum" in verdict.reason


def test_a_loss_is_never_tuned():
    assert judge(*launches(1, speedup=0.9, sigma=0.01), seed=0).decision is Decision.KEEP_DEFAULT


def test_a_failed_launch_disqualifies_whatever_the_gain():
    verdict = judge(*launches(1, speedup=2.0, sigma=0.01), seed=0, failure="wrong_result: 3 elements")

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "wrong_result: 3 elements" in verdict.reason


def test_one_message_of_weight_must_not_pay_for_the_others():
    verdict = judge(*launches(1, speedup=2.0, sigma=0.01), seed=0, worst_message="broadcast 4 KiB", worst_loss=0.05)

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "broadcast 4 KiB would be 5.0 % slower" in verdict.reason


def test_too_few_blocks_decide_nothing():
    verdict = judge(*launches(1, speedup=2.0, sigma=0.01, blocks=3), seed=0)

    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "3 of 4 blocks" in verdict.reason


def test_no_blocks_at_all_give_a_verdict_and_no_crash():
    assert judge([], [], seed=0, failure="timeout").decision is Decision.KEEP_DEFAULT


def test_the_same_seed_gives_the_same_interval():
    speedups = block_speedups(*launches(3, speedup=1.05, sigma=0.05))

    assert bootstrap_interval(speedups, seed=7) == bootstrap_interval(speedups, seed=7)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        interval = bootstrap_interval(block_speedups(*launches(seed, speedup=1.05, sigma=0.03)), seed=seed)
        covered += interval.low <= 1.05 <= interval.high

    assert covered >= 180


def test_noise_and_drift_alone_are_hardly_ever_called_a_gain():
    claims = sum(
        judge(*launches(seed, speedup=1.0, sigma=0.05, drift=0.10), seed=seed).decision is Decision.TUNED
        for seed in range(200)
    )

    assert claims <= 10


def test_nothing_better_keeps_the_default():
    verdict = nothing_better(12.0, why="none of 3 settings beats it")

    assert (verdict.decision, verdict.speedup, verdict.blocks) == (Decision.KEEP_DEFAULT, 1.0, 0)
    assert math.isfinite(verdict.interval[1])

"""Decisions of live tuning on invented step times."""

import math
import random

import numpy as np
import pytest

from ncclt.prove import confidence
from ncclt.prove.levels import FALSE_TUNED
from ncclt.prove.live_proof import (
    ADVANCE_STEPS,
    DEFAULT,
    LONG_STEP,
    MAX_BLOCKS,
    Draw,
    LiveProof,
    StepBlock,
    log_capital,
)

STEP_US = 1000.0
STEPS = 5


def make_block(draw, *, log_time=0.0, first=1.0, outlier=1.0):
    time_us = STEP_US * math.exp(log_time)
    return StepBlock(draw=draw, step_us=(time_us, time_us * outlier, time_us), first_us=first * STEP_US, steps=STEPS)


def run(proof, gains, *, noise=0.0, seed=1, blocks=MAX_BLOCKS, first=None):
    """Run blocks until the proof ends; `gains` and `first` by arm."""
    rng = random.Random(seed)
    for number in range(1, blocks + 1):
        if proof.has_ended:
            break
        draw = proof.draw()
        log_time = rng.gauss(0, noise) - math.log1p(gains.get(draw.arm, 0.0))
        start = (first or {}).get(draw.arm, 1.0)
        proof.add(make_block(draw, log_time=log_time, first=start), elapsed_us=number * STEPS * STEP_US)
    return proof


def make_proof(arms=1, seed=0, **values):
    return LiveProof(arms=arms, coin=random.Random(seed), **values)


@pytest.mark.parametrize("disturbance", ["drift", "memory", "rhythm"])
def test_coins_of_an_arm_that_changes_nothing_win_no_capital(disturbance):
    rng = random.Random(1)
    ever, jobs = 0, 200
    for job in range(jobs):
        proof, time, best = make_proof(seed=job), 0.0, -math.inf
        for number in range(40):
            time = 0.9 * time + rng.gauss(0, 0.02) if disturbance == "memory" else rng.gauss(0, 0.01)
            time += 0.02 * number * (disturbance == "drift") + 0.1 * (number % 2) * (disturbance == "rhythm")
            proof.add(make_block(proof.draw(), log_time=time), elapsed_us=number * STEPS * STEP_US)
            proof.dropped.clear()
            if number % 10 == 9:
                best = max(best, log_capital(proof.blocks, 1))
        ever += best >= -math.log(FALSE_TUNED)

    assert ever / jobs <= 0.015


def test_pairs_are_bet_on_as_between_launches():
    rng = random.Random(2)
    ratios = [rng.gauss(0.02, 0.02) for _ in range(12)]
    blocks = []
    for ratio in ratios:
        blocks.append(make_block(Draw(1, drawn_from=(0, 1), opens_pair=True), log_time=-ratio))
        blocks.append(make_block(Draw(0, closes_pair=True)))

    assert log_capital(blocks, 1) == pytest.approx(float(confidence.log_capital(np.array(ratios))))
    assert log_capital(blocks, 1, 0.03, sign=-1) == pytest.approx(
        float(confidence.log_capital(-np.array(ratios), -0.03))
    )


def test_pairs_of_the_last_arm_say_nothing_about_a_dropped_one():
    blocks = [make_block(Draw(0)), *(make_block(Draw(arm, drawn_from=(0, 1, 2))) for arm in (1, 0, 2, 0, 1))]
    pair = [
        make_block(Draw(1, drawn_from=(0, 1), opens_pair=True), log_time=-0.1),
        make_block(Draw(0, closes_pair=True)),
    ]

    assert log_capital([*blocks, *pair], 2) == log_capital(blocks, 2)


def test_the_best_of_three_arms_is_found():
    proof = run(make_proof(arms=3), {1: 0.0, 2: 0.10, 3: 0.04}, noise=0.01)

    assert proof.winner == 2
    assert len(proof.blocks) <= 40


def test_a_gain_below_the_minimum_effect_is_not_chosen():
    proof = run(make_proof(), {1: 0.01}, noise=0.001)

    assert proof.winner is None
    assert proof.left == []


def test_a_proven_arm_waits_for_one_that_looks_better():
    blocks = []
    for number in range(40):
        draw = Draw((0, 1)[number % 2], drawn_from=(0, 1))
        blocks.append(make_block(draw, log_time=-0.05 * (number % 2)))
    blocks.append(make_block(Draw(2, drawn_from=(0, 1, 2)), log_time=-0.2))
    proof = make_proof(arms=2, blocks=blocks)

    assert proof.result(1).is_proven
    assert proof.winner is None

    proof.dropped[2] = "slow"

    assert proof.winner == 1


def test_outliers_in_single_steps_do_not_decide():
    proof = make_proof()
    for number in range(30):
        draw = proof.draw()
        proof.add(make_block(draw, outlier=5.0 if draw.arm else 1.0), elapsed_us=number * STEPS * STEP_US)
        if proof.has_ended:
            break

    assert proof.winner is None


def test_a_gain_of_the_median_that_the_mean_does_not_bear_out_is_not_proven():
    proof = make_proof()
    for number in range(60):
        draw = proof.draw()
        log_time, outlier = (-0.05, 1.5) if draw.arm else (0.0, 1.0)
        proof.add(make_block(draw, log_time=log_time, outlier=outlier), elapsed_us=number * STEPS * STEP_US)

    assert proof.winner is None
    assert not proof.result(1).is_proven


def test_an_arm_that_is_far_slower_is_dropped_after_its_first_block():
    proof = make_proof()
    proof.add(make_block(proof.draw(), outlier=1.01), elapsed_us=0.0)
    proof.add(make_block(Draw(1, drawn_from=(0, 1)), log_time=math.log(1.5)), elapsed_us=0.0)

    assert proof.dropped == {1: "steps take 50.0 % longer"}
    assert proof.has_ended


def test_an_arm_with_a_long_first_step_is_dropped_unless_it_may_have_been_a_pause():
    proof = run(make_proof(), {1: 0.10}, first={1: LONG_STEP + 1})

    assert "first step" in proof.dropped[1]
    assert sum(block.arm == 1 for block in proof.blocks) == 2


def test_one_long_first_step_drops_no_arm():
    proof = make_proof()
    for number in range(20):
        draw = proof.draw()
        gain = 0.1 if draw.arm else 0.0
        proof.add(make_block(draw, log_time=-gain, first=20.0 if number == 3 else 1.0), elapsed_us=0.0)
        if proof.has_ended:
            break

    assert proof.winner == 1


def test_no_arm_is_tried_while_the_job_has_to_pay_for_earlier_ones():
    proof = make_proof(arms=2, max_cost=0.005)
    proof.add(make_block(proof.draw(), outlier=1.01), elapsed_us=0.0)
    proof.add(make_block(Draw(1, drawn_from=(0, 1, 2)), log_time=math.log(3)), elapsed_us=0.0)
    lost_us = proof.cost_us()
    assert lost_us == pytest.approx(2 * STEPS * STEP_US, rel=0.01)
    assert lost_us > 0.005 * ADVANCE_STEPS * STEP_US

    assert proof.draw() == Draw(DEFAULT)
    proof.add(make_block(proof.draw()), elapsed_us=lost_us / 0.005 * 1.01)

    assert proof.draw() == Draw(2)


def test_each_arm_gets_a_block_before_coins_compare_the_best_one_with_the_default():
    proof = make_proof(arms=3)
    for arm in range(4):
        draw = proof.draw()
        assert draw == Draw(arm)
        proof.add(make_block(draw, log_time=-(0.0, 0.03, 0.09, 0.06)[arm]), elapsed_us=arm * STEPS * STEP_US)

    assert {proof.draw().drawn_from for _ in range(20)} == {(0, 2)}


def test_the_first_arm_that_a_coin_compares_needs_less_capital_than_later_ones():
    def count_blocks(arm):
        blocks = [make_block(Draw(number), log_time=-0.1 * (number > 0)) for number in range(4)]
        proof = make_proof(arms=3, blocks=[*blocks, make_block(Draw(0, drawn_from=(0, 1)))])
        while not proof.result(arm).is_proven:
            draw = Draw(arm * (len(proof.blocks) % 2), drawn_from=(0, arm))
            proof.blocks.append(make_block(draw, log_time=-0.1 * (draw.arm > 0)))
            proof._known_gains.clear()
        return len(proof.blocks)

    assert count_blocks(1) < count_blocks(2)


@pytest.mark.parametrize(
    ("first", "draws_coins"), [((1.5,) * 5, True), ((20.0, *(1.5,) * 4), True), ((9.0,) * 5, False)]
)
def test_first_uses_of_arms_cost_once(first, draws_coins):
    """Counted also as switches, those of five arms would pause the comparison for 100 blocks."""
    proof = make_proof(arms=5, max_cost=0.005)
    for number in range(9):
        draw = proof.draw()
        is_first = draw.arm not in {DEFAULT, *(block.arm for block in proof.blocks)}
        start = first[draw.arm - 1] if is_first else 1.0
        proof.add(make_block(draw, log_time=-0.1 * draw.arm, first=start), elapsed_us=number * STEPS * STEP_US)

    assert proof.cost_us() / STEP_US == pytest.approx(2.5 if draws_coins else 16.0)
    assert bool(proof.draw().drawn_from) == draws_coins


def test_a_pause_at_the_only_later_switch_is_no_cost_of_switches():
    proof = make_proof(arms=2)
    for draw, first in ((Draw(0), 1.0), (Draw(1), 1.5), (Draw(2), 1.5), (Draw(0), 20.0), (Draw(0, (0, 2)), 1.0)):
        proof.blocks.append(make_block(draw, first=first))

    assert proof.cost_us() / STEP_US == pytest.approx(1.5)


def test_only_the_newest_level_is_kept_while_the_job_pays():
    proof = make_proof()
    for _ in range(10):
        proof.add(make_block(Draw(DEFAULT)), elapsed_us=0.0)

    assert len(proof.blocks) == 1


def test_the_last_arm_is_compared_in_pairs_if_its_gain_is_small_beside_the_noise():
    proof = run(make_proof(), {1: 0.04}, noise=0.05, blocks=60)

    pairs = [(one, two) for one, two in zip(proof.blocks, proof.blocks[1:], strict=False) if one.draw.opens_pair]

    assert pairs
    assert all(two.draw.closes_pair and {one.arm, two.arm} == {0, 1} for one, two in pairs)


def test_noise_that_hides_the_gain_leaves_it_undecided():
    proof = run(make_proof(), {1: 0.1}, noise=0.5, seed=2, blocks=MAX_BLOCKS + 2)

    assert proof.has_ended
    assert proof.winner is None
    assert proof.left == [1]


def test_intervals_hold_the_true_gain():
    inside = 0
    for seed in range(20):
        found = run(make_proof(seed=seed), {1: 0.06}, noise=0.02, seed=seed, blocks=60).result(1)
        inside += found.low <= 1.06 <= found.high
        assert found.low <= found.speedup <= found.high

    assert inside >= 19


def test_an_arm_without_blocks_has_no_interval():
    found = make_proof().result(1)

    assert (found.low, found.high, found.blocks) == (0.0, math.inf, 0)

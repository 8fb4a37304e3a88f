"""Experiments on invented step times."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from ncclt.prove import confidence
from ncclt.prove.experiment import (
    ADVANCE_STEPS,
    CONTROL,
    LONG_STEP,
    MAX_BLOCKS,
    Draw,
    Experiment,
    StepBlock,
    find_period,
    log_capital,
)
from ncclt.prove.levels import FALSE_TUNED

STEP_US = 1000.0
STEPS = 5


def make_block(draw, *, log_time=0.0, first=1.0, outlier=1.0, step=0):
    time_us = STEP_US * math.exp(log_time)
    return StepBlock(
        draw=draw,
        step_us=(time_us, time_us * outlier, time_us),
        uncounted_us=(STEP_US, first * STEP_US),
        step=step,
        elapsed_us=step * STEP_US,
    )


def run(experiment, gains, *, noise=0.0, seed=1, blocks=MAX_BLOCKS, first=None):
    """Run blocks until the experiment ends; `gains` and `first` by arm."""
    rng = random.Random(seed)
    for number in range(1, blocks + 1):
        if experiment.has_ended:
            break
        draw = experiment.next()
        log_time = rng.gauss(0, noise) - math.log1p(gains.get(draw.arm, 0.0))
        start = (first or {}).get(draw.arm, 1.0)
        experiment.observe(make_block(draw, log_time=log_time, first=start, step=number * STEPS))
    return experiment


def make_experiment(arms=1, seed=0, **values):
    return Experiment(arms=arms, coin=random.Random(seed), **values)


@pytest.mark.parametrize("disturbance", ["drift", "memory", "rhythm"])
def test_coins_of_an_arm_that_changes_nothing_win_no_capital(disturbance):
    rng = random.Random(1)
    ever, jobs = 0, 200
    for job in range(jobs):
        experiment, time, best = make_experiment(seed=job), 0.0, -math.inf
        for number in range(40):
            time = 0.9 * time + rng.gauss(0, 0.02) if disturbance == "memory" else rng.gauss(0, 0.01)
            time += 0.02 * number * (disturbance == "drift") + 0.1 * (number % 2) * (disturbance == "rhythm")
            experiment.observe(make_block(experiment.next(), log_time=time, step=number * STEPS))
            experiment.dropped.clear()
            if number % 10 == 9:
                best = max(best, log_capital(experiment.blocks, 1))
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
    experiment = run(make_experiment(arms=3), {1: 0.0, 2: 0.10, 3: 0.04}, noise=0.01)

    assert experiment.leading == 2
    assert len(experiment.blocks) <= 40


def test_a_gain_below_the_minimum_effect_is_not_chosen():
    experiment = run(make_experiment(), {1: 0.01}, noise=0.001)

    assert experiment.leading is None
    assert experiment.left == []


def observe_all(experiment, blocks):
    for number, block in enumerate(blocks):
        experiment.observe(replace(block, step=number * STEPS))
    return experiment


def test_an_arm_that_has_won_waits_for_one_that_looks_better():
    blocks = [make_block(Draw((0, 1)[n % 2], drawn_from=(0, 1)), log_time=-0.05 * (n % 2)) for n in range(40)]
    blocks.append(make_block(Draw(2, drawn_from=(0, 1, 2)), log_time=-0.2))
    experiment = observe_all(make_experiment(arms=2), blocks)

    assert experiment._has_won(1)
    assert experiment.leading is None

    experiment.dropped[2] = "slow"

    assert experiment.leading == 1


def test_outliers_in_single_steps_do_not_decide():
    experiment = make_experiment()
    for number in range(30):
        draw = experiment.next()
        experiment.observe(make_block(draw, outlier=5.0 if draw.arm else 1.0, step=number * STEPS))
        if experiment.has_ended:
            break

    assert experiment.leading is None


def train(experiment, time_us, blocks=300):
    """Run blocks of a training; `time_us(arm, step, random)` gives the time of each step."""
    rng, step = random.Random(1), 0
    for _ in range(blocks):
        if experiment.has_ended:
            break
        draw = experiment.next()
        count = 3 * max(1, draw.guards)
        times_us = [time_us(draw.arm, step + number, rng) for number in range(3 + count)]
        step += len(times_us)
        experiment.observe(StepBlock(draw, tuple(times_us[3:]), tuple(times_us[:3]), step, step * STEP_US))
    return experiment


STALLS = {"4% x3": (0.04, 3), "2% x6": (0.02, 6), "10% x2": (0.1, 2), "1% x20": (0.01, 20), "0.5% x40": (0.005, 40)}


@pytest.mark.parametrize("name", STALLS)
def test_an_arm_whose_stalls_cost_more_than_its_usual_steps_gain_is_not_tuned_in_the_end(name):
    """By the median, each of these arms is 5 % faster; users pay the sum, by which it is slower."""
    share, factor = STALLS[name]

    def time_us(arm, _step, rng):
        usual_us = STEP_US * math.exp(rng.gauss(0, 0.01))
        return usual_us / 1.05 * (factor if rng.random() < share else 1.0) if arm else usual_us

    for seed in range(3):
        experiment = train(make_experiment(seed=seed, max_cost=1.0), time_us)
        assert experiment.tuned is None


def test_an_arm_without_stalls_leads_until_stalls_are_ruled_out():
    experiment = make_experiment()
    states = []

    def time_us(arm, _step, rng):
        states.append((experiment.leading, experiment.tuned))
        return STEP_US * math.exp(rng.gauss(0, 0.01)) / (1.05 if arm else 1.0)

    train(experiment, time_us, blocks=100)
    assert [*dict.fromkeys(states)] == [(None, None), (1, None), (1, 1)]
    assert experiment.mean_gain(1).steps > 100
    assert experiment.result(1).speedup == pytest.approx(1.05, abs=0.003)


def test_evaluations_are_of_no_arm():
    def time_us(arm, step, rng):
        pause_us = 20 * STEP_US if step % 50 == 7 else 0.0
        return STEP_US * math.exp(rng.gauss(0, 0.01)) / (1.05 if arm else 1.0) + pause_us

    for seed in range(5):
        experiment = train(make_experiment(seed=seed), time_us, blocks=300)
        assert experiment.tuned == 1
        assert experiment.result(1).speedup == pytest.approx(1.05, abs=0.005)


def test_an_arm_that_begins_to_stall_once_it_is_in_force_is_taken_back():
    def time_us(arm, step, rng):
        stalls = arm and step > 2000 and rng.random() < 0.04
        return STEP_US * math.exp(rng.gauss(0, 0.01)) * (3.0 if stalls else 1.0) / (1.05 if arm else 1.0)

    experiment = train(make_experiment(), time_us, blocks=60)
    assert experiment.tuned == 1
    experiment = train(make_experiment(), time_us)
    assert experiment.tuned is None


def test_an_arm_that_slows_what_follows_it_has_gained_nothing():
    experiment = make_experiment()

    def time_us(arm, _step, rng):
        follows_arm = not arm and experiment.blocks and experiment.blocks[-1].arm
        return STEP_US * math.exp(rng.gauss(0, 0.01)) * (1.06 if follows_arm else 1.0)

    train(experiment, time_us)
    assert experiment.tuned is None
    assert experiment.dropped


def test_the_control_keeps_a_share_of_the_blocks_as_a_guard():
    experiment = run(make_experiment(), {1: 0.1}, noise=0.01, blocks=40)
    draws = []
    for _ in range(6):
        draws.append(experiment.next())
        experiment.observe(make_block(draws[-1], log_time=-0.1 * draws[-1].arm))

    assert [draw.arm for draw in draws] == [1, 0, 0, 1, 0, 0] or draws[0].arm == 0
    in_force = sum(draw.guards for draw in draws if draw.arm)
    assert sum(draw.guards for draw in draws) - in_force == pytest.approx(0.05 * in_force, rel=0.1)


def test_a_period_of_pauses_is_the_jobs_if_the_control_paused_in_it():
    assert find_period([57], [7, 57, 107, 110, 157]) == (50, 7)
    assert find_period([7], [7, 207, 357]) == (50, 7), "these were not next to each other"
    assert find_period([110], [7, 57, 107, 110, 157]) == (0, 0)
    assert find_period([7, 107], [7, 107]) == find_period([], []) == find_period([1], [1, 2, 3]) == (0, 0)


@pytest.mark.parametrize(("period", "factor"), [(200, 40), (100, 20), (40, 20)])
def test_stalls_of_an_arm_are_no_pauses_of_the_job_though_they_have_a_period(period, factor):
    def time_us(arm, step, rng):
        usual_us = STEP_US * math.exp(rng.gauss(0, 0.01))
        return usual_us / 1.1 * (factor if step % period == 0 else 1.0) if arm else usual_us

    for seed in range(3):
        assert train(make_experiment(seed=seed), time_us, blocks=400).tuned is None


def test_a_speed_up_is_that_of_the_means_also_where_the_control_stalls():
    def time_us(arm, _step, rng):
        usual_us = STEP_US * math.exp(rng.gauss(0, 0.01))
        return usual_us / 1.05 if arm else usual_us * (6.0 if rng.random() < 0.3 else 1.0)

    result = train(make_experiment(), time_us, blocks=200).result(1)
    assert result.speedup == pytest.approx(2.63, rel=0.15)
    assert result.low < 2.63 < result.high


def test_an_arm_that_is_far_slower_is_dropped_after_its_first_block():
    experiment = make_experiment()
    experiment.observe(make_block(experiment.next(), outlier=1.01))
    experiment.observe(make_block(Draw(1, drawn_from=(0, 1)), log_time=math.log(1.5)))

    assert experiment.dropped == {1: "steps take 49.5 % longer"}
    assert experiment.has_ended


def test_an_arm_with_a_long_first_step_is_dropped_unless_it_may_have_been_a_pause():
    experiment = run(make_experiment(), {1: 0.10}, first={1: LONG_STEP + 1})

    assert "first step" in experiment.dropped[1]
    assert sum(block.arm == 1 for block in experiment.blocks) == 2


def test_one_long_first_step_drops_no_arm():
    experiment = make_experiment()
    for number in range(20):
        draw = experiment.next()
        gain = 0.1 if draw.arm else 0.0
        experiment.observe(make_block(draw, log_time=-gain, first=20.0 if number == 3 else 1.0))
        if experiment.has_ended:
            break

    assert experiment.leading == 1


def test_no_arm_is_tried_while_the_job_has_to_pay_for_earlier_ones():
    experiment = make_experiment(arms=2, max_cost=0.005)
    experiment.observe(make_block(experiment.next(), outlier=1.01))
    experiment.observe(make_block(Draw(1, drawn_from=(0, 1, 2)), log_time=math.log(3)))
    lost_us = experiment.cost_us()
    assert lost_us == pytest.approx(2 * STEPS * STEP_US, rel=0.01)
    assert lost_us > 0.005 * ADVANCE_STEPS * STEP_US

    assert experiment.next() == Draw(CONTROL)
    experiment.observe(replace(make_block(experiment.next()), elapsed_us=lost_us / 0.005 * 1.01))

    assert experiment.next() == Draw(2)


def test_each_arm_gets_a_block_before_coins_compare_the_best_one_with_the_default():
    experiment = make_experiment(arms=3)
    for arm in range(4):
        draw = experiment.next()
        assert draw == Draw(arm)
        experiment.observe(make_block(draw, log_time=-(0.0, 0.03, 0.09, 0.06)[arm], step=arm * STEPS))

    assert {experiment.next().drawn_from for _ in range(20)} == {(0, 2)}


def test_the_first_arm_that_a_coin_compares_needs_less_capital_than_later_ones():
    def count_blocks(arm):
        blocks = [make_block(Draw(number), log_time=-0.1 * (number > 0)) for number in range(4)]
        experiment = observe_all(make_experiment(arms=3), [*blocks, make_block(Draw(0, drawn_from=(0, 1)))])
        while not experiment._has_won(arm):
            draw = Draw(arm * (len(experiment.blocks) % 2), drawn_from=(0, arm))
            experiment.observe(make_block(draw, log_time=-0.1 * (draw.arm > 0), step=STEPS * len(experiment.blocks)))
        return len(experiment.blocks)

    assert count_blocks(1) < count_blocks(2)


@pytest.mark.parametrize(
    ("first", "draws_coins"), [((1.5,) * 5, True), ((20.0, *(1.5,) * 4), True), ((9.0,) * 5, False)]
)
def test_first_uses_of_arms_cost_once(first, draws_coins):
    """Counted also as switches, those of five arms would pause the comparison for 100 blocks."""
    experiment = make_experiment(arms=5, max_cost=0.005)
    for number in range(9):
        draw = experiment.next()
        is_first = draw.arm not in {CONTROL, *(block.arm for block in experiment.blocks)}
        start = first[draw.arm - 1] if is_first else 1.0
        experiment.observe(make_block(draw, log_time=-0.1 * draw.arm, first=start, step=number * STEPS))

    assert experiment.cost_us() / STEP_US == pytest.approx(2.5 if draws_coins else 16.0)
    assert bool(experiment.next().drawn_from) == draws_coins


def test_a_pause_at_the_only_later_switch_is_no_cost_of_switches():
    experiment = make_experiment(arms=2)
    for draw, first in ((Draw(0), 1.0), (Draw(1), 1.5), (Draw(2), 1.5), (Draw(0), 20.0), (Draw(0, (0, 2)), 1.0)):
        experiment.blocks.append(make_block(draw, first=first))

    assert experiment.cost_us() / STEP_US == pytest.approx(1.5)


def test_only_the_newest_level_is_kept_while_the_job_pays():
    experiment = make_experiment()
    for _ in range(10):
        experiment.observe(make_block(Draw(CONTROL)))

    assert len(experiment.blocks) == 1


def test_the_last_arm_is_compared_in_pairs_if_its_gain_is_small_beside_the_noise():
    experiment = run(make_experiment(), {1: 0.04}, noise=0.05, blocks=60)

    pairs = [
        (one, two) for one, two in zip(experiment.blocks, experiment.blocks[1:], strict=False) if one.draw.opens_pair
    ]

    assert pairs
    assert all(two.draw.closes_pair and {one.arm, two.arm} == {0, 1} for one, two in pairs)


def test_noise_that_hides_the_gain_leaves_it_undecided():
    experiment = run(make_experiment(), {1: 0.1}, noise=0.5, seed=2, blocks=MAX_BLOCKS + 2)

    assert experiment.has_ended
    assert experiment.leading is None
    assert experiment.left == [1]


def test_intervals_hold_the_true_gain():
    inside = 0
    for seed in range(20):
        found = run(make_experiment(seed=seed), {1: 0.06}, noise=0.02, seed=seed, blocks=60).result(1)
        inside += found.low <= 1.06 <= found.high
        assert found.low <= found.speedup <= found.high

    assert inside >= 19


def test_an_arm_without_blocks_has_no_interval():
    found = make_experiment().result(1)

    assert (found.low, found.high, found.blocks) == (0.0, math.inf, 0)

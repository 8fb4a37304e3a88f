"""The experiment over the segments of one training."""

import random
from dataclasses import replace

from ncclt.core.recommendation import Decision
from ncclt.core.segment import CONTROL, Segment, cost_share
from ncclt.prove.segments import Race

ARMS = ("fast", "slow", "same", "same2")


def segment(arm, block, time_us, *, order=0, failure="", wall_s=100.0, restart_s=0.0, slower_s=0.0):
    return Segment(
        id=f"{arm}{block}",
        model="toy",
        cluster="",
        arm=arm,
        recommendation="",
        label="",
        variables=(),
        base_env=(),
        order=order,
        block=block,
        step_us=(time_us,) if time_us else (),
        failure=failure,
        wall_s=wall_s,
        restart_s=restart_s,
        slower_s=slower_s,
        is_stopped=True,
        created="",
    )


def race_of(arms, *, model="toy", segments=(), blocks=12):
    return Race(model=model, arms=tuple(arms), segments=tuple(segments), min_effect=0.02, blocks=blocks)


def run(race, factors, *, noise=0.005, seed=0, drift=0.0):
    """Run a race to its end with given step times; return it."""
    dice = random.Random(seed)
    while (following := race.next_arm()) is not None:
        arm, block = following
        number = len(race.segments)
        time_us = 1000 * factors.get(arm, 1.0) * (1 + drift) ** number * (1 + dice.gauss(0, noise))
        race = replace(race, segments=(*race.segments, segment(arm, block, time_us, order=number)))
    return race


def test_faster_arm_wins_and_losers_are_dropped_early():
    race = run(race_of(ARMS), {"fast": 0.95, "slow": 1.1})
    winner, verdict = race.conclude()
    assert winner == "fast"
    assert verdict.interval[0] < 1 / 0.95 < verdict.interval[1]
    assert verdict.reason.startswith("training steps are faster: +")
    assert "pairs of segments" in verdict.reason
    counts = {arm: sum(one.arm == arm for one in race.segments) for arm in (CONTROL, *ARMS)}
    assert counts["slow"] < counts["fast"]
    assert counts[CONTROL] >= counts["fast"]


def test_without_a_gain_the_control_goes_on():
    assert run(race_of(ARMS), {"slow": 1.1}).conclude() == (CONTROL, None)


def test_drift_of_the_training_makes_no_winner():
    wrong = sum(run(race_of(ARMS, model=f"toy{n}"), {}, drift=0.01, seed=n).conclude()[0] != CONTROL for n in range(20))
    assert wrong <= 1


def test_arms_share_the_error_rate():
    pairs = [segment(arm, block, 950.0 if arm == "fast" else 1000.0) for block in range(8) for arm in (CONTROL, "fast")]
    alone, among = race_of(["fast"], segments=pairs), race_of(["fast", "a", "b", "c"], segments=pairs)
    assert alone.verdict("fast").decision is Decision.TUNED
    assert among.verdict("fast").decision is Decision.UNDECIDED


def test_failed_arm_is_out():
    race = race_of(["fast"], segments=[segment("fast", 0, 0, failure="exit code 1")])
    assert race.next_arm() is None
    assert race.conclude() == (CONTROL, None)
    assert "exit code 1" in race.verdict("fast").reason


def test_a_block_has_every_arm_once_in_an_order_of_its_own():
    race, orders = race_of(ARMS), set()
    for _block in range(2):
        order = []
        for _ in range(5):
            arm, block = race.next_arm()
            order.append(arm)
            race = replace(race, segments=(*race.segments, segment(arm, block, 1000.0)))
        assert set(order) == {CONTROL, *ARMS}
        orders.add(tuple(order))
    assert len(orders) == 2


def test_a_segment_that_was_cut_off_is_repeated():
    race = race_of(ARMS)
    arm, block = race.next_arm()
    assert replace(race, segments=(segment(arm, block, 0),)).next_arm() == (arm, block)


def test_segments_before_the_experiment_are_no_evidence():
    race = race_of(["fast"], segments=[segment(CONTROL, -1, 5000.0)])
    assert race.next_arm()[1] == 0
    assert race.pairs("fast").blocks == 0


def test_cost_is_a_share_of_the_training_time():
    assert cost_share([segment(CONTROL, 0, 1.0), segment("slow", 0, 1.0, restart_s=3.0, slower_s=1.0)]) == 0.02
    assert cost_share([]) == 0.0

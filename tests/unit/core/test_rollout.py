"""A roll-out as a record: whom it draws, and which step times no job has."""

from dataclasses import replace

import pytest

from ncclt.core.rollout import ArmState, JobTime, RollOutArm, draw
from ncclt.errors import InputError, UsageError
from ncclt.testing.samples import sample_roll_out

ROLLOUT = sample_roll_out("b", share=0.25)
TIME = JobTime(rollout="r", job="j", recommendation="b", step_us=1e5, steps=20)
DAY_US = 86400e6


def given(rollout, job):
    return rollout.start(job, issued_s=0.0).recommendation


def test_each_arm_gets_its_share_of_the_jobs():
    four = sample_roll_out("b", "c", "d", "e", share=0.6)
    got = [given(four, f"job {number}") for number in range(8000)]
    for id, share in {"a": 0.4, "b": 0.15, "c": 0.15, "d": 0.15, "e": 0.15}.items():
        assert got.count(id) / len(got) == pytest.approx(share, abs=0.02)
    assert four.percent == 60


def test_a_roll_out_to_everybody_leaves_out_only_jobs_without_a_name():
    everybody = sample_roll_out("b", share=1.0)
    assert {given(everybody, f"job {number}") for number in range(400)} == {"b"}
    assert everybody.find_arm("") is None


@pytest.mark.parametrize("state", [ArmState.PAUSED, ArmState.LOST, ArmState.FUTILE, ArmState.ENDED])
def test_an_arm_that_is_not_served_gives_its_jobs_to_the_control_and_moves_no_other(state):
    before = sample_roll_out("b", "c", "d", share=0.9)
    first, second, third = before.arms
    after = replace(before, arms=(first, replace(second, state=state), third))
    moved = {(given(before, job), given(after, job)) for job in map(str, range(500))}
    assert moved == {("a", "a"), ("b", "b"), ("c", "a"), ("d", "d")}
    assert after.start("1", issued_s=0.0).running == (0, 2)


def test_the_chance_of_an_arm_is_that_among_its_own_jobs_and_the_control():
    four = sample_roll_out("b", "c", "d", "e", share=0.8)
    assert four.chance(0, (0, 1, 2, 3)) == pytest.approx(0.5)
    assert four.chance(0, (0,)) == pytest.approx(0.2)


@pytest.mark.parametrize("ids", [(), ("b", "b"), ("b", "c", "d", "e", "f")])
def test_a_roll_out_has_one_to_four_different_arms(ids):
    with pytest.raises(UsageError, match="1 to 4 different revisions"):
        replace(ROLLOUT, arms=tuple(RollOutArm(recommendation=id, share=0.1) for id in ids))


def test_a_draw_is_a_share_that_differs_by_seed_and_name():
    draws = {draw(seed, f"job {number}") for seed in ("s", "t") for number in range(200)}
    assert len(draws) == 400
    assert 0 <= min(draws) < 0.05
    assert 0.95 < max(draws) < 1


def test_the_extremes_of_a_step_time_are_taken(subtests):
    for right in [{"job": "j" * 300}, {"step_us": DAY_US}, {"step_us": 1e-3}, {"steps": 1}, {"steps": 10**9}]:
        with subtests.test(right=right):
            found = replace(TIME, **right)
            assert {name: getattr(found, name) for name in right} == right


def test_what_no_job_has_is_refused(subtests):
    for wrong in [
        {"job": ""},
        {"job": "  "},
        {"job": "a\nb"},
        {"job": "j" * 301},
        {"step_us": 0.0},
        {"step_us": -1.0},
        {"step_us": float("nan")},
        {"step_us": float("inf")},
        {"step_us": DAY_US + 1},
        {"steps": 0},
        {"steps": 10**9 + 1},
    ]:
        with subtests.test(wrong=wrong), pytest.raises(InputError):
            replace(TIME, **wrong)

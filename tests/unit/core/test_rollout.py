"""A roll-out as a record: whom it draws, and which step times no job has."""

from dataclasses import replace

import pytest

from ncclt.core.rollout import JobTime, RollOut, Variant, draw
from ncclt.errors import InputError

ROLLOUT = RollOut(
    id="r", cluster="c", model="m", recommendation="b", control="a", percent=25, seed="s", loss_limit=0.01
)
TIME = JobTime(rollout="r", job="j", recommendation="b", step_us=1e5, steps=20)
DAY_US = 86400e6


def test_the_share_of_jobs_that_get_it_is_its_percentage():
    given = [ROLLOUT.variant(f"job {number}") for number in range(4000)]
    assert given.count(Variant.CANDIDATE) / len(given) == pytest.approx(0.25, abs=0.03)
    assert given.count(Variant.DEFAULT) == 0


def test_a_roll_out_to_everybody_leaves_out_only_jobs_without_a_name():
    everybody = replace(ROLLOUT, percent=100)
    assert {everybody.variant(f"job {number}") for number in range(400)} == {Variant.CANDIDATE}
    assert everybody.variant("") is Variant.ACTIVE
    assert replace(everybody, control="").variant("") is Variant.DEFAULT


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

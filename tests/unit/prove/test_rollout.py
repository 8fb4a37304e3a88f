"""The guard of a roll-out: pairs of jobs by their order alone, and what follows from their step times."""

import math
import random
from dataclasses import replace

import pytest

from ncclt.core.life import Action, By, ClusterRules
from ncclt.core.rollout import JobTime, RollOut, RollOutState, Variant, draw
from ncclt.errors import ConflictError, InputError, NotFoundError
from ncclt.prove.rollout import GUARD, judge_roll_out, paired_gains, report_job_time
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation

ROLLOUT = RollOut(
    id="r", cluster="pair", model="toy", recommendation="b", control="a", percent=50, seed="s", loss_limit=0.01
)


def times(loss, *, jobs, seed=1, noise=0.02, rollout=ROLLOUT):
    """Return the step times of jobs, the candidate's longer by a share."""
    dice = random.Random(seed)
    found = []
    for number in range(jobs):
        is_candidate = rollout.variant(f"job {number}") is Variant.CANDIDATE
        step_us = 1e5 * math.exp(dice.gauss(0, noise)) * (1 + loss if is_candidate else 1)
        given = rollout.recommendation if is_candidate else rollout.control
        found.append(JobTime(rollout="r", job=f"job {number}", recommendation=given, step_us=step_us, steps=20))
    return found


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
def test_the_share_of_the_jobs_is_what_was_asked_for(percent):
    rollout = replace(ROLLOUT, percent=percent)
    got = sum(rollout.variant(f"Slurm job {n}") is Variant.CANDIDATE for n in range(20_000))
    assert abs(got / 200 - percent) < 1.0


def test_a_bucket_is_a_function_of_seed_and_job():
    """The numbers are part of the format: replicas of two versions must not disagree in the middle of a job."""
    assert round(draw("seed", "job"), 6) == 0.737969
    assert {ROLLOUT.variant("job 1") for _ in range(100)} == {ROLLOUT.variant("job 1")}
    differing = sum(ROLLOUT.variant(f"j{n}") != replace(ROLLOUT, seed="t").variant(f"j{n}") for n in range(1000))
    assert 400 < differing < 600


def test_a_job_that_is_not_known_is_never_a_candidate():
    assert replace(ROLLOUT, percent=100).variant("") is Variant.ACTIVE
    assert replace(ROLLOUT, percent=100, control="").variant("") is Variant.DEFAULT


def test_each_job_is_in_one_pair_at_most():
    found = times(0.0, jobs=400)
    gains = paired_gains(ROLLOUT, found)
    candidates = sum(time.recommendation == "b" for time in found)
    assert 0.7 * min(candidates, 400 - candidates) <= len(gains) <= min(candidates, 400 - candidates)


def test_pairs_do_not_depend_on_the_times():
    found = times(0.0, jobs=100)
    other = [replace(time, step_us=time.step_us * (2 if time.recommendation == "b" else 1)) for time in found]
    assert paired_gains(ROLLOUT, other) == pytest.approx([g - math.log(2) for g in paired_gains(ROLLOUT, found)])


@pytest.mark.parametrize("percent", [10, 50, 90])
def test_a_steady_drift_favours_neither_side(percent):
    """Each candidate after its partner would lose by the drift between them."""
    rollout = replace(ROLLOUT, percent=percent)
    found = times(0.0, jobs=4000, noise=0.0, rollout=rollout)
    drifting = [replace(time, step_us=time.step_us * 1.001**place) for place, time in enumerate(found)]
    gains = paired_gains(rollout, drifting)
    assert min(gains) < 0 < max(gains)
    assert abs(sum(gain > 0 for gain in gains) / len(gains) - 0.5) < 0.1
    assert abs(sum(map(math.copysign, [1.0] * len(gains), gains))) < 4 * len(gains) ** 0.5


@pytest.mark.parametrize(
    ("loss", "state"),
    [(0.05, RollOutState.LOST), (0.0, RollOutState.RUNNING), (-0.05, RollOutState.WON), (0.008, RollOutState.RUNNING)],
)
def test_what_a_difference_leads_to(loss, state):
    verdict = judge_roll_out(ROLLOUT, times(loss, jobs=300))
    assert verdict.state is state
    words = {
        RollOutState.LOST: "slower by more than 1 %",
        RollOutState.WON: "are faster",
        RollOutState.RUNNING: "undecided",
    }
    assert words[state] in verdict.reason
    assert verdict.candidates + verdict.controls == 300


def test_few_jobs_decide_nothing():
    assert judge_roll_out(ROLLOUT, []).reason == "no two jobs to compare yet, 0 reported"
    assert judge_roll_out(ROLLOUT, times(1.0, jobs=8)).state is RollOutState.RUNNING


@pytest.mark.parametrize(
    "wrong",
    [{"job": ""}, {"job": "a\nb"}, {"job": "x" * 301}, {"step_us": 0.0}, {"step_us": math.nan}, {"step_us": math.inf},
     {"step_us": 1e12}, {"steps": 0}, {"steps": 10**10}],
)  # fmt: skip
def test_times_that_no_job_has_are_refused(wrong):
    with pytest.raises(InputError):
        replace(times(0.0, jobs=1)[0], **wrong)


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as opened:
        opened.publish(sample_recommendation("a"))
        opened.set_rules(ClusterRules(cluster="pair", percent=50, loss_limit=0.01), By(who="ann"))
        opened.publish(sample_recommendation("b"))
        yield opened


def report(store, loss, *, jobs):
    """Report the jobs of the store's roll-out one by one until it ends; return how many that took."""
    (rollout,) = store.rollouts()
    for number, time in enumerate(times(loss, jobs=jobs, rollout=rollout)):
        if report_job_time(store, replace(time, rollout=rollout.id)).state is not RollOutState.RUNNING:
            return number + 1
    return jobs


def test_a_loss_is_rolled_back_by_the_guard_which_says_so(store):
    jobs = report(store, 0.10, jobs=200)
    assert jobs < 150
    assert [one.id for one in store.newest(cluster="pair", model="toy")] == ["a"]
    assert {one.id: one.state for one in store.statuses()} == {"a": "active", "b": "retired"}
    event = store.history()[0]
    assert (event.action, event.who, event.recommendation) == (Action.ROLL_OUT_LOST, GUARD, "b")
    assert "steps are slower by more than 1 %" in event.why


def test_a_gain_goes_to_all_jobs(store):
    report(store, -0.10, jobs=200)
    assert [one.id for one in store.newest(cluster="pair", model="toy")] == ["b"]
    assert store.history(recommendation="b")[0].action is Action.ROLL_OUT_WON


def test_a_report_that_comes_twice_or_late_changes_nothing(store):
    (rollout,) = store.rollouts()
    first = replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id)
    assert report_job_time(store, first) == report_job_time(store, replace(first, step_us=1.0))
    assert len(store.job_times(rollout.id)) == 1
    store.activate("b", By(who="ann"))
    late = replace(times(0.0, jobs=2, rollout=rollout)[1], rollout=rollout.id)
    report_job_time(store, late)
    assert len(store.job_times(rollout.id)) == 1


def test_a_job_that_had_something_else_does_not_count(store):
    (rollout,) = store.rollouts()
    time = replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id)
    for other in ("", {"a": "b", "b": "a"}[time.recommendation]):
        with pytest.raises(ConflictError, match=r"the roll-out .* gives this job"):
            report_job_time(store, replace(time, recommendation=other))
    with pytest.raises(NotFoundError):
        report_job_time(store, replace(time, rollout="x"))
    assert store.job_times(rollout.id) == ()

"""The guard of a roll-out: pairs of jobs by their order alone, and what follows from their step times."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.revision import Action, Actor, ClusterRules
from ncclt.core.rollout import JobStart, JobTime, RollOut, RollOutState, Variant, draw
from ncclt.core.ticket import TICKET_LIFE_S
from ncclt.errors import ConflictError, InputError, NotFoundError
from ncclt.prove.confidence import log_capital
from ncclt.prove.rollout import GUARD, describe_cohort_bits, find_grace, judge_roll_out, paired_gains, report_job_time
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation, sample_ticket

BEGIN_S = 1e9
SENDER = {"who": "key one", "address": "10.0.0.7"}
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


def test_the_share_of_the_jobs_is_what_was_asked_for(subtests):
    cases = [1, 10, 50, 90]
    for percent in cases:
        with subtests.test(percent=percent):
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


def test_a_steady_drift_favours_neither_side(subtests):
    """Each candidate after its partner would lose by the drift between them."""
    cases = [10, 50, 90]
    for percent in cases:
        with subtests.test(percent=percent):
            rollout = replace(ROLLOUT, percent=percent)
            found = times(0.0, jobs=4000, noise=0.0, rollout=rollout)
            drifting = [replace(time, step_us=time.step_us * 1.001**place) for place, time in enumerate(found)]
            gains = paired_gains(rollout, drifting)
            assert min(gains) < 0 < max(gains)
            assert abs(sum(gain > 0 for gain in gains) / len(gains) - 0.5) < 0.1
            assert abs(sum(map(math.copysign, [1.0] * len(gains), gains))) < 4 * len(gains) ** 0.5


def test_what_a_difference_leads_to(subtests):
    cases = [
        (0.05, RollOutState.LOST),
        (0.0, RollOutState.RUNNING),
        (-0.05, RollOutState.WON),
        (0.008, RollOutState.RUNNING),
    ]
    for loss, state in cases:
        with subtests.test(loss=loss, state=state):
            found = times(loss, jobs=600)
            verdict = judge_roll_out(ROLLOUT, found, [start_of(time, BEGIN_S) for time in found], now_s=BEGIN_S + 1e4)
            assert verdict.state is state
            words = {
                RollOutState.LOST: "slower by more than 1 %",
                RollOutState.WON: "are faster",
                RollOutState.RUNNING: "undecided",
            }
            assert words[state] in verdict.reason
            assert verdict.candidates + verdict.controls == 600


def test_few_jobs_decide_nothing():
    assert judge_roll_out(ROLLOUT, [], [], now_s=0.0).reason == "no two jobs to compare yet, 0 reported"
    assert judge_roll_out(ROLLOUT, times(1.0, jobs=8), [], now_s=0.0).state is RollOutState.RUNNING


def test_times_that_no_job_has_are_refused(subtests):
    cases = [
        {"job": ""},
        {"job": "a\nb"},
        {"job": "x" * 301},
        {"step_us": 0.0},
        {"step_us": math.nan},
        {"step_us": math.inf},
        {"step_us": 1e12},
        {"steps": 0},
        {"steps": 10**10},
    ]
    for wrong in cases:
        with subtests.test(wrong=wrong), pytest.raises(InputError):
            replace(times(0.0, jobs=1)[0], **wrong)


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as opened:
        opened.revisions.publish(sample_recommendation("a"))
        opened.revisions.set_rules(ClusterRules(cluster="pair", percent=50, loss_limit=0.01), Actor(who="ann"))
        opened.revisions.publish(sample_recommendation("b"))
        yield opened


def report(store, loss, *, jobs, hung=0.0):
    """Start a job a minute and report those that do not hang until the roll-out ends; return how many started."""
    (rollout,) = store.revisions.rollouts()
    dice = random.Random(7)
    for number, time in enumerate(times(loss, jobs=jobs, rollout=rollout)):
        time, issued_s = replace(time, rollout=rollout.id), BEGIN_S + 60.0 * number
        store.revisions.add_job_starts([start_of(time, issued_s)])
        if time.recommendation == "b" and dice.random() < hung:
            continue
        if send(store, time, issued_s=issued_s, now_s=issued_s + 50.0).state is not RollOutState.RUNNING:
            return number + 1
    return jobs


def start_of(time, issued_s):
    return JobStart(rollout=time.rollout, job=time.job, recommendation=time.recommendation, issued_s=issued_s)


def send(store, time, *, ticket=None, issued_s=BEGIN_S, now_s=BEGIN_S + 50.0, **changes):
    """Report a step time with the ticket of its job."""
    if ticket is None:
        ticket = sample_ticket(
            store.ticket_secret(),
            time.job,
            issued_s=issued_s,
            recommendation=time.recommendation,
            rollout=time.rollout,
        )
    sent = replace(time, **SENDER, **changes)
    return report_job_time(store, ticket, sent, now_s=now_s)


def test_a_loss_is_rolled_back_by_the_guard_which_says_so(store):
    jobs = report(store, 0.10, jobs=200)
    assert jobs < 150
    assert [one.id for one in store.recommendations.newest(cluster="pair", model="toy")] == ["a"]
    assert {one.id: one.state for one in store.revisions.statuses()} == {"a": "active", "b": "retired"}
    event = store.revisions.history()[0]
    assert (event.action, event.who, event.recommendation) == (Action.ROLL_OUT_LOST, GUARD, "b")
    assert "steps are slower by more than 1 %" in event.why
    assert event.why.endswith("reported by 1 key and 1 address")


def test_a_gain_awaits_approval_and_then_goes_to_all_jobs(store):
    jobs = report(store, -0.10, jobs=600)
    assert jobs < 450
    assert [one.id for one in store.recommendations.newest(cluster="pair", model="toy")] == ["a"]
    event = store.revisions.history(recommendation="b")[0]
    assert (event.action, event.who) == (Action.ROLL_OUT_WON, GUARD)
    assert "awaits approval, 50 % of the jobs keep it" in event.why
    assert "no report of 0 of" in event.why
    store.revisions.approve("b", Actor(who="bob"))
    assert [one.id for one in store.recommendations.newest(cluster="pair", model="toy")] == ["b"]


def test_a_gain_goes_to_all_jobs_at_once_where_the_rules_say_so(store):
    store.revisions.set_rules(
        ClusterRules(cluster="pair", percent=50, loss_limit=0.01, approve_wins=False), Actor(who="ann")
    )
    report(store, -0.10, jobs=600)
    assert [one.id for one in store.recommendations.newest(cluster="pair", model="toy")] == ["b"]
    assert [event.action for event in store.revisions.history(recommendation="b")[:2]] == [
        Action.ACTIVATED,
        Action.ROLL_OUT_WON,
    ]


@pytest.mark.parametrize("gain", [0.0, 0.10])
@pytest.mark.parametrize("hung", [0.3, 0.9])
def test_a_candidate_that_hangs_its_jobs_is_lost_however_fast_the_others_are(store, hung, gain):
    assert report(store, -gain, jobs=400, hung=hung) < 250
    event = store.revisions.history()[0]
    assert (event.action, "jobs with it hang or fail: no report of" in event.why) == (Action.ROLL_OUT_LOST, True)
    assert {one.id: one.state for one in store.revisions.statuses()} == {"a": "active", "b": "retired"}


def test_slow_jobs_that_hang_make_no_win():
    """What reports is faster than the others, since what would have been slow does not report."""
    found = times(0.0, jobs=600)
    slow = sorted(time.step_us for time in found)[420]
    reports = [time for time in found if time.recommendation == "a" or time.step_us < slow]
    starts = [start_of(time, BEGIN_S) for time in found]
    gains = paired_gains(ROLLOUT, reports)
    assert float(log_capital(np.array(gains))) > math.log(100), "by their times alone it would have won"
    assert judge_roll_out(ROLLOUT, reports, starts, now_s=BEGIN_S + 1e4).state is RollOutState.LOST
    assert judge_roll_out(ROLLOUT, reports, starts, now_s=BEGIN_S).state is RollOutState.RUNNING


def test_jobs_that_no_side_reports_decide_nothing():
    """Not all launchers report; whether they do has nothing to do with what they got."""
    found = times(0.0, jobs=2000)
    starts = [start_of(time, BEGIN_S) for time in found]
    verdict = judge_roll_out(ROLLOUT, found[::3], starts, now_s=BEGIN_S + 1e7)
    assert verdict.state is RollOutState.RUNNING
    assert verdict.missing_candidates + verdict.missing_controls == 2000 - len(found[::3])


def test_a_job_is_missing_once_nearly_all_others_would_have_reported():
    found = [replace(time, waited_s=float(number)) for number, time in enumerate(times(0.0, jobs=200))]
    assert find_grace(found) == 2 * 189.0
    assert find_grace(found[:7]) == TICKET_LIFE_S
    assert find_grace([replace(time, waited_s=0.0) for time in found]) == 60.0


def test_made_up_jobs_end_nothing(store):
    (rollout,) = store.revisions.rollouts()
    for time in times(-0.5, jobs=22, rollout=rollout):
        for ticket in ("", "made.up", sample_ticket("other", time.job, issued_s=BEGIN_S, recommendation="b")):
            with pytest.raises(InputError):
                send(store, replace(time, rollout=rollout.id), ticket=ticket)
    assert store.revisions.rollout(rollout.id).state is RollOutState.RUNNING
    assert store.revisions.job_times(rollout.id) == store.revisions.job_starts(rollout.id) == ()


def test_steps_that_cannot_have_been_made_are_refused(store):
    (rollout,) = store.revisions.rollouts()
    time = replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id)
    with pytest.raises(InputError, match=r"20 steps of .* ms take .* s, and the job started 1.6 s ago"):
        send(store, time, now_s=BEGIN_S + 1.6)
    with pytest.raises(InputError, match="another job's"):
        send(store, time, job="job 1")
    with pytest.raises(InputError, match="expired"):
        send(store, time, now_s=BEGIN_S + TICKET_LIFE_S + 1)
    assert store.revisions.job_times(rollout.id) == ()


def test_each_report_is_kept_with_its_sender_and_time(store):
    (rollout,) = store.revisions.rollouts()
    send(store, replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id))
    (kept,) = store.revisions.job_times(rollout.id)
    assert (kept.who, kept.address, kept.waited_s, bool(kept.created)) == ("key one", "10.0.0.7", 50.0, True)
    assert [start.job for start in store.revisions.job_starts(rollout.id)] == ["job 0"], (
        "a job that reports has started"
    )


def test_a_report_that_comes_twice_or_late_changes_nothing(store):
    (rollout,) = store.revisions.rollouts()
    first = replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id)
    assert send(store, first) == send(store, replace(first, step_us=1.0))
    assert len(store.revisions.job_times(rollout.id)) == 1
    store.revisions.activate("b", Actor(who="ann"))
    late = replace(times(0.0, jobs=2, rollout=rollout)[1], rollout=rollout.id)
    send(store, late)
    assert len(store.revisions.job_times(rollout.id)) == 1


def test_a_job_that_had_something_else_does_not_count(store):
    (rollout,) = store.revisions.rollouts()
    time = replace(times(0.0, jobs=1, rollout=rollout)[0], rollout=rollout.id)
    for other in ("", {"a": "b", "b": "a"}[time.recommendation]):
        with pytest.raises(ConflictError, match=r"the roll-out .* gives this job"):
            send(store, time, recommendation=other)
        with pytest.raises(ConflictError, match=r"the roll-out .* gives this job"):
            send(store, replace(time, recommendation=other), recommendation=time.recommendation)
    with pytest.raises(NotFoundError):
        send(store, time, rollout="x")
    assert store.revisions.job_times(rollout.id) == ()


def test_cohorts_differ_in_bits_unless_both_keep_those_of_the_default(tmp_path):
    def publish(store, id, collective):
        rule = Rule(collective=collective, max_bytes=1 << 20, algorithm=Algorithm.RING, protocol=Protocol.LL)
        found = sample_recommendation(id)
        table = replace(found.table, policy=Policy(rules=(rule,)))
        store.revisions.publish(replace(found, table=table))

    with open_store(f"sqlite:///{tmp_path / 'ncclt.db'}") as store:
        publish(store, "a", Collective.ALL_GATHER)
        publish(store, "b", Collective.ALL_GATHER)
        publish(store, "c", Collective.ALL_REDUCE)
        assert describe_cohort_bits(store, ROLLOUT) == ""
        for changed in ({"recommendation": "c"}, {"control": "c"}, {"recommendation": "c", "control": ""}):
            said = describe_cohort_bits(store, replace(ROLLOUT, **changed))
            assert said.startswith("jobs with and without this revision may differ in the last bits: all_reduce")

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
from ncclt.core.rollout import SAME_START_S, ArmState, JobStart, JobTime, RollOutArm, RollOutState, draw
from ncclt.core.ticket import TICKET_LIFE_S
from ncclt.deliver.variant import claim_stored
from ncclt.errors import ConflictError, InputError, NotFoundError
from ncclt.prove.confidence import log_capital
from ncclt.prove.rollout import (
    GUARD,
    describe_cohort_bits,
    fewest_pairs,
    find_grace,
    judge_roll_out,
    paired_gains,
    report_job_time,
    trace_gains,
)
from ncclt.prove.verdict import format_change
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation, sample_roll_out, sample_ticket

BEGIN_S = 1e9
SENDER = {"who": "key one", "address": "10.0.0.7"}
ROLLOUT = sample_roll_out("b")
FOUR = sample_roll_out("b", "c", "d", "e", share=0.8)


def times(*losses, jobs, seed=1, noise=0.02, rollout=ROLLOUT):
    """Return the step times of jobs, those with an arm longer by its share."""
    dice = random.Random(seed)
    longer = {arm.recommendation: 1 + loss for arm, loss in zip(rollout.arms, losses, strict=True)}
    found = []
    for number in range(jobs):
        given = rollout.start(f"job {number}", issued_s=0.0).recommendation
        step_us = 1e5 * math.exp(dice.gauss(0, noise)) * longer.get(given, 1.0)
        found.append(JobTime(rollout="r", job=f"job {number}", recommendation=given, step_us=step_us, steps=20))
    return found


def judge(found, *, rollout=ROLLOUT, started=None, now_s=BEGIN_S + 1e4):
    """Judge reports of jobs, or of some that started, at the same moment, while all arms were served."""
    all_served = sample_roll_out(*[arm.recommendation for arm in rollout.arms])
    starts = [start_of(time, BEGIN_S, rollout=all_served) for time in started or found]
    return judge_roll_out(rollout, found, starts, now_s=now_s)


def test_a_bucket_is_a_function_of_seed_and_job():
    """The numbers are part of the format: replicas of two versions must not disagree in the middle of a job."""
    assert round(draw("seed", "job"), 6) == 0.737969


def test_each_job_is_in_one_pair_at_most():
    found = times(0.0, jobs=400)
    gains = paired_gains(ROLLOUT, 0, found)
    candidates = sum(time.recommendation == "b" for time in found)
    assert 0.7 * min(candidates, 400 - candidates) <= len(gains) <= min(candidates, 400 - candidates)


def test_pairs_do_not_depend_on_the_times():
    found = times(0.0, jobs=100)
    other = [replace(time, step_us=time.step_us * (2 if time.recommendation == "b" else 1)) for time in found]
    assert paired_gains(ROLLOUT, 0, other) == pytest.approx([g - math.log(2) for g in paired_gains(ROLLOUT, 0, found)])


def test_a_steady_drift_favours_neither_side(subtests):
    """Each candidate after its partner would lose by the drift between them."""
    cases = [10, 50, 90]
    for percent in cases:
        with subtests.test(percent=percent):
            rollout = sample_roll_out("b", share=percent / 100)
            found = times(0.0, jobs=4000, noise=0.0, rollout=rollout)
            drifting = [replace(time, step_us=time.step_us * 1.001**place) for place, time in enumerate(found)]
            gains = paired_gains(rollout, 0, drifting)
            assert min(gains) < 0 < max(gains)
            assert abs(sum(gain > 0 for gain in gains) / len(gains) - 0.5) < 0.1
            assert abs(sum(map(math.copysign, [1.0] * len(gains), gains))) < 4 * len(gains) ** 0.5


def test_what_a_difference_leads_to(subtests):
    cases = [
        (0.05, ArmState.LOST, RollOutState.LOST, "slower by more than 1 %"),
        (0.0, ArmState.FUTILE, RollOutState.ENDED, "no gain of 2 % or more: steps are about as fast"),
        (-0.05, ArmState.WON, RollOutState.WON, "are faster"),
        (-0.004, ArmState.RUNNING, RollOutState.RUNNING, "undecided"),
    ]
    for loss, state, ends, words in cases:
        with subtests.test(loss=loss, state=state):
            verdict = judge(times(loss, jobs=50 if state is ArmState.RUNNING else 600))
            (arm,) = verdict.arms
            assert (arm.state, verdict.state) == (state, ends)
            assert words in arm.reason
            assert verdict.reason == arm.reason
            assert arm.reports + verdict.controls in (50, 600)


@pytest.mark.parametrize(("share", "factor"), [(0.15, 2.0), (0.05, 3.0), (0.3, 1.3)])
def test_an_arm_that_slows_some_jobs_by_more_than_it_saves_in_the_others_does_not_win(share, factor):
    dice = random.Random(1)
    reports = [
        replace(time, step_us=time.step_us * factor) if time.recommendation == "b" and dice.random() < share else time
        for time in times(-0.05, jobs=2000)
    ]
    assert all(judge(reports[:jobs]).state is not RollOutState.WON for jobs in range(200, 2001, 200))


def test_each_arm_is_decided_by_itself():
    verdict = judge(times(0.06, 0.0, -0.002, -0.06, jobs=1500, rollout=FOUR), rollout=FOUR)
    states = {arm.recommendation: arm.state for arm in verdict.arms}
    assert (states["b"], states["e"], verdict.state) == (ArmState.LOST, ArmState.WON, RollOutState.WON)
    assert states["c"] in (ArmState.FUTILE, ArmState.RUNNING)
    (won,) = [arm for arm in verdict.arms if arm.state is ArmState.WON]
    assert 1 < won.gain.interval[0] < 1 / 0.94 < won.gain.interval[1]
    assert verdict.reason == won.reason


def test_the_error_is_shared_by_the_arms():
    """What suffices to decide about one arm does not for one of four: each has a quarter of the error."""
    found = times(-0.05, jobs=600)
    enough = next(n for n in range(20, 600) if judge(found[:n]).state is RollOutState.WON)
    others = tuple(RollOutArm(recommendation=id, share=0.0) for id in "cde")
    assert judge(found[:enough], rollout=replace(ROLLOUT, arms=(*ROLLOUT.arms, *others))).state is RollOutState.RUNNING


def test_controls_that_started_while_the_arm_was_paused_are_not_compared():
    """The cluster was slow while the arm was paused; compared with that, the arm would win."""
    found = times(0.0, jobs=600)
    starts = [start_of(time, BEGIN_S) for time in found]
    for number in range(600):
        if found[number].recommendation == "a" and number % 2:
            found[number] = replace(found[number], step_us=1.5 * found[number].step_us)
            starts[number] = replace(starts[number], running=())
    verdict = judge_roll_out(ROLLOUT, found, starts, now_s=BEGIN_S + 1e4)
    assert verdict.state is RollOutState.ENDED
    all_running = [replace(start, running=(0,)) for start in starts]
    assert judge_roll_out(ROLLOUT, found, all_running, now_s=BEGIN_S + 1e4).state is RollOutState.WON


def test_the_trace_of_a_gain_ends_with_the_verdict_s():
    jobs = times(-0.05, jobs=60)
    starts = [start_of(time, BEGIN_S) for time in jobs]
    traced = trace_gains(ROLLOUT, 0, jobs, starts, most=5)
    verdict = judge_roll_out(ROLLOUT, jobs, starts, now_s=BEGIN_S)
    assert traced[-1] == (60, verdict.arms[0].gain)
    assert [reports for reports, _ in traced] == [16, 32, 48, 60]


def test_a_win_needs_the_fewest_pairs_at_least():
    assert [fewest_pairs(arms) for arms in (1, 4)] == [123, 153]


def test_an_undecided_arm_has_one_change_and_names_its_open_condition():
    found = times(-0.03, jobs=100)
    verdicts = [judge(found[:jobs]).arms[0] for jobs in range(10, 100, 10)]
    undecided = [arm for arm in verdicts if arm.reason.startswith("undecided")]
    assert {arm.gain.interval[0] > 1 for arm in undecided} == {True, False}
    for arm in undecided:
        assert arm.reason.startswith(f"undecided: {format_change(1 / arm.gain.estimate)} time")
        condition = "; a win needs 99 % confidence that steps are faster"
        assert arm.reason.endswith(condition) == (arm.gain.interval[0] > 1)


def test_few_jobs_decide_nothing():
    assert judge([]).reason == "no pair of jobs to compare yet, 0 reports from jobs with it"
    assert judge(times(1.0, jobs=8)).state is RollOutState.RUNNING


def test_the_cost_is_the_loss_of_the_arm_and_its_missing_jobs():
    found = [replace(time, waited_s=3600.0) for time in times(0.25, jobs=40, noise=1e-4)]
    verdict = judge(found[:16])
    with_it = verdict.arms[0].reports
    assert verdict.gpu_h == pytest.approx(16 * 8)
    assert verdict.cost_gpu_h == pytest.approx(with_it * 8 * 0.2, rel=0.01), "a fifth of the longer time is lost"
    assert verdict.budget_gpu_h == pytest.approx(0.005 * 16 * 8)
    hung = judge([time for time in found if time.recommendation == "a"], started=found, now_s=BEGIN_S + 1e7)
    assert hung.cost_gpu_h > 0.8 * 8 * sum(time.recommendation == "b" for time in found)


def test_an_arm_above_its_budget_pauses_until_others_catch_up():
    found = [replace(time, waited_s=3600.0) for time in times(0.009, jobs=16, noise=1e-4)]
    (arm,) = judge(found, rollout=replace(ROLLOUT, max_cost=0.001)).arms
    assert (arm.state, "paused: cost" in arm.reason) == (ArmState.PAUSED, True)
    (arm,) = judge(found, rollout=replace(ROLLOUT, max_cost=0.5)).arms
    assert arm.state is ArmState.RUNNING


def test_the_budget_is_split_and_what_a_dropped_arm_cost_is_gone():
    two = sample_roll_out("b", "c", share=0.6)
    found = [replace(time, waited_s=3600.0) for time in times(0.009, 0.0, jobs=30, noise=1e-4, rollout=two)]
    limit = 0.009 * sum(time.recommendation == "b" for time in found) / 30
    for max_cost, state in ((1.5 * limit, ArmState.PAUSED), (2.5 * limit, ArmState.RUNNING)):
        assert judge(found, rollout=replace(two, max_cost=max_cost)).arms[0].state is state
    lost = replace(two, max_cost=0.9 * limit, arms=(replace(two.arms[0], state=ArmState.LOST), two.arms[1]))
    verdict = judge(found, rollout=lost)
    assert verdict.arms[0].state is ArmState.LOST
    assert verdict.cost_gpu_h > verdict.budget_gpu_h


def test_an_arm_may_have_as_many_starts_without_a_report_as_reports(subtests):
    found = times(0.0, jobs=60)
    with_it = [time for time in found if time.recommendation == "b"]
    for reports, unreported, state in [(0, 2, ArmState.PAUSED), (6, 5, ArmState.RUNNING), (6, 6, ArmState.PAUSED)]:
        with subtests.test(reports=reports, unreported=unreported):
            (arm,) = judge(with_it[:reports], started=with_it[: reports + unreported], now_s=BEGIN_S + 1).arms
            assert (arm.state, arm.most_unreported) == (state, max(reports, 2))


def test_an_arm_whose_first_jobs_never_report_ends():
    """Without it the roll-out would wait for reports that cannot come."""
    found = times(0.0, jobs=60)
    hung = [time for time in found if time.recommendation == "b"][:2]
    reports = [time for time in found if time.recommendation == "a"]
    (arm,) = judge(reports, started=reports + hung, now_s=BEGIN_S + TICKET_LIFE_S).arms
    assert arm.state is ArmState.PAUSED
    verdict = judge(reports, started=reports + hung, now_s=BEGIN_S + TICKET_LIFE_S + 1)
    assert (verdict.arms[0].state, verdict.state) == (ArmState.ENDED, RollOutState.ENDED)
    assert verdict.reason.startswith("2 starts never reported; ")


def test_an_arm_ends_only_when_the_last_ticket_without_a_report_ran_out():
    found = times(0.0, jobs=60)
    early, late = [time for time in found if time.recommendation == "b"][:2]
    reports = [time for time in found if time.recommendation == "a"]
    issued_s = {early.job: BEGIN_S, late.job: BEGIN_S + 1000}
    starts = [start_of(time, issued_s.get(time.job, BEGIN_S)) for time in [*reports, early, late]]
    for now_s, state in (
        (BEGIN_S + TICKET_LIFE_S + 1, ArmState.PAUSED),
        (BEGIN_S + TICKET_LIFE_S + 1001, ArmState.ENDED),
    ):
        assert judge_roll_out(ROLLOUT, reports, starts, now_s=now_s).arms[0].state is state


def test_where_few_controls_report_an_arm_may_lack_as_many():
    found = times(0.0, jobs=80)
    reports = [time for number, time in enumerate(found) if number % 2]
    (arm,) = judge(reports, started=found, now_s=BEGIN_S + 1e7).arms
    assert arm.most_unreported == pytest.approx(2 * arm.reports, abs=arm.reports / 2)


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
        opened.revisions.publish(sample_recommendation("b"), for_rollout=True)
        opened.revisions.approve("b", Actor(who="ann"), percent=50, max_cost=1.0)
        yield opened


def limit_cost(store):
    """Begin the roll-out again, with the default budget."""
    store.revisions.retire("b", Actor(who="ann"))
    store.revisions.publish(sample_recommendation("c"), for_rollout=True)
    return store.revisions.rollout(store.revisions.approve("c", Actor(who="ann"), percent=50))


def report(store, loss, *, jobs, hung=0.0):
    """Start a job a minute and report those that do not hang until the roll-out ends; return how many started."""
    rollout = store.revisions.rollouts()[0]
    hanging = 0.0
    for number, time in enumerate(times(loss, jobs=jobs, rollout=rollout)):
        issued_s = BEGIN_S + 60.0 * number
        start = store.revisions.claim_start(rollout.id, time.job, issued_s=issued_s)
        if start is None:
            return number
        if start.recommendation not in ("", rollout.control):
            hanging += hung
            if hanging >= 1:
                hanging -= 1
                continue
        slower = 1.0 if start.recommendation == time.recommendation else 1 / (1 + loss)
        time = replace(time, rollout=rollout.id, recommendation=start.recommendation, step_us=slower * time.step_us)
        if send(store, time, issued_s=issued_s, now_s=issued_s + 50.0).state is not RollOutState.RUNNING:
            return number + 1
    return jobs


def start_of(time, issued_s, *, rollout=ROLLOUT):
    return JobStart(
        rollout=time.rollout,
        job=time.job,
        recommendation=time.recommendation,
        issued_s=issued_s,
        running=rollout.running,
    )


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
    assert "no report from 0 of" in event.why
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


def test_a_candidate_that_hangs_its_jobs_is_lost_however_fast_the_others_are(store):
    assert report(store, -0.1, jobs=400, hung=0.3) < 250
    event = store.revisions.history()[0]
    assert (event.action, "jobs with it hang or fail: no report from" in event.why) == (Action.ROLL_OUT_LOST, True)
    assert {one.id: one.state for one in store.revisions.statuses()} == {"a": "active", "b": "retired"}


@pytest.mark.parametrize(("hung", "most"), [(0.3, 9), (1.0, 2)])
def test_a_candidate_that_hangs_its_jobs_pauses_within_its_budget(store, hung, most):
    rollout = limit_cost(store)
    assert report(store, -0.1, jobs=150, hung=hung) == 150
    (arm,) = store.revisions.rollout(rollout.id).arms
    reported = {time.job for time in store.revisions.job_times(rollout.id)}
    starts = store.revisions.job_starts(rollout.id)
    assert arm.state is ArmState.PAUSED
    assert 0 < sum(start.job not in reported for start in starts) <= most
    assert len({start.running for start in starts}) == 2


def test_slow_jobs_that_hang_make_no_win():
    """What reports is faster than the others, since what would have been slow does not report."""
    found = times(0.0, jobs=600)
    slow = sorted(time.step_us for time in found)[420]
    reports = [time for time in found if time.recommendation == "a" or time.step_us < slow]
    starts = [start_of(time, BEGIN_S) for time in found]
    gains = paired_gains(ROLLOUT, 0, reports)
    assert float(log_capital(np.array(gains))) > math.log(100), "by their times alone it would have won"
    assert judge_roll_out(ROLLOUT, reports, starts, now_s=BEGIN_S + 1e4).state is RollOutState.LOST
    assert judge_roll_out(ROLLOUT, reports, starts, now_s=BEGIN_S).state is not RollOutState.WON


def test_jobs_that_no_side_reports_decide_nothing():
    """Not all launchers report; whether they do has nothing to do with what they got."""
    found = times(0.0, jobs=2000)
    starts = [start_of(time, BEGIN_S) for time in found]
    verdict = judge_roll_out(replace(ROLLOUT, min_effect=0.0), found[::3], starts, now_s=BEGIN_S + 1e7)
    assert verdict.state is RollOutState.RUNNING
    assert verdict.arms[0].missing + verdict.missing_controls == 2000 - len(found[::3])


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
        with pytest.raises(ConflictError, match=r"the job started with"):
            send(store, time, recommendation=other)
        with pytest.raises(ConflictError, match=r"the job started with"):
            send(store, replace(time, recommendation=other), recommendation=time.recommendation)
    with pytest.raises(NotFoundError):
        send(store, time, rollout="x")
    assert store.revisions.job_times(rollout.id) == ()


def test_a_second_start_of_a_name_never_gets_the_first_ones_arm(store):
    (rollout,) = store.revisions.rollouts()
    job = next(name for name in map(str, range(99)) if rollout.find_arm(name) is not None)
    first = claim_stored(store, rollout, job, now_s=BEGIN_S, has_ticket=True)
    assert first.recommendation == "b"
    for has_ticket in (True, False):
        for age_s, start in ((SAME_START_S - 1, first), (SAME_START_S, None)):
            assert claim_stored(store, rollout, job, now_s=BEGIN_S + age_s, has_ticket=has_ticket) == start


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
        for rollout in (
            sample_roll_out("c"),
            sample_roll_out("b", "c"),
            sample_roll_out("b", control="c"),
            sample_roll_out("c", control=""),
        ):
            said = describe_cohort_bits(store, rollout)
            assert said.startswith("jobs of this roll-out may differ in the last bits: all_reduce")

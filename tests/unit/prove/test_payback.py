"""What a proven gain is worth, and when a study has paid for itself."""

from dataclasses import replace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.prove.payback import (
    UNREACHABLE,
    communication_effect,
    describe_ceiling,
    describe_cost,
    estimate_gain,
    step_gain,
)
from ncclt.testing.samples import sample_study, sample_trial

VERDICT = Verdict(
    decision=Decision.TUNED, reason="", speedup=1.25, interval=(1.0, 2.0), blocks=4, default_us=10_000, policy_us=7_990
)
WORKLOAD = Workload(
    name="w",
    messages=(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << 20), calls_per_step=1
        ),
    ),
    provenance=Provenance(source="test"),
)


def study_of(**workload):
    """A study of a workload on 8 GPUs."""
    cluster = replace(sample_study().cluster, gpus_per_node=8).sized(nodes=1)
    sent = replace(WORKLOAD, **workload)
    return replace(sample_study(), cluster=cluster, workload=sent, simulated=False, launcher="slurm")


def launches(wall_s):
    """One launch of so many seconds."""
    trial = sample_trial(0)
    return [replace(trial, result=replace(trial.result, wall_s=wall_s))]


def test_time_saved_follows_from_the_speed_up_and_its_interval():
    """Not from the two medians, of which another speed-up would follow."""
    gain = estimate_gain(study_of(), launches(4.5), VERDICT)
    assert gain.saved_us == pytest.approx((2000, 0, 5000))
    assert gain.words == (
        "2 ms per step (0 to 5) of 10 ms communication; upper bound on step-time savings (assumes no overlap)"
    )


def test_steps_follow_from_cost_and_gain():
    """36 GPU seconds on 8 GPUs, 2 ms saved on each in every step; by the lower end of the interval nothing is."""
    study = study_of()
    gain = estimate_gain(study, launches(4.5), VERDICT)
    assert gain.payback_steps == (pytest.approx(2250), pytest.approx(900), None)
    assert gain.payback_hours == pytest.approx(2250 / 3600)
    assert "(assumes 1 step/s; set --steps-per-day)" in gain.worth
    assert describe_cost(study, launches(4.5), gain) == (
        "36 GPU-seconds, paid back after at least 38 minutes of training (15 minutes or more; 2,250 steps)"
    )


def test_a_week_has_as_many_steps_as_asked_as_recorded_or_as_assumed():
    """2 ms on 8 GPUs."""
    per_step_h = 0.002 * 8 / 3600
    asked = estimate_gain(study_of(), [], VERDICT, steps_per_day=1000)
    recorded = estimate_gain(study_of(step_time_us=100_000), [], VERDICT)
    assumed = estimate_gain(study_of(), [], VERDICT)
    assert asked.gpu_hours_per_week == pytest.approx(7000 * per_step_h)
    assert asked.worth.endswith("at 1,000 steps/day")
    assert recorded.gpu_hours_per_week == pytest.approx(7 * 864_000 * per_step_h)
    assert "(assumes 100 ms per step, around the clock; set --steps-per-day)" in recorded.worth
    assert assumed.gpu_hours_per_week == pytest.approx(7 * 86_400 * per_step_h)


def test_only_what_is_exposed_can_be_saved():
    """A tenth of the communication exposed: ten times the steps; never more than all of it."""
    gain = estimate_gain(study_of(exposed_us=1_000, step_time_us=50_000), launches(4.5), VERDICT)
    assert gain.payback_steps[0] == pytest.approx(22_500)
    assert gain.words.endswith("communication; steps are 0.2 ms (0.4 %) shorter")
    exposed = estimate_gain(study_of(exposed_us=99_000), launches(4.5), VERDICT)
    assert exposed.shorter_us == pytest.approx((2000, 0, 5000))


def test_the_exposed_share_is_that_of_the_recording():
    """Its exposed time over its communication, not over that of the cluster that is tuned."""
    recorded = tuple(replace(calls, recorded_us=1_500) for calls in WORKLOAD.messages)
    gain = estimate_gain(study_of(messages=recorded, exposed_us=1_000, step_time_us=50_000), launches(4.5), VERDICT)
    assert gain.exposed == pytest.approx(2 / 3)
    assert "67 % of the communication is exposed" in gain.words


def test_the_least_effect_is_one_of_the_step_where_that_is_known(subtests):
    cases = [
        ({}, 0.02),  # of the communication: the step is not known
        ({"exposed_us": 50_000, "step_time_us": 100_000}, 0.04082),
        ({"exposed_us": 1_000, "step_time_us": 100_000}, UNREACHABLE),
        ({"exposed_us": 50_000, "step_time_us": 100_000, "provenance": Provenance(source="t", whole_file=True)}, 0.02),
    ]
    for recorded, effect in cases:
        with subtests.test(recorded=recorded, effect=effect):
            workload = replace(WORKLOAD, **recorded)
            found = communication_effect(workload, 0.02)
            assert found == pytest.approx(effect, rel=1e-3)
            if 0.02 < found < UNREACHABLE:
                assert step_gain(workload, 1 + found) == pytest.approx(1 - 1 / 1.02)


def test_the_ceiling_is_what_is_exposed():
    assert describe_ceiling(replace(WORKLOAD, exposed_us=13_000, step_time_us=220_000)) == (
        "at most 13 ms (5.9 %) per step, the exposed communication of the recording"
    )
    assert describe_ceiling(replace(WORKLOAD, exposed_us=13_000)).startswith("at most 13 ms per step")
    assert describe_ceiling(WORKLOAD) == ""


def test_nothing_to_pay_back(subtests):
    """Without a gain there is no such number."""
    cases = [replace(VERDICT, decision=Decision.KEEP_DEFAULT), replace(VERDICT, decision=Decision.UNDECIDED), None]
    for verdict in cases:
        with subtests.test(verdict=verdict):
            assert estimate_gain(study_of(), launches(4.5), verdict) is None


def test_where_nothing_was_launched_nothing_is_paid_back():
    gain = estimate_gain(study_of(), [], VERDICT)
    assert (gain.payback_steps, gain.payback_hours) == (None, None)
    assert describe_cost(study_of(), [], gain) == ""


def test_what_launches_cost_is_said_in_seconds_below_a_tenth_of_an_hour(subtests):
    """8 GPUs; what a simulated study would have cost is no cost."""
    cases = [(44.99, "360 GPU-seconds"), (45.0, "0.1 GPU-hours"), (4500.0, "10 GPU-hours")]
    for wall_s, amount in cases:
        with subtests.test(wall_s=wall_s, amount=amount):
            study = study_of()
            simulated = replace(study, simulated=True)
            assert describe_cost(simulated, launches(wall_s), None) == f"about {amount} on a real cluster"
            said = describe_cost(study, launches(wall_s), estimate_gain(study, launches(wall_s), VERDICT))
            assert said.startswith(f"{amount}, paid back after ")

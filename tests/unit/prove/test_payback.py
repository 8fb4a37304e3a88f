"""When a study has paid for itself."""

from dataclasses import replace

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.prove.payback import cost_words, payback
from ncclt.testing.store_contract import sample_study, sample_trial

VERDICT = Verdict(
    decision=Decision.TUNED, reason="", speedup=1.25, interval=(1.0, 2.0), blocks=4, default_us=10_000, policy_us=8_000
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


def test_steps_follow_from_cost_and_gain():
    """36 GPU seconds on 8 GPUs, 2 ms saved on each in every step; by the lower end of the interval nothing is."""
    found = payback(VERDICT, WORKLOAD, gpu_s=36.0, gpus=8)
    assert (found.steps, found.low, found.high) == (pytest.approx(2250), pytest.approx(900), None)
    assert found.words.startswith("pays back after 2,250 steps (900 or more), if no communication is hidden")


def test_only_what_is_exposed_can_be_saved():
    """A tenth of the communication exposed: ten times the steps; never more than all of it."""
    found = payback(VERDICT, replace(WORKLOAD, exposed_us=1_000), gpu_s=36.0, gpus=8)
    assert found.steps == pytest.approx(22_500)
    assert "10 % of the communication exposed" in found.words
    assert payback(VERDICT, replace(WORKLOAD, exposed_us=99_000), gpu_s=36.0, gpus=8).exposed == 1.0


@pytest.mark.parametrize(
    ("verdict", "gpu_s"),
    [
        (replace(VERDICT, decision=Decision.KEEP_DEFAULT), 36.0),
        (replace(VERDICT, decision=Decision.UNDECIDED), 36.0),
        (VERDICT, 0.0),
    ],
)
def test_nothing_to_pay_back(verdict, gpu_s):
    """Without a gain, or where nothing was launched, there is no such number."""
    assert payback(verdict, WORKLOAD, gpu_s=gpu_s, gpus=8) is None


@pytest.mark.parametrize(
    ("wall_s", "amount"), [(14.99, "360 GPU seconds"), (15.0, "0.10 GPU hours"), (1500.0, "10.00 GPU hours")]
)
def test_what_launches_cost_is_said_in_seconds_below_a_tenth_of_an_hour(wall_s, amount):
    """24 GPUs; what a simulated study would have cost is no cost."""
    study = replace(sample_study(), cluster=sample_study().cluster.sized(nodes=6))
    trial = sample_trial(0)
    trials = [replace(trial, result=replace(trial.result, wall_s=wall_s))]
    assert cost_words(study, trials, None) == f"SIMULATED, about {amount} on a real cluster"
    assert cost_words(replace(study, simulated=False), trials, VERDICT).startswith(f"{amount}; it pays back after ")

"""The one command that uses a recommendation."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import Form
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Verdict
from ncclt.deliver.render.delivery import choose_form
from ncclt.testing.samples import sample_recommendation

RING = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),))


def judged(policy, decision, speedup=1.1, interval=(1.05, 1.15)):
    """A policy with a verdict."""
    verdict = Verdict(
        decision=decision, reason="", speedup=speedup, interval=interval, blocks=6, default_us=100.0, policy_us=90.0
    )
    return PolicyVerdict(policy=policy, verdict=verdict)


MEASURED = replace(sample_recommendation("rec"), simulated=False, launcher="slurm")
PER_SIZE = MEASURED.table.policy
TABLE = judged(PER_SIZE, Decision.TUNED)


def test_the_form_is_chosen_by_what_was_proven(subtests):
    """Variables where their speed-up is within the table's interval; never what was not proven."""
    for table, variables, form in [
        (TABLE, None, Form.TABLE),
        (TABLE, judged(RING, Decision.TUNED, 1.06), Form.VARIABLES),
        (TABLE, judged(RING, Decision.TUNED, 1.04), Form.TABLE),
        (TABLE, judged(RING, Decision.KEEP_DEFAULT, 1.12), Form.TABLE),
        (judged(PER_SIZE, Decision.KEEP_DEFAULT), judged(RING, Decision.TUNED, 1.04), Form.VARIABLES),
        (judged(PER_SIZE, Decision.KEEP_DEFAULT), None, None),
        (judged(PER_SIZE, Decision.UNDECIDED), judged(RING, Decision.UNDECIDED), None),
    ]:
        with subtests.test(table=table, variables=variables, form=form):
            used = choose_form(replace(MEASURED, table=table, variables=variables))
            assert used.form is form
            assert used.proven == (variables if form is Form.VARIABLES else table)
            begins = {Form.TABLE: "ncclt run --cluster ", Form.VARIABLES: 'eval "$(ncclt env --cluster '}
            assert used.command.startswith(begins[form]) if form else used.command == ""


def test_the_command_names_job_and_store_and_builds_what_is_missing():
    found = replace(MEASURED, cluster="my pair")
    place = found.fingerprint
    used = choose_form(found, source=" --storage sqlite:////s.db", build=True)
    assert used.command == (
        f"ncclt admin plugin build && ncclt run --cluster 'my pair' --model toy --nodes 2 --gpus-per-node "
        f"{place.gpus_per_node} --nccl-version {place.nccl_version} --storage sqlite:////s.db "
        f"--shared . --job NAME -- torchrun --nnodes=2 --nproc-per-node={place.gpus_per_node} train.py"
    )
    assert "plugin build" not in choose_form(replace(found, variables=judged(RING, Decision.TUNED)), build=True).command


@pytest.mark.parametrize("elsewhere", [{"simulated": True, "launcher": "simulate"}, {"launcher": "replay"}])
def test_a_demonstration_names_no_command(elsewhere):
    used = choose_form(replace(MEASURED, **elsewhere))
    assert (used.form, used.command) == (Form.TABLE, "")
    assert used.why.endswith("timings are a demonstration")


def test_what_cannot_be_used_says_why():
    found = MEASURED
    old = replace(found, fingerprint=replace(found.fingerprint, nccl_version="2.18.3"))
    stale = replace(found, stale="the driver changed")
    only_process_wide = replace(found, table=judged(Policy(parameters=(("BUFFSIZE", 1 << 20),)), Decision.TUNED))
    for one, why in ((old, "or later, not 2.18.3"), (stale, "the driver changed"), (only_process_wide, "process-wide")):
        used = choose_form(one)
        assert (used.form, used.command) == (None, "")
        assert why in used.why

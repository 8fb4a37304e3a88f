"""What a job is given in a roll-out: by its name alone, from the store as from any answer of a service."""

import json
from dataclasses import replace

import pytest

from ncclt.client.answer import checked_document
from ncclt.core.recommendation import Decision, Request
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import FIRST_STARTS, Reason, Variant
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.answer import AnswerSource, answer_from_recommendation, request_answer
from ncclt.deliver.job_info import name_for_rollout
from ncclt.deliver.render.formats import render
from ncclt.deliver.variant import choose_variant, serve_from_store
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation, sample_roll_out

ACTIVE, NEW = (sample_recommendation(id) for id in ("a", "b"))
ROLLOUT = sample_roll_out("b")
ASKED = Request(
    cluster="pair", model="toy", nodes=2, gpus_per_node=4, nccl_version="2.28.9", allowed=frozenset(TimesOrigin)
)


def claim(rollout, job):
    return rollout.start(job, issued_s=0.0)


def job_of(id, rollout=ROLLOUT):
    return next(name for name in map(str, range(99)) if claim(rollout, name).recommendation == id)


def chosen(recommendation, rollouts, job, *, claim=claim, **more):
    return choose_variant(recommendation, rollouts, job, claim=claim, **more)


def test_without_a_roll_out_every_job_gets_the_active_one():
    found = chosen(ACTIVE, (), "1")
    assert (found.recommendation, found.variant, found.reason, found.rollout) == (
        ACTIVE,
        Variant.ACTIVE,
        Reason.TARGETING_MATCH,
        "",
    )


@pytest.mark.parametrize(("variant", "id"), [(Variant.CANDIDATE, "b"), (Variant.ACTIVE, "a")])
def test_a_roll_out_gives_each_job_one_of_two(variant, id):
    found = chosen(ACTIVE, [(ROLLOUT, (NEW,))], job_of(id))
    assert (found.recommendation.id, found.variant, found.rollout, found.running) == (id, variant, "f00d", (0,))


def test_each_job_gets_one_of_several_arms():
    third = sample_recommendation("c")
    rollout = sample_roll_out("b", "c")
    for id in "abc":
        assert chosen(ACTIVE, [(rollout, (NEW, third))], job_of(id, rollout)).recommendation.id == id


def test_a_job_that_cannot_be_noted_gets_the_control():
    found = chosen(ACTIVE, [(ROLLOUT, (NEW,))], job_of("b"), claim=lambda rollout, job: None)
    assert (found.recommendation, found.variant, found.rollout) == (ACTIVE, Variant.ACTIVE, "")


def test_a_job_without_a_name_has_no_part_in_it():
    assert chosen(ACTIVE, [(ROLLOUT, (NEW,))], "") == chosen(ACTIVE, (), "")


def test_a_stale_candidate_is_given_to_nobody():
    found = chosen(ACTIVE, [(ROLLOUT, (replace(NEW, stale="gone"),))], job_of("b"))
    assert (found.recommendation, found.reason, found.rollout) == (ACTIVE, Reason.STALE, "")


def test_a_roll_out_for_other_jobs_is_not_theirs():
    other = replace(ROLLOUT, control="z")
    assert chosen(ACTIVE, [(other, (NEW,))], job_of("b")).recommendation is ACTIVE


def test_where_nothing_is_active_the_others_keep_nccls_own_choice():
    rollout = replace(ROLLOUT, control="")
    found = chosen(NEW, [(rollout, (NEW,))], job_of("", rollout))
    assert (found.variant, found.reason, found.rollout) == (Variant.DEFAULT, Reason.DEFAULT, "f00d")
    assert found.recommendation.table.verdict.decision is Decision.KEEP_DEFAULT
    answer = answer_from_recommendation(found.recommendation, found.to_document())
    assert (answer.variables, answer.table, answer.rollout, answer.variant) == ((), "", "f00d", "default")


@pytest.mark.parametrize("rollouts", [(), [(ROLLOUT, (NEW,))]])
def test_where_delivery_is_switched_off_every_job_keeps_nccls_own_choice(rollouts):
    for id in "ab":
        found = chosen(ACTIVE, rollouts, job_of(id), delivery=False)
        assert (found.variant, found.reason, found.rollout) == (Variant.DEFAULT, Reason.DISABLED, "")
        answer = answer_from_recommendation(found.recommendation, found.to_document())
        assert (answer.variables, answer.table, answer.variant) == ((), "", "default")
        assert "delivery on pair is switched off" in render(found.recommendation, format="export")


def test_a_store_that_is_switched_off_delivers_nothing_until_it_is_on_again(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    with open_store(url) as store:
        store.revisions.publish(sample_recommendation("a"))
        for delivery, reason in ((False, Reason.DISABLED), (True, Reason.TARGETING_MATCH)):
            store.revisions.set_rules(ClusterRules(cluster="pair", delivery=delivery), Actor(who="ann"))
            assert serve_from_store(url, ASKED, with_ticket=True)[0].reason is reason
            event = store.revisions.history(cluster="pair")[0]
            assert event.why.startswith(f"delivery switched {'on' if delivery else 'off'}, ")
        store.revisions.set_rules(ClusterRules(cluster="other", delivery=False), Actor(who="ann"))
    assert serve_from_store(url, ASKED, with_ticket=True)[0].reason is Reason.TARGETING_MATCH


def test_an_answer_says_so_and_what_it_may_not_say_is_refused():
    found = chosen(ACTIVE, [(ROLLOUT, (NEW,))], job_of("b"))
    document = json.loads(render(found.recommendation, format="json", said=found.to_document()))
    known = checked_document(document, "2.28.9")
    assert [known[name] for name in ("variant", "reason", "rollout")] == ["candidate", "TARGETING_MATCH", "f00d"]
    for name in ("variant", "reason", "rollout"):
        with pytest.raises(ValueError, match=f"{name} is"):
            checked_document(document | {name: "$(reboot)"}, "2.28.9")
    older = {name: value for name, value in document.items() if name not in ("variant", "reason", "rollout")}
    assert "variant" not in checked_document(older, "2.28.9")


def test_a_store_gives_each_job_what_its_name_says(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    with open_store(url) as store:
        store.revisions.publish(sample_recommendation("a"))
        store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
        store.revisions.publish(sample_recommendation("b"))
        (rollout,) = store.revisions.rollouts()
    arm = [job for job in map(str, range(20)) if rollout.find_arm(job) == 0]
    for number, job in enumerate([*arm[:4], *{str(n) for n in range(20)} - set(arm)]):
        wanted = "b" if number < FIRST_STARTS else "a"
        if job in arm:
            early, own = serve_from_store(url, replace(ASKED, job=job), with_ticket=False)
            assert (early.recommendation.id, early.rollout, own) == ("a", "", {}), "a hang would go unseen"
        source = AnswerSource(storage=url, timeout_s=60.0)
        answer = request_answer(replace(ASKED, job=job), source, from_cache=False, warn=print)
        assert (answer.recommendation, answer.rollout) == (wanted, rollout.id)
        for with_ticket in (True, False) if job in arm else (True,):
            again, _ = serve_from_store(url, replace(ASKED, job=job), with_ticket=with_ticket)
            assert (again.recommendation.id, again.rollout) == (wanted, rollout.id), "all ranks get the same"
    assert serve_from_store(url, ASKED, with_ticket=True)[0].recommendation.id == "a"


def test_the_name_of_a_job_is_one_on_which_its_processes_agree(subtests):
    for environ, argv, name in [
        ({}, (), ""),
        ({"SLURM_JOB_ID": "7"}, (), "Slurm job 7 start 0"),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_CLUSTER_NAME": "x"}, (), "Slurm job 7 of x start 2"),
        ({"SLURM_JOB_ID": "7"}, ("srun", "train"), "Slurm job 7 start 0"),
        ({"SLURM_JOB_ID": "7"}, ("torchrun", "--nnodes", "2", "train"), ""),
        ({"SLURM_JOB_ID": "7"}, ("torchrun", "--nnodes", "2", "--rdzv-id", "r", "train"), "rendezvous r"),
        ({"SLURM_JOB_ID": "7", "RANK": "3", "WORLD_SIZE": "8"}, ("python", "train.py"), ""),
        ({"NCCLT_JOB": "mine"}, ("torchrun", "--nnodes", "2", "train"), "named mine"),
        ({"NCCLT_JOB": " "}, (), ""),
        ({"OMPI_MCA_ess_base_jobid": "9", "SLURM_JOB_ID": "7"}, (), "Open MPI job 9"),
    ]:
        with subtests.test(environ=environ, argv=argv, name=name):
            assert name_for_rollout(environ, argv) == name


def test_all_ranks_of_a_step_have_one_name():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "8"}
    names = {name_for_rollout({**step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 4)}) for rank in range(8)}
    assert names == {"Slurm step 7.0 start 0"}

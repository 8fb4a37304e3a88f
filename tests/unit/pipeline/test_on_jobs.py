"""Tuning by a roll-out of candidates, without a launch."""

from dataclasses import replace

import pytest

from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, Request
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import ArmState
from ncclt.core.study import StudyState
from ncclt.deliver.variant import serve_from_store
from ncclt.errors import ConflictError
from ncclt.pipeline.candidates import UNTRIED
from ncclt.pipeline.on_jobs import describe_started, describe_study, plan_on_jobs, start_on_jobs

ADA, BOB = Actor(who="ada"), Actor(who="bob")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ncclt.db'}"


def plan_for(store, **how):
    cluster = store.clusters.get("leonardo").sized(nodes=2, gpus_per_node=4, nccl_version=None)
    options = {"by_plugin": True, "deterministic": False} | how
    return plan_on_jobs(store.workloads.get("bert"), cluster, store, **options)


def test_a_plan_stores_nothing_and_claims_no_evidence(store):
    plan = plan_for(store)
    assert (len(plan.candidates), plan.control) == (4, "")
    assert plan.lines()[-2:] == ["control: the jobs' own settings", "evidence: none yet; jobs will try the candidates"]
    assert store.recommendations.find(model="bert") == ()


def test_jobs_get_the_candidates_or_keep_the_default(store, url):
    plan = plan_for(store)
    rollout = start_on_jobs(plan, store, by=ADA, max_cost=0.01)
    assert rollout in describe_started(plan, rollout)
    assert store.revisions.rollout(rollout).max_cost == 0.01
    assert store.studies.get(plan.study.id).state is StudyState.DONE
    version = plan.candidates[0].fingerprint.nccl_version
    given = set()
    for number in range(60):
        request = Request(
            cluster="leonardo", model="bert", nodes=2, gpus_per_node=4, nccl_version=version, job=f"job{number}"
        )
        given.add(serve_from_store(url, request, with_ticket=True)[0].revision_id)
    assert given == {"", *(one.id for one in plan.candidates)}


def test_one_experiment_at_a_time(store):
    plan = plan_for(store)
    start_on_jobs(plan, store, by=ADA, max_cost=0.005)
    with pytest.raises(ConflictError, match="is being rolled out"):
        start_on_jobs(plan, store, by=ADA, max_cost=0.005)


def test_the_gain_of_an_offline_search_is_the_first_candidate(store):
    last = plan_for(store).candidates[-1]
    verdict = replace(UNTRIED, decision=Decision.TUNED, speedup=1.1, interval=(1.05, 1.15), blocks=6)
    found = replace(last.with_verdict(verdict), id="offline", study="s", launcher="simulate", simulated=True)
    store.revisions.publish(found)

    first = plan_for(store).candidates[0]
    assert (first.table.policy, first.is_untried) == (last.table.policy, True)


def test_what_was_tried_is_not_proposed_again(store):
    plan = plan_for(store)
    rollout = store.revisions.rollout(start_on_jobs(plan, store, by=ADA, max_cost=0.005))
    futile = [replace(arm, state=ArmState.FUTILE, reason="no gain of 2 % or more") for arm in rollout.arms]
    store.revisions.settle_arms(rollout.id, futile, ADA)
    tried = {one.table.policy for one in plan.candidates}
    lines = describe_study(plan.study, store)
    assert any(
        "no candidate was faster by 2 % or more on 0 job starts: keeping the jobs' own settings" in x for x in lines
    )
    assert not tried & {one.table.policy for one in plan_for(store).candidates}


def test_another_person_approves_where_the_cluster_requires_it(store):
    store.revisions.set_rules(ClusterRules(cluster="leonardo", require_approval=True), ADA)
    plan = plan_for(store)
    assert start_on_jobs(plan, store, by=ADA, max_cost=0.005) == ""
    assert "approval by another person" in describe_started(plan, "")
    first, *others = [one.id for one in plan.candidates]
    assert store.revisions.approve(first, BOB, arms=others)


def test_the_default_is_no_candidate(store):
    assert Policy() not in {one.table.policy for one in plan_for(store, by_plugin=False).candidates}

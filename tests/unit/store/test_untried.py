"""Revisions without evidence: jobs get them in a roll-out alone, until one wins."""

from dataclasses import replace

import pytest

from ncclt.core.recommendation import Decision
from ncclt.core.revision import Actor, RevisionState
from ncclt.core.rollout import ArmState, JobTime, PairedGain
from ncclt.core.trial import ON_JOBS
from ncclt.deliver.render.delivery import headline
from ncclt.errors import ConflictError
from ncclt.pipeline.candidates import UNTRIED
from ncclt.testing.samples import sample_recommendation

ADA = Actor(who="ada")


def untried(id):
    found = sample_recommendation(id)
    return replace(found, table=replace(found.table, verdict=UNTRIED), simulated=False, launcher=ON_JOBS, study="")


ACTIVE = replace(sample_recommendation("active"), simulated=False, launcher="local")


def test_without_evidence_a_share_of_the_jobs_tries_it_and_never_all(store):
    store.revisions.publish(untried("a"), by=ADA)
    assert store.recommendations.newest(cluster="pair", model="toy") == ()
    store.revisions.publish(ACTIVE, by=ADA)
    for give in (store.revisions.activate, store.revisions.approve):
        with pytest.raises(ConflictError, match="no evidence"):
            give("a", ADA)
    assert store.revisions.status("a").state is RevisionState.CANDIDATE
    rollout = store.revisions.rollout(store.revisions.approve("a", ADA, percent=50))
    assert rollout.control == "active"
    assert store.revisions.status("active").state is RevisionState.ACTIVE
    assert store.recommendations.get("a").table.verdict.decision is Decision.UNTRIED


def test_a_winner_becomes_active_with_the_evidence_of_jobs(store):
    store.revisions.publish(ACTIVE, by=ADA)
    for id in ("a", "b"):
        store.revisions.publish(untried(id), by=ADA)
    rollout = store.revisions.rollout(store.revisions.approve("a", ADA, arms=["b"]))
    for number, (given, step_us) in enumerate([("active", 1040.0), ("a", 1000.0), ("active", 1050.0), ("a", 1010.0)]):
        time = JobTime(rollout=rollout.id, job=f"job{number}", recommendation=given, step_us=step_us, steps=20)
        store.revisions.add_job_time(time)
    gain = PairedGain(estimate=1.04, interval=(1.02, 1.06), pairs=31)
    won = replace(rollout.arms[0], state=ArmState.WON, reason="faster")
    store.revisions.settle_arms(rollout.id, [won], ADA, gain=gain)
    assert store.revisions.status("a").state is RevisionState.CANDIDATE, "a person approves"
    store.revisions.approve("a", ADA)

    (served,) = store.recommendations.newest(cluster="pair", model="toy")
    verdict = served.table.verdict
    assert (served.id, verdict.decision, verdict.speedup) == ("a", Decision.TUNED, 1.04)
    assert (verdict.default_us, verdict.policy_us) == (1045.0, 1005.0)
    assert headline(served, served.table).endswith(
        "tuned, 1.04x faster steps (95 % CI 1.02 to 1.06) over 31 pairs of job starts"
    )
    assert store.revisions.status("active").state is RevisionState.RETIRED
    assert store.recommendations.get("b").is_untried

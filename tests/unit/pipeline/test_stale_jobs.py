"""Jobs that renew stale recommendations, and the removal of ended jobs."""

import threading
from dataclasses import replace

import pytest

from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.tuning_job import JobState, TuningJob
from ncclt.errors import NotFoundError
from ncclt.store import open_store
from ncclt.store.job_queue import JobQueue, prepare, prune_jobs, submit_stale
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload

pytest.importorskip("dbos")
NOW = "2026-03-01T00:00:00+00:00"
LATER = "2999-01-01T00:00:00+00:00"
CLUSTER, MODEL = sample_cluster().name, sample_workload().name
LIMITS = TuningJob(id="", cluster="", model="", trials=7, priority=8, by="timer")
SHAPE = {"nodes": 2, "gpus_per_node": 4, "nccl_version": "2.28.9"}


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        store.clusters.add(sample_cluster())
        store.workloads.add(sample_workload())
        yield store


@pytest.fixture
def queue(store):
    prepare(store.url)
    with JobQueue(store.url) as queue:
        yield queue


def publish(store, id, *, model=MODEL, **more):
    study = store.studies.open(sample_study())
    fingerprint = store.clusters.get(CLUSTER).sized(**SHAPE).fingerprint()
    made = replace(sample_recommendation("a"), id=id, study=study.id, cluster=CLUSTER, model=model, created="")
    return store.revisions.publish(replace(made, fingerprint=fingerprint, **more))


def go_stale(store, id):
    found = store.recommendations.get(id)
    store.records.add_recheck(
        Recheck(
            id=f"check-{id}",
            recommendation=id,
            cluster=found.cluster,
            model=found.model,
            freshness=Freshness.STALE,
            reasons=("the gain is lost",),
            changes=(),
            launches=8,
            launcher="simulate",
            created=NOW,
        )
    )


def submitted(store, queue, *, cluster=None):
    return submit_stale(store, queue, LIMITS, cluster=cluster, now=NOW)


def test_a_stale_recommendation_gets_one_job_of_its_shape_and_the_limits(store, queue):
    publish(store, "r1")
    assert submitted(store, queue) == ()
    go_stale(store, "r1")
    (renewed,) = submitted(store, queue, cluster=CLUSTER)
    job = renewed.status.job
    assert (renewed.is_new, renewed.refused, renewed.status.state) == (True, "", JobState.QUEUED)
    assert (renewed.recommendation, renewed.stale.endswith("the gain is lost")) == ("r1", True)
    assert (job.cluster, job.model, job.nodes, job.gpus_per_node, job.nccl_version) == (CLUSTER, MODEL, *SHAPE.values())
    assert (job.trials, job.priority, job.by, job.created) == (7, 8, "timer", NOW)
    (again,) = submitted(store, queue)
    assert (again.is_new, again.status.job.id) == (False, job.id)
    assert len(queue.statuses()) == 1


def test_a_job_that_somebody_submitted_counts_also_where_it_leaves_the_shape_to_the_cluster(store, queue):
    publish(store, "r1")
    go_stale(store, "r1")
    asked = TuningJob(id="mine", cluster=CLUSTER, model=MODEL)
    queue.submit(store.jobs.check(replace(asked, id="other", nodes=3)))
    queue.submit(store.jobs.check(asked))
    (renewed,) = submitted(store, queue)
    assert (renewed.is_new, renewed.status.job.id) == (False, "mine")


def test_after_a_job_that_ended_in_vain_the_next_one_measures_again(store, queue):
    publish(store, "r1")
    go_stale(store, "r1")
    (first,) = submitted(store, queue)
    queue.cancel(first.status.job.id)
    (second,) = submitted(store, queue)
    assert second.is_new
    assert second.status.job.study != first.status.job.study


def test_two_callers_at_once_queue_one_job(store, queue, monkeypatch):
    publish(store, "r1")
    go_stale(store, "r1")
    meet = threading.Barrier(2)
    listed = JobQueue.statuses

    def statuses(self, **which):
        found = listed(self, **which)
        if which["state"] is JobState.RUNNING:
            meet.wait(60)  # nobody has submitted yet
        return found

    monkeypatch.setattr(JobQueue, "statuses", statuses)
    callers = [threading.Thread(target=submitted, args=(store, queue)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    monkeypatch.undo()
    assert len(queue.statuses()) == 1


def test_a_newer_revision_needs_no_job(store, queue):
    """Otherwise each run of a timer would tune again what waits for approval."""
    publish(store, "r1")
    store.revisions.set_rules(ClusterRules(cluster=CLUSTER, require_approval=True), Actor(who="ann"))
    publish(store, "r2")
    go_stale(store, "r1")
    assert store.revisions.status("r2").state.value == "candidate"
    assert submitted(store, queue) == ()
    go_stale(store, "r2")
    assert [one.recommendation for one in submitted(store, queue)] == ["r1"]


def test_what_was_measured_on_an_earlier_cluster_is_renewed_once(store, queue):
    """Its fingerprint is another one, so no later revision retires it."""
    publish(store, "r1")
    store.clusters.add(replace(sample_cluster(), gpu="H200"), replace=True)
    (renewed,) = submitted(store, queue)
    assert "the cluster" in renewed.stale
    queue.cancel(renewed.status.job.id)
    publish(store, "r2")
    assert store.recommendations.get("r1").stale
    assert submitted(store, queue) == ()


def test_one_that_cannot_be_renewed_does_not_stop_the_others(store, queue):
    store.workloads.add(replace(sample_workload(), name="other"))
    publish(store, "r1", model="gone")
    publish(store, "r2", model="other")
    for id in ("r1", "r2"):
        go_stale(store, id)
    renewed, refused = submitted(store, queue)
    assert (renewed.recommendation, renewed.is_new) == ("r2", True)
    assert (refused.recommendation, refused.status, "gone" in refused.refused) == ("r1", None, True)


def test_an_unknown_cluster_is_an_error(store, queue):
    with pytest.raises(NotFoundError, match="nowhere"):
        submitted(store, queue, cluster="nowhere")


def test_ended_jobs_are_removed(store, queue):
    mine = store.jobs.check(TuningJob(id="ended", cluster=CLUSTER, model=MODEL))
    queue.submit(mine)
    assert queue.cancel("ended").ended > NOW
    queue.submit(replace(mine, id="waiting"))
    assert prune_jobs(store.url, before=NOW, dry_run=False) == 0
    assert prune_jobs(store.url, before=LATER, dry_run=True) == 1
    assert {one.job.id for one in queue.statuses()} == {"ended", "waiting"}
    assert prune_jobs(store.url, before=LATER, dry_run=False) == 1
    assert {one.job.id for one in queue.statuses()} == {"waiting"}


def test_a_store_without_a_queue_gets_none(store, tmp_path):
    assert prune_jobs(store.url, before=LATER, dry_run=False) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ncclt.db"]

"""When rules ask for a job, and that each occasion asks once."""

from dataclasses import replace

import pytest

from ncclt.core.tuning_job import JobRule, JobState, TuningJob
from ncclt.errors import UsageError
from ncclt.pipeline.jobs.rules import apply_rules, prune_jobs, reason_for
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload
from ncclt_api.job_queue import JobQueue, prepare

NOW = "2026-03-01T00:00:00+00:00"
LATER = "2999-01-01T00:00:00+00:00"


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        store.add_cluster(sample_cluster())
        store.add_workload(sample_workload())
        yield store


@pytest.fixture
def queue(store):
    prepare(store.url)
    with JobQueue(store.url) as queue:
        yield queue


def publish(store, *, created="2026-01-01T00:00:00+00:00", **more):
    study = store.open_study(sample_study())
    cluster = store.cluster(study.cluster.name)
    found = replace(
        sample_recommendation("a"), study=study.id, cluster=cluster.name, model="toy", created=created,
        fingerprint=cluster.fingerprint(), **more,
    )  # fmt: skip
    return store.publish(found)


def rule(store, **more):
    job = TuningJob(id="", cluster=sample_cluster().name, model=sample_workload().name)
    made = JobRule(id="r1", job=job, **more)
    store.add_job_rule(made)
    return made


def test_nothing_is_renewed_before_something_was_published(store):
    assert reason_for(rule(store, stale=True, fingerprint_changed=True, every_days=1), store, now=NOW) == ""


def test_every_n_days_from_the_newest_recommendation(store):
    made = rule(store, every_days=30)
    publish(store)
    assert reason_for(made, store, now="2026-01-30T23:00:00+00:00") == ""
    first = reason_for(made, store, now="2026-01-31T00:00:00+00:00")
    assert first == reason_for(made, store, now="2026-02-20T00:00:00+00:00") != ""
    assert reason_for(made, store, now="2026-03-05T00:00:00+00:00") not in ("", first)


def test_a_changed_fingerprint(store):
    made = rule(store, fingerprint_changed=True)
    publish(store)
    assert reason_for(made, store, now=NOW) == ""
    store.add_cluster(replace(sample_cluster(), nccl_version="2.29.1"), replace=True)
    assert reason_for(made, store, now=NOW).startswith("the fingerprint is ")
    assert reason_for(replace(made, fingerprint_changed=False, stale=True), store, now=NOW) == ""


def test_each_occasion_queues_one_job_however_many_look(store, queue):
    rule(store, every_days=30)
    publish(store)
    said = []
    for _ in range(3):
        apply_rules(store, queue, sample_cluster().name, say=said.append, now=NOW)
    (status,) = queue.statuses()
    assert (status.state, status.job.by, len(said)) == (JobState.QUEUED, "rule r1", 1)
    apply_rules(store, queue, sample_cluster().name, say=said.append, now="2026-05-01T00:00:00+00:00")
    studies = {one.job.study for one in queue.statuses()}
    assert len(studies) == 2, "each is measured again"


def test_a_rule_that_cannot_be_followed_does_not_stop_the_others(store, queue):
    broken = rule(store, every_days=1)
    publish(store)
    store.add_job_rule(replace(broken, id="r0", job=replace(broken.job, nodes=10**6)))
    said = []
    apply_rules(store, queue, sample_cluster().name, say=said.append, now=NOW)
    assert len(queue.statuses()) >= 1
    assert any("r1 queued" in line for line in said)


def test_rules_without_a_reason_are_refused():
    job = TuningJob(id="", cluster="c", model="m")
    with pytest.raises(UsageError, match="needs a reason"):
        JobRule(id="r", job=job)
    with pytest.raises(UsageError, match="every_days"):
        JobRule(id="r", job=job, every_days=4000)


def test_ended_jobs_are_removed_but_for_the_newest_of_each_rule(store, queue):
    """Otherwise the rule would queue its job again."""
    rule(store, every_days=30)
    publish(store)
    for now in (NOW, "2026-05-01T00:00:00+00:00"):
        apply_rules(store, queue, sample_cluster().name, say=str, now=now)
    mine = TuningJob(id="", cluster=sample_cluster().name, model=sample_workload().name).on(
        store.cluster(sample_cluster().name), store.workload(sample_workload().name), again=True
    )
    queue.submit(replace(mine, id="ended"))
    newest, older = (one.job.id for one in queue.statuses() if one.job.by == "rule r1")
    for id in (newest, older, "ended"):
        assert queue.cancel(id).ended > NOW
    queue.submit(replace(mine, id="waiting"))
    known = {newest, older, "ended", "waiting"}

    assert prune_jobs(store.url, before=NOW, dry_run=False) == 0
    assert prune_jobs(store.url, before=LATER, dry_run=True) == 2
    assert {one.job.id for one in queue.statuses()} == known
    assert prune_jobs(store.url, before=LATER, dry_run=False) == 2
    assert {one.job.id for one in queue.statuses()} == {newest, "waiting"}
    apply_rules(store, queue, sample_cluster().name, say=str, now="2026-05-02T00:00:00+00:00")
    assert {one.job.id for one in queue.statuses()} == {newest, "waiting"}


def test_a_store_without_a_queue_gets_none(store, tmp_path):
    assert prune_jobs(store.url, before=LATER, dry_run=False) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ncclt.db"]

"""Pruning, on SQLite and on a real PostgreSQL: old rows go, and nothing that jobs get or may get."""

import contextlib
import sqlite3
from dataclasses import replace
from itertools import pairwise

import optuna
import pytest
from full_records import fill_record
from optuna.storages import RDBStorage
from postgresql import new_database
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ncclt.core.attestation import Form, LogEvidence, Observed
from ncclt.core.preflight import Preflight, State
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.revision import Action, Actor, ClusterRules, RevisionState
from ncclt.core.rollout import ArmState, JobStart, JobTime, RollOutState
from ncclt.core.study import StudyState
from ncclt.core.verification import Verification
from ncclt.deliver.attest import attest
from ncclt.deliver.log_evidence import policy_from_recommendation
from ncclt.errors import StoreError
from ncclt.search.optuna_tables import forget_studies
from ncclt.store import open_store
from ncclt.store.database import Database
from ncclt.store.leases import this_worker
from ncclt.store.location import locate
from ncclt.store.retention import prune_store
from ncclt.store.tables import metadata
from ncclt.testing.samples import sample_recommendation, sample_study, sample_trial, settle

OLD, CUT, NEW = (f"2026-0{month}-01T00:00:00.000+00:00" for month in (1, 4, 7))
ME = Actor(who="me")


class Clock:
    """Says what it was set to."""

    now = OLD

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ncclt.db"
    return new_database(request.getfixturevalue("postgresql"))


@pytest.fixture
def store(url, clock):
    with open_store(url, clock=clock) as store:
        yield store


def pruned(url, *, before=CUT, dry_run=False, forget=lambda _url, _names: None):
    """Prune and return what was removed, without the kinds of which nothing was."""
    counts = prune_store(locate(url), before, dry_run=dry_run, forget=forget)
    return {kind: count for kind, count in counts.items() if count}


def everything(url):
    """Return every row of every table."""
    database = Database(locate(url))
    with database.reading() as connection:
        found = {table.name: sorted(map(repr, connection.execute(table.select()))) for table in metadata.sorted_tables}
    database.close()
    return found


def study(store, id, *, state=StudyState.DONE, trials=2):
    store.studies.open(sample_study(f"study {id}", id=id))
    for number in range(trials):
        store.trials.add(id, sample_trial(number))
    if state is not StudyState.RUNNING:
        store.studies.set_state(id, state, "")


def publish(store, id, *, of, **more):
    return store.revisions.publish(replace(sample_recommendation(id, **more), study=of))


def attestation(id, *, created):
    """Return an attestation; its evidence, so its id, depends on the time."""
    source = LogEvidence(kind="plugin-report", nccl_version="2.28.9", table=id)
    seen = Observed(evidence=created, sources=(source,), calls=(), variables={}, hosts=1)
    return attest(policy_from_recommendation(sample_recommendation(id), Form.TABLE), seen, created=created)


def preflight(id, *, cluster="pair", created=OLD):
    return fill_record(Preflight, id=id, cluster=cluster, created=created, state=State.UNMEASURED)


def check(id, of, *, freshness=Freshness.FRESH):
    return fill_record(Recheck, id=id, recommendation=of, cluster="pair", model="toy", freshness=freshness, created=OLD)


def verification(id, of, *, created=OLD):
    return fill_record(Verification, id=id, recommendation=of, cluster="pair", model="toy", created=created)


def test_a_study_goes_with_its_trials_revisions_and_records_and_the_history_stays(store, url, clock):
    study(store, "s1")
    publish(store, "a", of="s1")
    store.records.add_attestation(attestation("a", created=OLD))
    store.records.add_recheck(check("c1", "a"))
    store.records.add_verification(verification("v1", "a"))
    study(store, "s2", trials=1)
    publish(store, "b", of="s2")  # retires a
    study(store, "s3", trials=3)
    store.studies.set_state("s3", StudyState.INTERRUPTED, "its worker was killed")
    store.leases.enter("s3", f"{this_worker().rpartition('/')[0]}/another start")  # a process that has ended
    told = store.revisions.history()

    of_records = {"attestations": 1, "rechecks": 1, "verifications": 1}
    assert pruned(url) == {"studies": 2, "trials": 5, "revisions": 1, **of_records}
    assert [page.study.id for page in store.studies.page().items] == ["s2"]
    assert [len(store.trials.find(id)) for id in ("s1", "s2", "s3")] == [0, 1, 0]
    assert [one.id for one in store.recommendations.find()] == ["b"]
    entry, *before = store.revisions.history()
    assert tuple(before) == told != ()
    assert (entry.action, "2 studies" in entry.why) == (Action.PRUNED, True)
    assert not any((store.records.attestations(["a"]), store.records.rechecks("a"), store.records.verifications()))
    assert pruned(url) == {}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("life", ["active", "candidate", "stale", "pinned", "newest but retired", "rolled out"])
def test_a_revision_that_jobs_get_or_may_get_stays_with_its_study(store, url, life):
    study(store, "s0", trials=1)
    if life in ("candidate", "rolled out"):
        store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ME)
    publish(store, "a", of="s0")
    if life == "stale":
        store.records.add_recheck(check("c1", "a", freshness=Freshness.STALE))
    if life == "pinned":
        store.revisions.pin("a", ME)
    if life == "newest but retired":
        store.revisions.retire("a", ME)
    if life == "rolled out":
        rollout = store.revisions.approve("a", Actor(who="another"), percent=10)
        store.revisions.add_job_time(JobTime(rollout=rollout, job="j1", recommendation="a", step_us=1.0, steps=9))
    if life != "newest but retired":
        store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ME)
        publish(store, "waits", of="elsewhere")  # so that the other is not the newest
    before = everything(url)
    state = store.revisions.status("a").state

    assert pruned(url, before=NEW) == {}

    assert everything(url) == before
    assert store.revisions.status("a").state is state
    assert (state is RevisionState.STALE) == (life == "stale")


def test_a_study_that_runs_or_was_touched_since_stays(store, url, clock):
    study(store, "running", state=StudyState.RUNNING)
    study(store, "held")
    store.leases.enter("held", "elsewhere/1/2/3")  # on another machine, and it renewed just now
    study(store, "s1")
    publish(store, "a", of="s1")
    publish(store, "b", of="s1")
    clock.now = NEW
    study(store, "new")
    publish(store, "c", of="elsewhere")  # retires b, now
    clock.now = OLD
    study(store, "s3")
    publish(store, "d", of="s3", model="other")
    publish(store, "e", of="elsewhere", model="other")  # retires d
    store.records.add_attestation(attestation("d", created=NEW))  # a job still had it

    assert pruned(url) == {}

    clock.now = "2026-09-01T00:00:00.000+00:00"
    removed = pruned(url, before="2026-08-01T00:00:00.000+00:00")
    assert removed == {"studies": 3, "trials": 6, "revisions": 3, "attestations": 1}
    assert {page.study.id for page in store.studies.page().items} == {"running", "held"}


def test_the_newest_record_of_a_revision_stays_and_decides_whether_it_is_stale(store, url):
    study(store, "s1")
    publish(store, "a", of="s1")
    for number, freshness in enumerate((Freshness.FRESH, Freshness.STALE)):
        store.records.add_recheck(check(f"c{number}", "a", freshness=freshness))
        store.records.add_verification(verification(f"v{number}", "a"))
        store.records.add_attestation(attestation("a", created=f"2026-01-0{number + 1}T00:00:00.000+00:00"))
    store.records.add_verification(verification("alone", ""))
    store.records.add_verification(verification("undated", "", created=""))
    store.records.add_verification(verification("young", "", created=NEW))

    assert pruned(url) == {"rechecks": 1, "verifications": 2, "attestations": 1}

    assert store.revisions.status("a").state is RevisionState.STALE
    assert [one.id for one in store.records.rechecks("a")] == ["c1"]
    assert [one.id for one in store.records.verifications()] == ["young", "undated", "v1"]
    assert [one.created[:10] for one in store.records.attestations(["a"])] == ["2026-01-02"]


def test_jobs_of_roll_outs_that_ended_go(store, url, clock):
    study(store, "s1")
    publish(store, "a", of="s1")
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=10), ME)
    publish(store, "b", of="s1")
    (rollout,) = store.revisions.rollouts(recommendation="b")
    for number, created in enumerate((OLD, NEW)):
        clock.now = created
        store.revisions.add_job_time(
            JobTime(rollout=rollout.id, job=f"j{number}", recommendation="b", step_us=1.0, steps=9)
        )
        store.revisions.add_job_starts(
            [JobStart(rollout=rollout.id, job=f"j{number}", recommendation="b", issued_s=1.0)]
        )
    assert pruned(url) == {}
    settle(store, rollout, ArmState.WON, "faster")
    assert pruned(url) == {}
    settle(store, rollout, ArmState.LOST, "slower")
    assert pruned(url) == {"step times": 1, "job starts": 1}
    assert [one.job for one in store.revisions.job_starts(rollout.id)] == ["j1"]
    assert [one.job for one in store.revisions.job_times(rollout.id)] == ["j1"]
    assert store.revisions.rollout(rollout.id).state is RollOutState.LOST


def test_a_roll_out_goes_with_its_revision(store, url):
    study(store, "s1")
    publish(store, "a", of="elsewhere")
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=10), ME)
    publish(store, "b", of="s1")
    (rollout,) = store.revisions.rollouts(recommendation="b")
    store.revisions.add_job_time(JobTime(rollout=rollout.id, job="j1", recommendation="b", step_us=1.0, steps=9))
    store.revisions.add_job_starts([JobStart(rollout=rollout.id, job="j1", recommendation="b", issued_s=1.0)])
    settle(store, rollout, ArmState.LOST, "slower")
    publish(store, "c", of="elsewhere")

    of_rollout = {"roll-outs": 1, "step times": 1, "job starts": 1}
    assert pruned(url) == {"studies": 1, "trials": 2, "revisions": 1, **of_rollout}
    assert [one.arms[0].recommendation for one in store.revisions.rollouts()] == ["c"]
    assert [one.id for one in store.recommendations.find()] == ["c", "a"]


def test_a_dry_run_counts_the_same_and_removes_nothing(store, url):
    study(store, "s1")
    publish(store, "a", of="s1")
    publish(store, "b", of="s1")
    store.revisions.retire("b", ME)
    publish(store, "c", of="elsewhere")
    store.records.add_verification(verification("v1", ""))
    before = everything(url)

    counts = pruned(url, dry_run=True)

    assert everything(url) == before
    assert pruned(url) == counts == {"studies": 1, "trials": 2, "revisions": 2, "verifications": 1}


def test_nothing_is_removed_where_the_last_step_fails(store, url):
    study(store, "s1")
    store.records.add_verification(verification("v1", ""))
    if path := locate(url).optuna_path:
        path.touch()
    before = everything(url)

    def fail(_url, names):
        assert names == ("study s1",)
        raise StoreError("Optuna's tables cannot be used")

    with pytest.raises(StoreError, match="Optuna"):
        pruned(url, forget=fail)
    assert everything(url) == before


def test_revisions_go_on_being_numbered_after_those_that_went(store, url):
    for number in range(3):
        study(store, f"s{number}")
        publish(store, f"r{number}", of=f"s{number}")
    assert pruned(url)["revisions"] == 2
    assert publish(store, "later", of="s2").revision == 4


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError):
        pruned(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


def test_optuna_forgets_what_goes_and_nothing_else(store, url):
    storage = RDBStorage(store.optuna_url)
    for id in ("s1", "s2"):
        study(store, id, state=StudyState.DONE if id == "s1" else StudyState.RUNNING)
        optuna.create_study(storage=storage, study_name=f"study {id}")
    assert pruned(url, forget=forget_studies) == {"studies": 1, "trials": 2}
    assert optuna.get_all_study_names(storage) == ["study s2"]
    storage.remove_session()
    storage.engine.dispose()


def test_of_each_cluster_the_newest_preflight_stays(store, url):
    for number, (cluster, created) in enumerate((("pair", OLD), ("pair", OLD), ("other", OLD), ("third", NEW))):
        store.records.add_preflight(preflight(f"f{number}", cluster=cluster, created=created))
    assert pruned(url) == {"preflights": 1}
    assert [one.id for one in store.records.preflights()] == ["f3", "f2", "f1"]


READ_WHOLE = ("studies", "leases", "job_times", "job_starts", "job_decisions", "attested_jobs", "rollouts")
READ_WHOLE += ("ncclt_alembic_version", "sqlite_master")
"""What is read once from end to end, as much of it may be old; of all else, only an index or a part."""


def test_no_query_reads_a_large_table_for_each_row_of_another(tmp_path):
    """The plans of SQLite for every statement of a run that removes something of each kind."""
    url = f"sqlite:///{tmp_path}/ncclt.db"
    with open_store(url, clock=Clock()) as store:
        study(store, "s1", trials=2)
        store.revisions.set_rules(ClusterRules(cluster="pair", percent=10), ME)
        publish(store, "a", of="s1")
        settle(store, store.revisions.rollouts()[0], ArmState.LOST, "slower")
        publish(store, "b", of="elsewhere")
        store.records.add_recheck(check("c1", "a"))
        store.records.add_preflight(preflight("f1"))
        store.records.add_preflight(preflight("f2"))
    seen = []

    def note(_connection, _cursor, statement, parameters, _context, _many):
        seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        gone = {"studies": 1, "trials": 2, "revisions": 1, "roll-outs": 1, "rechecks": 1, "preflights": 1}
        assert pruned(url) == gone
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    asked = [(statement, values) for statement, values in seen if statement.split()[0] in ("SELECT", "DELETE")]
    kept = {"clusters", "workloads", "keys", "secrets", "history", "cluster_rules", "changes", "job_workers"}
    deleted = {statement.split()[2] for statement, _ in asked if statement.startswith("DELETE")}
    assert deleted == metadata.tables.keys() - kept
    with contextlib.closing(sqlite3.connect(tmp_path / "ncclt.db")) as connection:
        for statement, values in asked:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
            scans = [step for step in plan if step.startswith("SCAN") and "USING COVERING INDEX" not in step]
            assert all(step.split()[1] in READ_WHOLE for step in scans), (statement, plan)
            correlated = [after for step, after in pairwise(plan) if step.startswith("CORRELATED")]
            assert all(step.startswith("SEARCH") for step in correlated), (statement, plan)

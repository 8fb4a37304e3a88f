"""Tuning jobs and real workers, on SQLite and a real PostgreSQL: killed, stopped, cancelled, without their database."""

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from postgresql import begin, new_database
from waiting import PATIENT_S, until

from ncclt.core.study import StudyState
from ncclt.core.tuning_job import JobState, TuningJob
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt.store.job_queue import JobQueue, new_job_id, prepare

TRIALS = 16
CLUSTER = "leonardo"
LONG = ("--", "--launcher", "simulate", "--patience", "0")
"""No study ends before its budget of TRIALS, so that there is time to disturb it."""

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("url", ["postgresql"], indirect=True)
"""Deaths, stops and cancellations are the same on either: each test has one of them, and both have two workers."""


@pytest.fixture
def url(request, tmp_path):
    """Of a store on the database that the test asks for."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ncclt.db"
    return new_database(request.getfixturevalue("postgresql"))


class Site:
    """A store with its queue, and workers of it."""

    def __init__(self, url, start, folder):
        self.url, self._start, self.folder = url, start, folder
        self.store = open_store(url)
        prepare(url)
        self.queue = JobQueue(url)
        self._count = 0

    def close(self):
        self.queue.close()
        self.store.close()

    def worker(self, *more):
        """Start a worker."""
        self._count += 1
        environ = {**os.environ, "NCCLT_STORAGE": self.url, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"worker{self._count}.txt").open("w") as said:
            argv = [sys.executable, "-m", "ncclt", "admin", "worker", "--cluster", CLUSTER, *(more or LONG)]
            return self._start(argv, env=environ, stderr=said, cwd=self.folder)

    def submit(self, **more):
        """Queue a job and return its id."""
        job = TuningJob(**{"id": new_job_id(), "cluster": CLUSTER, "model": "bert", "blocks": 3, **more})
        job = job.on(self.store.clusters.get(CLUSTER), self.store.workloads.get("bert"), again=True)
        return self.queue.submit(job)[0].job.id

    def events(self, id, kind):
        return [event for event in self.queue.written(id) if event.kind == kind]

    def state(self, id):
        return self.queue.status(id).state

    def trials(self, id):
        """The numbers of the trials of a job's study."""
        study = self.store.studies.get(self.queue.status(id).job.study)
        return [trial.number for trial in self.store.trials.find(study.id)]

    def ended(self, id):
        return until(lambda: self.state(id).ended and self.queue.status(id))

    def is_tuning(self, id):
        """Whether some trials of a job were stored."""
        return until(lambda: any(event.data["count"] >= 2 for event in self.events(id, "trials")))

    def require_whole(self, id):
        """Fail unless every trial was stored once, the study has ended, and one result was published."""
        status = self.queue.status(id)
        numbers = self.trials(id)
        assert status.state is JobState.DONE, status.result.reason
        assert numbers == list(range(len(numbers)))
        study = self.store.studies.get(status.job.study)
        assert study.state is StudyState.DONE
        (found,) = self.store.recommendations.find(study=study.id)
        assert status.result.recommendation == found.id
        assert status.result.reason.startswith(found.table.verdict.reason)
        assert status.result.simulated
        assert len(self.events(id, "ended")) == 1


@pytest.fixture
def site(url, start, tmp_path):
    made = Site(url, start, tmp_path)
    yield made
    made.close()


def process_of(worker, site, id):
    """Return the process that runs a job, of several workers."""
    named = f"/{worker.pid}/"
    return named in site.queue.status(id).worker


def studies_running():
    """Return the processes of `ncclt tune` that run on this machine for these tests."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tune" in words and any(word.startswith(b"--study=bert-leonardo") for word in words):
            found.append(words)
    return found


def mine(site, id):
    study = f"--study={site.queue.status(id).job.study}".encode()
    return [words for words in studies_running() if study in words]


@pytest.mark.thorough
@ON_POSTGRESQL
def test_a_worker_is_killed_and_another_takes_the_job_over(site):
    workers = [site.worker(), site.worker()]
    id = site.submit(trials=TRIALS)
    site.is_tuning(id)
    killed = next(worker for worker in workers if process_of(worker, site, id))
    killed.kill()
    killed.wait()
    until(lambda: not mine(site, id))  # what the dead worker had started has ended
    before = site.trials(id)
    status = site.ended(id)
    site.require_whole(id)
    assert status.taken_over == 1
    assert process_of(next(worker for worker in workers if worker is not killed), site, id)
    assert site.trials(id)[: len(before)] == before
    assert len(site.events(id, "started")) == 2


@ON_SQLITE
def test_two_workers_run_one_job_at_a_time_in_order_of_priority_and_one_is_cancelled(site):
    last, first, second = (site.submit(trials=trials, priority=at) for trials, at in ((2, 9), (240, 1), (2, 5)))
    site.worker()
    site.worker()
    site.is_tuning(first)
    assert site.queue.cancel(first).cancelling
    cancelled = site.ended(first)
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.result.trials == len(site.trials(first)) >= 2
    assert not mine(site, first)
    for id in (second, last):
        site.ended(id)
        site.require_whole(id)
    for before, after in pairwise(map(site.queue.status, (first, second, last))):
        assert before.ended <= after.started
    assert site.queue.cancel(first).state is JobState.CANCELLED
    again, is_new = site.queue.retry(first, by="", now="2026-01-01T00:00:00+00:00")
    assert (again.job.id, is_new, again.job.study) == (f"{first}-2", True, cancelled.job.study)


@pytest.mark.thorough
@ON_SQLITE
def test_a_worker_is_wrongly_assumed_dead_the_next_is_stopped_and_a_third_ends_the_study(site):
    """The row of the first is removed and its job given back, as another worker would after a long silence."""
    worker = site.worker()
    id = site.submit(trials=TRIALS)
    site.is_tuning(id)
    name = site.queue.status(id).worker
    site.store.jobs.leave_worker(name)
    site.queue.give_back(name, died=True)
    assert worker.wait(PATIENT_S) == 69
    assert not mine(site, id)
    assert "lost contact to the store" in (site.folder / "worker1.txt").read_text()
    assert not site.state(id).ended, "the late worker has recorded nothing"

    worker = site.worker()
    until(lambda: mine(site, id))
    deaths = site.queue.status(id).taken_over  # the late one may have taken the job again before it noticed
    assert deaths >= 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENT_S) == 0
    status = site.queue.status(id)
    assert (status.state, status.worker, status.taken_over) == (JobState.QUEUED, "", deaths), "a stop is no death"
    assert not mine(site, id)
    assert site.store.jobs.workers(CLUSTER) == ()
    assert [event.kind for event in site.queue.written(id)][-1] == "given-back"

    site.worker()
    assert site.ended(id).taken_over == deaths
    site.require_whole(id)


@pytest.mark.thorough
def test_the_database_of_the_queue_is_restarted(postgresql, start, tmp_path):
    """Every connection breaks. It is back at once: a study waits a quarter of a minute for it, as long as for any."""
    site = Site(new_database(postgresql), start, tmp_path)
    try:
        site.worker()
        site.worker()
        ids = [site.submit(trials=TRIALS), site.submit(trials=2)]
        site.is_tuning(ids[0])
        try:
            postgresql.stop()
        finally:
            begin(postgresql)
        for id in ids:
            until(lambda id=id: away_or(lambda: site.state(id).ended))
            assert site.queue.status(id).taken_over == 0
            site.require_whole(id)
            assert len(site.events(id, "started")) == 1
    finally:
        site.close()


def away_or(look):
    try:
        return look()
    except StoreError:  # the database is away
        return False

"""The queue counts what became of the workers of a job."""

import sqlite3
from contextlib import closing

import pytest

from ncclt.core.tuning_job import JobState, TuningJob
from ncclt.store.job_queue import JobQueue, prepare, queue_file


@pytest.fixture
def storage(tmp_path):
    storage = f"sqlite:///{tmp_path}/ncclt.db"
    prepare(storage)
    return storage


def take(storage, worker):
    """Let a worker hold every queued job, as DBOS notes it."""
    with closing(sqlite3.connect(queue_file(storage))) as database, database:
        database.execute(
            "UPDATE workflow_status SET status = 'PENDING', executor_id = ? WHERE status = 'ENQUEUED'", (worker,)
        )


def test_every_death_of_a_worker_counts_and_a_stop_does_not(storage):
    with JobQueue(storage) as queue:
        queue.submit(TuningJob(id="j", cluster="c", model="m", created="2026-01-01"))
        for number, (died, deaths) in enumerate([(True, 1), (True, 2), (False, 2), (True, 3)]):
            take(storage, f"worker{number}")
            assert (queue.status("j").state, queue.holders("c")) == (JobState.RUNNING, (f"worker{number}",))
            queue.give_back(f"worker{number}", died=died)
            assert (queue.status("j").state, queue.status("j").taken_over) == (JobState.QUEUED, deaths)

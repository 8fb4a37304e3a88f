"""Which workers live, and that a dead one is buried once its jobs were given back."""

import os
import time
from pathlib import Path

import pytest

from ncclt.core.revision import Action
from ncclt.core.tuning_job import TuningJob
from ncclt.store import jobs
from ncclt.store.leases import SILENT_S, _started, is_dead, this_worker

ELSEWHERE = "other/1/2/3"


def bury(store, cluster, give_back, holders=()):
    store.jobs.bury_workers(cluster, holders=lambda: holders, give_back=give_back)


@pytest.fixture
def later(monkeypatch):
    """Return what moves the clock of the workers by some seconds."""
    now = time.time()

    def move(seconds):
        monkeypatch.setattr(jobs, "now_s", lambda connection: now + seconds)

    move(0.0)
    return move


def test_a_worker_elsewhere_is_dead_when_it_was_silent_for_too_long(store, later):
    given_back = []
    store.jobs.enter_worker(ELSEWHERE, cluster="c")
    later(SILENT_S - 1)
    bury(store, "c", given_back.append)
    assert (given_back, store.jobs.workers("c")) == ([], (ELSEWHERE,))
    later(SILENT_S + 1)
    bury(store, "another", given_back.append)
    assert given_back == []
    bury(store, "c", given_back.append)
    bury(store, "c", given_back.append)
    assert given_back == [ELSEWHERE]
    assert not store.jobs.renew_worker(ELSEWHERE), "it notices that it was buried"


def test_a_renewed_worker_lives(store, later):
    store.jobs.enter_worker(ELSEWHERE, cluster="c")
    later(SILENT_S - 1)
    assert store.jobs.renew_worker(ELSEWHERE)
    later(2 * SILENT_S - 10)
    bury(store, "c", lambda worker: pytest.fail(worker))


def test_a_dead_process_of_this_machine_is_buried_when_its_launches_had_time_to_end(store, later):
    dead = this_worker().rpartition("/")[0] + "/1"  # the same id, started at another time
    given_back = []
    store.jobs.enter_worker(dead, cluster="c")
    store.jobs.enter_worker(this_worker(), cluster="c")
    later(jobs.SETTLE_S - 1)
    bury(store, "c", given_back.append)
    assert given_back == []
    later(jobs.SETTLE_S + 1)
    bury(store, "c", given_back.append)
    assert given_back == [dead]
    assert store.jobs.workers("c") == (this_worker(),)


def test_a_worker_stays_registered_until_its_jobs_were_given_back(store, later):
    store.jobs.enter_worker(ELSEWHERE, cluster="c")
    later(SILENT_S + 1)
    with pytest.raises(RuntimeError, match="killed"):
        bury(store, "c", _fail)
    given_back = []
    bury(store, "c", given_back.append)
    assert given_back == [ELSEWHERE]


def test_who_holds_jobs_and_is_not_registered_gives_them_back(store):
    """It was buried by mistake, and took a job before it noticed."""
    store.jobs.enter_worker(ELSEWHERE, cluster="c")
    given_back = []
    bury(store, "c", given_back.append, holders=(ELSEWHERE, "buried/1/2/3"))
    assert given_back == ["buried/1/2/3"]


def _fail(_worker):
    raise RuntimeError("killed meanwhile")


def test_a_worker_elsewhere_may_be_silent_for_so_long_whatever_its_clock(subtests):
    for age_s, dead in [
        (0.0, False),
        (SILENT_S, False),
        (SILENT_S + 1, True),
        (-SILENT_S, False),
        (-SILENT_S - 1, True),
    ]:
        with subtests.test(age_s=age_s):
            now_s = 1_000_000.0
            assert is_dead(ELSEWHERE, now_s - age_s, now_s) is dead


def test_a_process_of_this_machine_lives_as_long_as_it_runs():
    assert not is_dead(this_worker(), 0.0, 1e9)
    assert is_dead(this_worker() + "0", 0.0, 0.0), "another process had this id before"


def test_a_worker_is_registered_once(store, later):
    store.jobs.enter_worker(ELSEWHERE, cluster="c")
    store.jobs.enter_worker(ELSEWHERE, cluster="d")
    assert (store.jobs.workers("c"), store.jobs.workers("d")) == ((ELSEWHERE,), ())
    store.jobs.leave_worker(ELSEWHERE)
    assert store.jobs.workers("c") == ()


def test_the_failure_of_a_job_is_noted_once(store):
    jobs = [TuningJob(id=letter * 16, cluster="hall", model="toy") for letter in "aab"]
    for job in jobs:
        store.jobs.note_failed(job, "no\nGPU")
    assert [(event.action, event.why) for event in reversed(store.revisions.history())] == [
        (Action.JOB_FAILED, f"job {id * 16}: no GPU") for id in "ab"
    ]


def test_a_zombie_is_dead(start):
    """A container without an init never collects it, and its claims would never be released."""
    process = start(["sleep", "600"])
    name = f"{this_worker().rsplit('/', 2)[0]}/{process.pid}/{_started(process.pid)}"
    assert not is_dead(name, 0.0, 0.0)

    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its entry stays

    assert Path(f"/proc/{process.pid}").exists()
    assert is_dead(name, 0.0, 0.0)

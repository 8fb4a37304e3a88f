"""What a worker decides about one job, and the batch jobs of Slurm that it ends."""

import stat

import pytest

from ncclt.core.revision import Action
from ncclt.core.tuning_job import JobResult, JobState, JobStatus, TuningJob
from ncclt.errors import StudyStoppedError
from ncclt.pipeline import job_worker as worker
from ncclt.pipeline.job_worker import MOST_DEATHS, JobWorker, end_batches, submits_batches
from ncclt.store import open_store

JOB = TuningJob(id="j", cluster="leonardo", model="bert", study="s")


class Queue:
    """A queue of one job."""

    def __init__(self, **more):
        self._status = JobStatus(**{"job": JOB, "state": JobState.RUNNING, **more})

    def status(self, _id):
        return self._status


@pytest.fixture
def result_of(tmp_path, monkeypatch):
    """Return what a worker makes of a job in some state, which it must not launch."""
    monkeypatch.setattr("ncclt.pipeline.job_worker.write_event", lambda *_args, **_data: None)
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:

        def run(**more) -> JobResult:
            serving = JobWorker(store, cluster="leonardo", say=lambda _text: None)
            serving._queue = Queue(**more)
            serving._tune = lambda *_: pytest.fail("it was launched")
            store.jobs.enter_worker(serving.name, cluster="leonardo")
            return serving._result_of(JOB)

        run.history = store.revisions.history
        yield run


def test_a_job_that_was_cancelled_in_the_last_moment_is_not_launched(result_of):
    assert result_of(cancelling=True).state is JobState.CANCELLED
    assert result_of(state=JobState.CANCELLED).state is JobState.CANCELLED


def test_a_job_that_has_killed_workers_fails(result_of):
    result = result_of(taken_over=MOST_DEATHS)
    assert (result.state, result.reason) == (JobState.FAILED, "5 workers died while running it")
    (noted,) = result_of.history()
    assert (noted.action, noted.cluster, noted.model, noted.why) == (
        Action.JOB_FAILED,
        "leonardo",
        "bert",
        "job j: 5 workers died while running it",
    )


def test_when_studies_are_batch_jobs(monkeypatch, subtests):
    cases = [
        (("--launcher", "slurm"), {}, True),
        (("--launcher=slurm",), {}, True),
        ((), {"NCCLT_LAUNCHER": "slurm"}, True),
        (("--launcher", "slurm"), {"SLURM_JOB_ID": "1"}, False),
        (("--launcher", "mpirun"), {}, False),
        ((), {}, False),
    ]
    for arguments, environ, expected in cases:
        with subtests.test(arguments=arguments, environ=environ, expected=expected):
            for name in ("NCCLT_LAUNCHER", "SLURM_JOB_ID"):
                monkeypatch.delenv(name, raising=False)
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            assert submits_batches(arguments) is expected


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stand-ins for squeue and scancel with a file of batch jobs, NAME a line."""
    jobs = tmp_path / "jobs"
    jobs.write_text("ncclt-job-a\nncclt-job-b\n")
    programs = {
        "squeue": f'for word; do case $word in --name=*) grep -c "${{word#--name=}}$" {jobs} | grep -v 0;; esac; done',
        "scancel": f'for word; do case $word in --name=*) sed -i "/^${{word#--name=}}$/d" {jobs};; esac; done',
    }
    for name, script in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\ntrue\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return jobs


def test_the_batch_jobs_of_a_dead_worker_end_and_others_stay(slurm):
    end_batches("a")
    assert slurm.read_text() == "ncclt-job-b\n"
    end_batches("unknown")


def test_a_batch_job_that_does_not_end_fails_the_job(slurm, monkeypatch):
    (slurm.parent / "scancel").write_text("#!/bin/sh\ntrue\n")
    monkeypatch.setattr(worker, "_BATCH_END_S", 0.0)
    with pytest.raises(StudyStoppedError, match="does not cancel batch job 1"):
        end_batches("a")


def test_a_slurm_that_cannot_be_asked_fails_the_job(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StudyStoppedError, match="cannot run squeue"):
        end_batches("a")

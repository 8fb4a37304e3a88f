"""`ncclt run --report --step-times`: jobs of a roll-out time their steps and report them to store or service."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request

import pytest
import quick_job
from ports import free_port

from ncclt.core.revision import Actor, ClusterRules
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation

SHAPE = ("--cluster", "pair", "--model", "toy", "--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")


@pytest.fixture
def store(tmp_path):
    """A store with a roll-out against jobs' own settings, for half of the jobs."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        opened.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
        opened.revisions.publish(sample_recommendation("a"))
        yield opened


@pytest.fixture
def run(nursery, tmp_path, store):
    """Return a caller of `ncclt run` for a job of a name."""
    job = quick_job.install(tmp_path)

    def call(name, *options, steps=100, **more):
        words = ["run", *SHAPE, "--job", name, "--report", str(tmp_path / "reports"), *options, "--", *job, str(steps)]
        bare = {key: value for key, value in os.environ.items() if not key.startswith("NCCL")}
        environ = bare | {"PYTHONPATH": str(tmp_path / "site"), "NCCLT_PLUGIN": "/nonexistent.so"}
        environ |= {"NCCLT_ALLOW": "simulated", "NCCLT_ALLOW_DIFFERENCE": "NO_GPU", "SLURM_JOB_ID": "1"} | more
        return subprocess.CompletedProcess(words, *nursery(words, environ, tmp_path))

    call.storage = ("--storage", f"sqlite:///{tmp_path}/store.db")
    return call


def named(store, *, in_arm):
    (rollout,) = store.revisions.rollouts()
    return next(name for name in "abcdefghij" if (rollout.find_arm(f"named {name}") is not None) is in_arm)


def test_a_job_that_keeps_nccls_own_choice_counts_too(store, run):
    (rollout,) = store.revisions.rollouts()
    name = named(store, in_arm=False)
    done = run(name, *run.storage, "--step-times")
    assert done.returncode == 0, done.stderr
    assert "trained to the end" in done.stdout
    (found,) = store.revisions.job_times(rollout.id)
    assert (found.job, found.recommendation, found.steps) == (f"named {name}", "", 20)
    assert 3_000 < found.step_us < 1_000_000
    assert (
        "reported as default; roll-out running: no pair of jobs to compare yet, 0 reports from jobs with it"
        in done.stderr
    )


def test_a_job_that_could_not_use_its_part_counts_where_it_was_drawn(store, run):
    """The sample is a table, and without the plugin nothing of it is set. Left out, candidates alone were missing."""
    (rollout,) = store.revisions.rollouts()
    done = run(named(store, in_arm=True), *run.storage, "--step-times")
    assert done.returncode == 0, done.stderr
    assert "Nothing set" in done.stderr
    assert [time.recommendation for time in store.revisions.job_times(rollout.id)] == ["a"]
    assert [start.recommendation for start in store.revisions.job_starts(rollout.id)] == ["a"]


@pytest.mark.parametrize(("options", "steps"), [((), 100), (("--step-times",), 30)])
def test_without_the_option_or_without_enough_steps_nothing_is_reported(store, run, options, steps):
    done = run(named(store, in_arm=False), *run.storage, *options, steps=steps)
    assert (done.returncode, store.revisions.job_times(store.revisions.rollouts()[0].id)) == (0, ())
    assert ("step time not reported" in done.stderr) == bool(options)
    assert "trained to the end" in done.stdout


def test_a_service_takes_it_and_says_what_all_show(tmp_path, store, run, start):
    pytest.importorskip("fastapi")
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "ncclt", "serve", "--port", str(port), *run.storage]
    start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server}/readyz"):
            break
        time.sleep(0.2)
    name = named(store, in_arm=False)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(name, "--server", server, "--step-times", "--timeout", "60", **cache)
    assert done.returncode == 0, done.stderr
    (found,) = store.revisions.job_times(store.revisions.rollouts()[0].id)
    assert found.job == f"named {name}"
    assert "roll-out running" in done.stderr
    assert list(tmp_path.glob("cache/ncclt/env/*.json")) == [], "the answer is for this job alone"

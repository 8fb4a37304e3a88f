"""Disks that are full or may not be written: what is kept is served, what is refused says what to do, nothing is half.

The programs are real processes, which may write no file beyond some length: RLIMIT_FSIZE, as of a quota.
"""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from ports import free_port

from ncclt.core.study import StudyState
from ncclt.store import open_store
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.testing.samples import sample_recommendation, sample_study, sample_workload

pytestmark = pytest.mark.thorough

WITHIN_S = 200.0
REPOSITORY = Path(__file__).parents[2]
ENV = "/v1/clusters/pair/env"
SHAPE = {"model": "toy", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.28.9", "simulated": "allow"}
WORDS = ("--cluster", "pair", "--model", "toy", "--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")
WORDS += ("--allow", "simulated")
TUNE = ("tune", "--model", "bert", "--cluster", "leonardo", "--launcher", "simulate", "--nodes", "2", "--trials", "12")


class Machine:
    """A user's home with a store, and programs of this user."""

    def __init__(self, home, start):
        self._start, self.home, self.port = start, home, free_port()
        self.before = ()
        self.storage = f"sqlite:///{home}/.local/share/ncclt/ncclt.db"
        self.environ = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}

    def __call__(self, *words, limit=None, **environ):
        def prepare():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        argv = [*self.before, sys.executable, "-m", "ncclt", *map(str, words)]
        return subprocess.run(
            argv, env={**self.environ, **environ}, cwd=self.home, capture_output=True, text=True, preexec_fn=prepare
        )

    @contextlib.contextmanager
    def serving(self, *, log):
        argv = [*self.before, sys.executable, "-m", "ncclt", "serve", "--port", str(self.port)]
        with log.open("w") as file:
            process = self._start(argv, env=self.environ, cwd=self.home, stdout=file, stderr=file)
        deadline_s = time.monotonic() + WITHIN_S
        while process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(httpx2.TransportError):
                if self.ask("GET", "/readyz").status_code == 200:
                    break
            time.sleep(0.1)
        yield process

    def ask(self, method, path, **more):
        return httpx2.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=60, trust_env=False, **more)


@pytest.fixture
def machine(tmp_path, start):
    home = tmp_path / "home"
    home.mkdir()
    return Machine(home, start)


def fill(machine):
    with open_store(machine.storage) as store:
        store.clusters.add(sample_study().cluster)
        store.workloads.add(sample_workload())
        store.studies.open(sample_study())
        store.revisions.publish(sample_recommendation("first"))


@contextlib.contextmanager
def read_only(machine):
    """Let this user's programs write nothing at home; rights mean nothing to root, so there it is mounted so."""
    if os.geteuid() == 0:
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        before = ("unshare", "--mount", "sh", "-c", script, str(machine.home))
        if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        machine.before = before
        yield
        return
    paths = [machine.home, *machine.home.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o700)


def assert_refused(answer):
    """Assert that it is a problem that says what to do, and nothing of the code."""
    assert answer.status_code == 503, answer.text
    problem = answer.json()
    assert "make room" in problem["hint"], problem
    assert "INSERT" not in answer.text
    assert "sqlalche.me" not in answer.text


def test_a_full_disk_under_the_service(machine, tmp_path):
    fill(machine)
    profile = (REPOSITORY / "profiles" / "workloads" / "bert.json").read_bytes()
    asked = {"cluster": "pair", "model": "toy"}
    writes = [
        ("POST", "/v1/jobs", {"json": asked}, 201),
        ("PUT", "/v1/clusters/pair/rules", {"json": {"require_approval": True}}, 200),
        ("POST", "/v1/recommendations/first/pin", {"json": {}}, 200),
        ("POST", "/v1/workloads?name=mine", {"content": profile}, 201),
    ]
    with machine.serving(log=tmp_path / "log.txt") as service:
        assert machine.ask("GET", "/v1/jobs").json()["items"] == []
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for method, path, body, _good in writes:
            assert_refused(machine.ask(method, path, **body))
        given = machine.ask("GET", ENV, params=SHAPE)
        assert (given.status_code, given.headers["x-ncclt-recommendation"]) == (200, "first")
        for path in ("/readyz", "/", "/studies", "/jobs", "/recommendations/first", "/v1/studies", "/metrics"):
            assert machine.ask("GET", path).status_code == 200, path
        assert machine.ask("GET", "/v1/jobs").json()["items"] == []
        assert [one["action"] for one in machine.ask("GET", "/v1/history?cluster=pair").json()["items"]].count(
            "pinned"
        ) == 0
        assert not machine.ask("GET", "/v1/recommendations/first/state").json()["pinned"]

        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for method, path, body, good in writes:
            answer = machine.ask(method, path, **body)
            assert answer.status_code == good, answer.text


def test_a_disk_that_fills_up_while_a_study_runs(machine):
    """Wherever it ends: an exit code and what to do, every stored trial is whole, and the study goes on once there is
    room, without a trial measured again."""
    assert machine("admin", "store", "migrate").returncode == 0
    begun = Path(locate(machine.storage).path).stat().st_size
    ends = 0
    for room in range(0, 65536, 4096):
        done = machine(*TUNE, "--study", "grown", limit=begun + room)
        if done.returncode == 0:
            break
        ends += 1
        assert done.returncode == 69, done.stderr
        assert "make room" in done.stderr
        assert "Traceback" not in done.stderr
        assert "Details:" not in done.stdout
        database = Database(locate(machine.storage))
        database.require_sound()
        database.close()
        with open_store(machine.storage, migrate=False) as store:
            assert store.studies.running() == ()
            assert {one.study.state for one in store.studies.page().items} <= {StudyState.INTERRUPTED}
    assert ends > 1
    done = machine(*TUNE, "--study", "grown")
    assert done.returncode == 0, done.stderr
    with open_store(machine.storage, migrate=False) as store:
        study = store.studies.get("grown")
        trials = store.trials.find(study.id)
        assert [trial.number for trial in trials] == list(range(len(trials)))
        assert all(trial.result.measurements for trial in trials)
        assert len(store.recommendations.find(study=study.id)) == 1


def test_a_home_that_may_only_be_read(machine, tmp_path):
    """`ncclt env`, `ncclt run` and the service give what is there."""
    fill(machine)
    with read_only(machine):
        given = machine("env", *WORDS)
        assert (given.returncode, "NCCLT_RECOMMENDATION=first" in given.stdout) == (0, True), given.stderr
        job = machine("run", *WORDS, "--", "sh", "-c", "echo $NCCLT_RECOMMENDATION; exit 7")
        assert (job.returncode, "Traceback" in job.stderr) == (7, False), job.stderr
        with machine.serving(log=tmp_path / "log.txt"):
            assert machine.ask("GET", ENV, params=SHAPE).headers["x-ncclt-recommendation"] == "first"
            for path in ("/", "/studies", "/recommendations/first", "/metrics"):
                assert machine.ask("GET", path).status_code == 200, path
            for method, path, body in (
                ("PUT", "/v1/clusters/pair/rules", {"require_approval": True}),
                ("POST", "/v1/jobs", {"cluster": "pair", "model": "toy"}),
                ("GET", "/v1/jobs", None),
            ):
                refused = machine.ask(method, path, json=body)
                assert refused.status_code == 503, refused.text
                assert re.search("right to write|can be written", refused.json()["hint"]), refused.text
                assert "sqlalche.me" not in refused.text
            server = f"http://127.0.0.1:{machine.port}"
            for words in (("env",), ("env", "--fallback", "cached")):
                remote = machine(*words, "--server", server, *WORDS)
                assert (remote.returncode, "NCCLT_RECOMMENDATION=first" in remote.stdout) == (0, True), remote.stderr
            job = machine("run", "--server", server, *WORDS, "--", "sh", "-c", "exit 7")
            assert (job.returncode, "Traceback" in job.stderr) == (7, False), job.stderr
        tuned = machine(*TUNE)
        assert (tuned.returncode, "right to write" in tuned.stderr) == (69, True), tuned.stderr


def test_a_home_that_may_only_be_read_and_has_no_store(machine):
    with read_only(machine):
        for words in (("env", *WORDS), ("env", "--model", "bert", "--cluster", "leonardo")):
            refused = machine(*words)
            assert (refused.returncode, refused.stdout, "Traceback" in refused.stderr) == (3, "", False), refused.stderr
        assert machine("run", *WORDS, "--", "sh", "-c", "exit 7").returncode == 7
        for words in (("serve", "--port", machine.port), TUNE):
            refused = machine(*words)
            assert (refused.returncode, "--storage" in refused.stderr) == (69, True), refused.stderr
            assert "Traceback" not in refused.stderr

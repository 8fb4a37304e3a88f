"""What surrounds a study on a real Slurm: other people's prologs, allocations that end, shared nodes, login shells."""

import json
import os
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from program import run_program

from ncclt.core.message import Collective, Message
from ncclt.core.study import Arm
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.launcher import SlurmLauncher
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.measure.outcome import judge
from ncclt.store import open_store

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
FAKES = runpy.run_path(str(HERE.parent / "fakes" / "nccl_tests_stand_in.py"))
PATIENT_S = 120.0
STORE = ("--storage", "sqlite:///ncclt.db")
FOREIGN = {"NCCL_TUNER_PLUGIN": "/srv/libother.so", "NCCLT_POLICY": "/srv/bert.csv"}


NCCLT = (sys.executable, "-m", "ncclt")
MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2, spans_nodes=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a stand-in for nccl-tests and a store that knows a workload of one message."""
    folder = tmp_path_factory.mktemp("prepared")
    FAKES["install"](folder)
    (folder / "mine.csv").write_text("collective,dtype,size_bytes,calls_per_step\nall_reduce,float32,65536,4\n")
    subprocess.run(
        [*NCCLT, "profile", "import", "mine.csv", "--name", "mine", *STORE],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        check=True,
        capture_output=True,
        timeout=PATIENT_S,
    )
    return folder


@pytest.fixture
def tuning(prepared, tmp_path):
    """Start a study on two nodes."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    started = []

    names = ["--model", "mine", "--cluster", "leonardo", "--nodes", "2", "--gpus-per-node", "1"]
    budget = ["--launcher", "slurm", "--nccl-tests", str(tmp_path), "--trials", "40", "--patience", "0"]

    def start(environment, *words, own=None):
        inherited = {n: v for n, v in environment.items() if not n.startswith(("NCCL", "XDG_"))} | (own or {})
        study = subprocess.Popen(
            [*NCCLT, "tune", *names, *budget, *STORE, *words],
            cwd=tmp_path,
            env=inherited | {"HOME": str(tmp_path), "NCCLT_STORE_IS_SHARED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(study)
        return study

    yield start
    for study in started:
        study.kill()
        study.communicate()


def stored(folder):
    """Return (number, outcome) of all trials, and state and reason of the only study."""
    with closing(sqlite3.connect(folder / "ncclt.db")) as database:
        trials = database.execute("select number, outcome from trials order by number").fetchall()
        studies = database.execute("select state, json_extract(document, '$.reason') from studies").fetchall()
    return trials, studies


def wait_for_trials(folder, study, count):
    deadline = time.monotonic() + PATIENT_S
    while time.monotonic() < deadline and study.poll() is None:
        if len(stored(folder)[0]) >= count:
            return
        time.sleep(0.1)
    study.kill()
    pytest.fail(f"there are no {count} trials: {study.communicate()}")


def test_variables_of_a_task_prolog_stop_a_study_before_anything_is_measured(slurm_cluster, tuning, tmp_path):
    """Those that decide what NCCL does; those of the site's network do not, nor those that the plan has itself."""
    with slurm_cluster.allocation() as environment:
        with slurm_cluster.exporting(**FOREIGN):
            study = tuning(environment)
            _, stderr = study.communicate(timeout=PATIENT_S)
        assert study.returncode == 1, stderr
        prolog = slurm_cluster.folder / "task-prolog"
        found = next(line for line in stderr.splitlines() if "invalid: unexpected" in line)
        assert "unexpected NCCL_TUNER_PLUGIN=/srv/libother.so NCCLT_POLICY=/srv/bert.csv" in found
        assert found.endswith(f"from TaskProlog={prolog}")
        assert stored(tmp_path)[0] == []

        told = "import os; print(os.environ['NCCL_IB_TC'], os.environ.get('NCCL_BUFFSIZE'))"
        kept = SlurmLauncher.create(
            shape=JobShape(nodes=2), environment=environment | {"NCCL_BUFFSIZE": "8388608"}, keep_env=["NCCL_BUFFSIZE"]
        )
        with slurm_cluster.exporting(NCCL_IB_TC="106", NCCL_BUFFSIZE="8388608"):
            plan = kept.plan((sys.executable, "-S", "-c", told), variables={}, timeout_s=PATIENT_S)
            result = kept.run(plan)
        assert (result.exit_code, result.stdout.splitlines()) == (0, ["106 8388608"] * 2), result
        with slurm_cluster.exporting(NCCL_BUFFSIZE="1048576"):
            result = kept.run(plan)
        assert (result.exit_code, result.stdout) == (78, "")
        assert "unexpected NCCL_BUFFSIZE=1048576" in result.stderr


def test_the_sites_variables_reach_every_rank_of_two_nodes_and_own_tuning_one_arm_alone(
    slurm_cluster, tuning, tmp_path
):
    FAKES["install"](tmp_path, environ=True)
    own = {"NCCL_IB_TC": "106", "NCCL_MIN_NCHANNELS": "8", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"}
    with slurm_cluster.allocation() as environment:
        study = tuning(environment, "--trials", "6", own=own)
        stdout, stderr = study.communicate(timeout=PATIENT_S)
    assert study.returncode == 0, stderr
    assert ": unset NCCL_ALGO, NCCL_MIN_NCHANNELS" in stdout, stdout
    seen = [
        dict(word.split("=", 1) for word in line.split())
        for line in (tmp_path / "environ.txt").read_text().splitlines()
    ]
    assert {line.get("NCCL_IB_TC") for line in seen} == {"106"}
    assert not any("NCCL_DEBUG" in line for line in seen)
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        (entry,) = store.studies.page(limit=5).items
        count = sum(trial.arm is Arm.TODAY for trial in store.trials.find(entry.study.id))
    assert sum(line.get("NCCL_MIN_NCHANNELS") == "8" for line in seen) == 2 * count > 0


def test_an_allocation_that_ends_is_no_outcome_of_a_setting(slurm_cluster, tuning, tmp_path):
    """First its time, of which Slurm gives notice by SIGTERM; then somebody cancels it in the middle of a trial."""
    with slurm_cluster.allocation("--time=3") as environment:
        study = tuning(environment)
        wait_for_trials(tmp_path, study, 2)
        study.send_signal(signal.SIGTERM)
        _, stderr = study.communicate(timeout=PATIENT_S)
        job_id = environment["SLURM_JOB_ID"]
        assert study.returncode == 75, stderr
        assert f"Stopped: Slurm job {job_id} has reached its time limit" in stderr
    before, (state,) = stored(tmp_path)
    assert state == ("interrupted", f"Slurm job {job_id} has reached its time limit")

    with slurm_cluster.allocation() as environment:
        study = tuning(environment)
        wait_for_trials(tmp_path, study, len(before) + 1)
        job_id = environment["SLURM_JOB_ID"]
        slurm_cluster.ask("scancel", job_id)
        _, stderr = study.communicate(timeout=PATIENT_S)
    assert study.returncode == 75, stderr
    assert f"the allocation is lost: Slurm job {job_id} was cancelled" in stderr
    assert "run the same command in a new one" in stderr
    trials, (state,) = stored(tmp_path)
    assert len(trials) > len(before)
    assert trials == [(number, "ok") for number in range(len(trials))]
    assert state == ("interrupted", f"the allocation is lost: Slurm job {job_id} was cancelled")
    with closing(sqlite3.connect(tmp_path / "ncclt.db")) as database:
        assert database.execute("select * from leases").fetchall() == []


def test_launches_that_are_alike_meet_on_ports_of_their_own(slurm_cluster):
    """Two studies of one model share nodes: the same command with the same variables, at the same time."""
    pytest.importorskip("torch.distributed")
    benchmark = TorchCollectives(backend="gloo", budget_s=0.1)
    (command,) = benchmark.commands((MESSAGE,), folder=None)
    outcomes = []
    with slurm_cluster.allocation() as environment:
        launcher = SlurmLauncher.create(shape=JobShape(nodes=2), environment=environment)
        plan = launcher.plan(command.argv, variables={}, timeout_s=PATIENT_S, files=command.files)

        def launch():
            result = judge(benchmark, command, launcher.run(plan), limit_s=PATIENT_S)
            outcomes.append((result.outcome.value, result.detail))

        threads = [threading.Thread(target=launch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == [("ok", "")] * 2


def test_a_follower_that_is_ended_says_what_becomes_of_its_job(slurm_cluster, tuning):
    """It waits in the queue, and goes on doing so."""
    study = tuning(
        slurm_cluster.environment,
        "--launcher-option=sbatch-arg=--begin=now+1hour",
        "--launcher-option=sbatch-arg=--gres=none",
    )
    said = ""
    for line in study.stderr:
        said += line
        if "is pending" in line:
            study.send_signal(signal.SIGHUP)
            break
    job_id = said.partition("submitted job ")[2].partition(";")[0]
    try:
        _, rest = study.communicate(timeout=PATIENT_S)
        assert study.returncode == 128 + signal.SIGHUP, said + rest
        assert f"job {job_id} continues; `scancel {job_id}` ends it" in rest
        shown = slurm_cluster.ask("scontrol", "show", "job", "--oneliner", job_id)
        assert "JobState=PENDING" in shown
        assert "OverSubscribe=NO" in shown  # whole nodes
    finally:
        slurm_cluster.ask("scancel", job_id)
        slurm_cluster.wait_until_empty()


def test_a_preflight_is_planned_without_an_allocation_and_gloo_has_a_history_of_its_own(slurm_cluster, tmp_path):
    """The plan needs no nodes; what gloo measures says nothing about the cluster's GPUs."""
    environment = {n: v for n, v in slurm_cluster.environment.items() if not n.startswith("NCCL")}

    names = ["--benchmark", "torch_collectives", "--backend", "gloo", "--cluster", "leonardo", "--expect", "0.0001"]

    def preflight(*words):
        done = run_program(
            [*NCCLT, "preflight", *names, "--json", *words, *STORE],
            cwd=tmp_path,
            env=environment | {"HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode in (0, 4), done
        return done.stdout

    planned = preflight("--nodes", "2", "--launcher", "slurm", "--dry-run")
    assert json.loads(planned)["hosts"] == ["n00", "n01"]
    preflight("--nodes", "1", "--gpus-per-node", "2", "--launcher", "torchrun", "--sizes", "4K")
    with closing(sqlite3.connect(tmp_path / "ncclt.db")) as database:
        assert database.execute("select cluster from records").fetchall() == [("leonardo-cpus",)]

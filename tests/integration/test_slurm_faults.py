"""What breaks under a study on a real Slurm of two nodes: no trial is stored for a launch that never started."""

import contextlib
import runpy
import time
from pathlib import Path

import pytest

from ncclt.errors import NotStartedError
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.launcher import SlurmLauncher
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives

pytestmark = pytest.mark.thorough

EDGES = runpy.run_path(str(Path(__file__).with_name("test_slurm_edges.py")))
prepared, tuning = EDGES["prepared"], EDGES["tuning"]
stored, wait_for_trials, PATIENT_S = EDGES["stored"], EDGES["wait_for_trials"], EDGES["PATIENT_S"]


def ended(study, folder):
    """Wait for the end of a study; return its exit code, its errors, and the outcomes of its trials."""
    _, said = study.communicate(timeout=PATIENT_S)
    trials, _ = stored(folder)
    return study.returncode, said, [outcome for _, outcome in trials]


def test_a_controller_that_restarts_costs_no_trial(slurm_cluster, tuning, tmp_path):
    """Until the nodes have registered again every step is refused."""
    with slurm_cluster.allocation() as environment:
        study = tuning(environment, "--trials", "6")
        wait_for_trials(tmp_path, study, 2)
        slurm_cluster.restart_controller(away_s=2.0)
        wait_for_trials(tmp_path, study, 5)
        study.terminate()
        _, said, outcomes = ended(study, tmp_path)
    assert len(outcomes) >= 5, said
    assert set(outcomes) == {"ok"}, said


def test_a_node_without_its_daemon_refuses_steps_and_a_resumed_study_measures(slurm_cluster, tuning, tmp_path):
    """The job still has the node, as far as Slurm knows; the default is no result either."""
    with slurm_cluster.allocation() as environment:
        with slurm_cluster.without_daemon("n2"):
            code, said, outcomes = ended(tuning(environment), tmp_path)
            assert (code, outcomes) == (75, []), said
        study = tuning(environment, "--trials", "2")
        wait_for_trials(tmp_path, study, 2)
        study.terminate()
        _, said, outcomes = ended(study, tmp_path)
    assert set(outcomes) == {"ok"}, said


def test_steps_that_are_refused_from_the_end_time_on_are_no_trials(slurm_cluster, tuning, tmp_path):
    """The job is shown as running for up to half a minute more."""
    with slurm_cluster.allocation() as environment:
        study = tuning(environment)
        wait_for_trials(tmp_path, study, 2)
        # Slurm refuses a time that has passed when the question arrives.
        slurm_cluster.ask("scontrol", "update", f"JobId={environment['SLURM_JOB_ID']}", "EndTime=now+2")
        code, said, outcomes = ended(study, tmp_path)
    assert code == 75, said
    assert set(outcomes) == {"ok"}, said


def test_a_node_that_goes_down_is_no_trial(slurm_cluster, tuning, tmp_path):
    with slurm_cluster.allocation() as environment:
        study = tuning(environment)
        wait_for_trials(tmp_path, study, 2)
        slurm_cluster.ask("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        code, said, outcomes = ended(study, tmp_path)
    with contextlib.suppress(AssertionError):  # it may have come back by itself meanwhile
        slurm_cluster.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
    slurm_cluster.wait_until_empty()
    assert code == 75, said
    assert set(outcomes) == {"ok"}, said


def test_a_requeued_job_resumes_and_a_second_command_follows_it(slurm_cluster, tuning, tmp_path):
    """From a login node; what `--export=NONE` keeps from the job is in its script."""
    words = ("--launcher-option=sbatch-arg=--export=NONE", "--launcher-option=sbatch-arg=--gres=none")
    first = tuning(slurm_cluster.environment, *words)
    said = ""
    for line in first.stderr:
        said += line
        if "submitted job" in line:
            break
    job_id = said.partition("submitted job ")[2].partition(";")[0]
    wait_for_trials(tmp_path, first, 2)
    slurm_cluster.ask("scontrol", "requeue", job_id)
    before = len(stored(tmp_path)[0])
    deadline = time.monotonic() + PATIENT_S
    while "JobState=PENDING" not in slurm_cluster.ask("scontrol", "show", "job", job_id):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    slurm_cluster.ask("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    second = tuning(slurm_cluster.environment, *words)
    wait_for_trials(tmp_path, second, before + 2)
    slurm_cluster.ask("scancel", job_id)
    code, said, outcomes = ended(second, tmp_path)
    _, log = first.communicate(timeout=PATIENT_S)
    slurm_cluster.wait_until_empty()
    assert code == 130, said
    assert f"job {job_id} is already measuring this study" in said
    assert "submitted" not in said
    assert set(outcomes) == {"ok"}, said
    assert "requeued by Slurm, resumes" in log
    assert "run the same command" not in log.partition("requeued by Slurm")[0]


def test_a_login_node_shows_a_finished_study_and_submits_nothing(slurm_cluster, tuning, tmp_path):
    words = ("--trials", "2", "--blocks", "2")
    with slurm_cluster.allocation() as environment:
        measured = tuning(environment, *words)
        shown, said = measured.communicate(timeout=PATIENT_S)
        assert measured.returncode == 0, said
    before = stored(tmp_path)
    again = tuning(slurm_cluster.environment, *words)
    shown_again, said = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, said
    assert "submitted" not in said
    assert shown_again.splitlines()[:3] == shown.splitlines()[:3]
    assert stored(tmp_path) == before


def test_a_folder_of_one_node_that_cannot_be_written_is_named(slurm_cluster):
    """The files of the benchmark travel to each node."""
    (command,) = TorchCollectives(backend="gloo").commands((EDGES["MESSAGE"],), folder=None)
    with slurm_cluster.allocation() as environment, slurm_cluster.exporting(TMPDIR="/proc"):
        launcher = SlurmLauncher.create(shape=JobShape(nodes=2), environment=environment)
        result = launcher.run(launcher.plan(command.argv, variables={}, timeout_s=PATIENT_S, files=command.files))
        assert "cannot write to /proc: free space there" in result.not_started
        with pytest.raises(NotStartedError, match="cannot write to /proc"):
            result.require_start()

"""What has become of the Slurm job that this program runs in; scontrol is a stand-in that says what it is given."""

from datetime import datetime, timedelta

import pytest
from program import stand_in

from ncclt.launch.slurm.job import job_loss, job_notice

RUNNING = "JobId=7 JobState=RUNNING EndTime=Unknown PreemptTime=None"
COMPLETING = "JobId=7 JobState=COMPLETING Reason=None Restarts=0 EndTime=2026-11-21T14:00:00"


@pytest.fixture
def job(tmp_path):
    """Return the environment of a job of which scontrol says something, with an exit code."""

    def environment(said, *, exit_code=0, complaint=""):
        (tmp_path / "said").write_text(said)
        script = f"echo \"$*\" >{tmp_path}/asked\ncat {tmp_path}/said\necho '{complaint}' >&2\nexit {exit_code}"
        return stand_in(tmp_path, scontrol=script) | {"SLURM_JOB_ID": "7"}

    return environment


@pytest.mark.parametrize(
    ("said", "loss"),
    [
        (RUNNING, ""),
        (RUNNING.replace("RUNNING", "CONFIGURING"), ""),
        (RUNNING.replace("RUNNING", "TIMEOUT"), "Slurm job 7 has reached its time limit"),
        (RUNNING.replace("RUNNING", "NODE_FAIL"), "Slurm job 7 has lost a node"),
        (RUNNING.replace("RUNNING", "BOOT_FAIL"), "Slurm job 7 is boot_fail"),
        ("JobId=7", "Slurm job 7 is gone"),
        (RUNNING.replace("PreemptTime=None", "PreemptTime=2026-11-21T14:00:00"), "Slurm job 7 was preempted"),
        # A heterogeneous job has a line for each component.
        (f"{RUNNING}\n{RUNNING.replace('RUNNING', 'CANCELLED')}\n", "Slurm job 7 was cancelled"),
        # Steps are refused from EndTime on; Slurm writes local time.
        (RUNNING.replace("Unknown", "2026-11-21T14:00:00"), "Slurm job 7 has reached its time limit"),
        # It is shown as completing for as long as a process of it, such as this one, still runs.
        (f"{COMPLETING} RunTime=00:00:30 TimeLimit=01:00:00", "Slurm job 7 was cancelled"),
        (f"{COMPLETING} RunTime=1-00:00:01 TimeLimit=1-00:00:00", "Slurm job 7 has reached its time limit"),
        (f"{COMPLETING} PreemptTime=2026-11-21T14:00:00", "Slurm job 7 was preempted"),
        ("", ""),
    ],
)
def test_a_job_that_has_lost_its_nodes_says_how(job, tmp_path, said, loss):
    assert job_loss(job(said))[0] == loss
    assert (tmp_path / "asked").read_text() == "show job --oneliner 7\n"


@pytest.mark.parametrize(
    ("said", "reason", "last"),
    [
        (COMPLETING, "was requeued", "was cancelled"),
        (f"{COMPLETING}\nNodeName=n2 State=DOWN+DRAIN Reason=x", "has lost a node", "has lost a node"),
        (COMPLETING.replace("COMPLETING", "PENDING"), "was requeued", "was cancelled"),
    ],
)
def test_a_job_that_slurm_starts_again_is_told_from_one_that_is_over(job, said, reason, last):
    """A job that was started again before has been counted in its own environment."""
    environment = job(said.replace("Restarts=0", "Restarts=2")) | {"SLURM_JOB_NODELIST": "n[1-2]"}
    for before, why in (("1", f"{reason}; Slurm starts it again, and it resumes"), ("2", last)):
        loss = job_loss(environment | {"SLURM_RESTART_COUNT": before})
        assert loss == (f"Slurm job 7 {why}", before == "1")


def test_a_job_that_slurm_knows_no_more_is_gone_and_silence_says_nothing(job):
    unknown = "slurm_load_jobs error: Invalid job id specified"
    assert job_loss(job("", exit_code=1, complaint=unknown))[0] == "Slurm job 7 is gone"
    assert job_loss(job("", exit_code=1, complaint="Unable to contact slurm controller")) == ("", False)
    assert job_loss({"PATH": "/nowhere", "SLURM_JOB_ID": "7"}) == ("", False)
    assert job_loss({}) == ("", False)


@pytest.mark.parametrize(("minutes", "notice"), [(1, "Slurm job 7 has reached its time limit"), (60, ""), (None, "")])
def test_a_signal_shortly_before_the_time_limit_means_the_time_limit(job, minutes, notice):
    """Slurm writes local time."""
    ends = "Unknown" if minutes is None else f"{datetime.now() + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%S}"
    assert job_notice(job(RUNNING.replace("EndTime=Unknown", f"EndTime={ends}"))) == notice


def test_a_loss_is_told_before_the_time_limit(job):
    assert job_notice(job(RUNNING.replace("RUNNING", "CANCELLED"))) == "Slurm job 7 was cancelled"

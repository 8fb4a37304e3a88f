"""How ranks ended, from the outputs of torchrun and mpirun; the texts are those of real launches."""

import pytest

from ncclt.launch.launcher import LaunchResult
from ncclt.launch.ranks import read_mpi_ending, read_torchrun_ending

RULE = "=" * 60


def banner(*, rank, code, host="n1", time="2026-11-21_14:13:29"):
    return f"""\
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1032, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
{RULE}
env FAILED
{"-" * 60}
Failures:
[1]:
  time      : 2026-11-21_14:13:20
  host      : {host}
  rank      : 9 (local_rank: 1)
  exitcode  : -15 (pid: 20997) 
  error_file: <N/A>
{"-" * 60}
Root Cause (first observed failure):
[0]:
  time      : {time}
  host      : {host}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 20996) 
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 20996
{RULE}
"""  # noqa: W291  torchrun writes those blanks


OWN = 'Traceback (most recent call last):\n  File "train.py", line 3\nRuntimeError: NCCL error: unhandled cuda error\n'
STOPPED = """\
Traceback (most recent call last):
  File "/venv/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler
torch.distributed.elastic.multiprocessing.api.SignalException: Process 32297 got signal: 15
"""


@pytest.mark.parametrize(("code", "exit_code"), [("-11", -11), ("7", 7)])
def test_the_exit_code_is_the_ranks(code, exit_code):
    """And the last lines are the rank's own, not torchrun's."""
    result = read_torchrun_ending(LaunchResult(exit_code=1, stderr=OWN + banner(rank=3, code=code)))
    assert result.exit_code == exit_code
    assert result.stderr == f"{OWN}torchrun: rank 3 on n1 failed first, with exit code {code}\n"


def test_the_cause_among_several_nodes():
    """A rank that was ended because of another one is not the cause, though it may have ended before."""
    stderr = (
        banner(rank=0, code=-15, host="n1", time="2026-11-21_14:00:00")
        + STOPPED
        + banner(rank=9, code=1, host="n2", time="2026-11-21_14:00:05")
        + banner(rank=5, code=-9, host="n3", time="2026-11-21_14:00:01")
    )
    result = read_torchrun_ending(LaunchResult(exit_code=1, stderr=stderr))
    assert (result.exit_code, result.stderr) == (-9, "torchrun: rank 5 on n3 failed first, with exit code -9\n")


def test_what_is_not_understood_stays(subtests):
    """Text and exit code."""
    cases = [
        LaunchResult(exit_code=0, stderr="fine"),
        LaunchResult(exit_code=-9, stderr=OWN),
        LaunchResult(exit_code=None, not_started="cannot start python"),
        LaunchResult(exit_code=2, stderr="torchrun: error: unrecognized arguments\n"),
        LaunchResult(exit_code=1, stderr=banner(rank=1, code="many").partition("Root")[0]),
    ]
    for result in cases:
        with subtests.test(result=result):
            assert read_torchrun_ending(result) == result


def test_a_launch_that_was_ended_keeps_its_own_exit_code():
    """Its ranks ended because it was."""
    result = read_torchrun_ending(LaunchResult(exit_code=1, timed_out=True, stderr=f"last words\n{STOPPED}"))
    assert (result.exit_code, result.stderr) == (1, "last words\n")


def test_a_rank_is_no_cause_of_an_end_by_others(subtests):
    cases = [
        {"exit_code": 0},
        {"exit_code": -9},
        {"exit_code": None},
        {"exit_code": 1, "killed": True},
        {"exit_code": 1, "timed_out": True},
    ]
    for ended in cases:
        with subtests.test(ended=ended):
            result = read_torchrun_ending(LaunchResult(stderr=OWN + banner(rank=3, code=7), **ended))
            assert (result.exit_code, result.stderr) == (ended["exit_code"], OWN)


@pytest.mark.parametrize("said", [banner(rank=1, code="many"), banner(rank=1, code=7).replace("Root Cause", "Some")])
def test_a_report_without_a_rank_leaves_the_exit_code_and_what_the_ranks_wrote(said):
    result = read_torchrun_ending(LaunchResult(exit_code=1, stderr=OWN + said))
    assert (result.exit_code, result.stderr) == (1, OWN)


OPEN_MPI_MISSING = "mpirun was unable to launch the specified application as it could not access\nor execute an exec"
HYDRA_MISSING = "[proxy:0:0@vm] HYDU_create_process: execvp error on file /nowhere (No such file or directory)"
HYDRA_SIGNAL = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n"


def test_exit_codes_of_mpirun(subtests):
    """A program that is not there, and signals where only the text tells them."""
    cases = [
        (LaunchResult(exit_code=132, stderr=OPEN_MPI_MISSING), 127),
        (LaunchResult(exit_code=255, stderr=HYDRA_MISSING), 127),
        (LaunchResult(exit_code=11, stdout=HYDRA_SIGNAL), -11),
        (LaunchResult(exit_code=11, stdout="a rank that exits with 11"), 11),
        (LaunchResult(exit_code=1, stderr=HYDRA_SIGNAL.replace("11", "1")), -1),
        (LaunchResult(exit_code=9, stderr=HYDRA_SIGNAL), 9),
        (LaunchResult(exit_code=-15, stderr=OPEN_MPI_MISSING), -15),
        (LaunchResult(exit_code=139), 139),
        (LaunchResult(exit_code=0, stdout=HYDRA_SIGNAL), 0),
        (LaunchResult(exit_code=None, not_started="cannot start mpirun"), None),
    ]
    for result, exit_code in cases:
        with subtests.test(result=result):
            assert read_mpi_ending(result).exit_code == exit_code

"""What Slurm says about a failed step; the texts are those of a real Slurm 22.05 where not noted otherwise."""

import pytest

from ncclt.launch.slurm.launcher import StepFailure, step_failure

RANK_FAILED = """\
srun: error: n2: task 1: {ending}
srun: launch/slurm: _step_signal: Terminating StepId=3.2
slurmstepd-n1: error: *** STEP 3.2 ON n1 CANCELLED AT 2026-11-21T14:04:47 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=3.2
"""
NODE_FAILED = """\
srun: error: Node failure on n2
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T14:07:59 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
srun: error: n2: task 1: Terminated
"""
CANCELLED = """\
slurmstepd-n1: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-21T14:08:10 ***
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n1: task 0: Killed
"""
# As people report it (nextflow-io/nextflow issue 5932).
OUT_OF_MEMORY = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.
srun: error: sdumont6156: task 0: Out Of Memory
"""
MISSING = """\
slurmstepd-n2: error: execve(): /nowhere/perf: No such file or directory
srun: error: n1: tasks 0-1: Exited with exit code 2
"""


def test_the_rank_that_failed_first_is_named(subtests):
    """srun itself ends with 143 here, the highest code of all tasks."""
    cases = [
        ("Exited with exit code 7", 7),
        ("Segmentation fault", -11),
        ("Segmentation fault (core dumped)", -11),
        ("Aborted", -6),
        ("Bus error", -7),
        ("Exited with exit code 255", 255),
        ("Vanished", None),
    ]
    for ending, exit_code in cases:
        with subtests.test(ending=ending):
            failure = StepFailure(reason=f"task 1 on n2: {ending}", exit_code=exit_code)
            assert step_failure(RANK_FAILED.format(ending=ending)) == failure
    by_shell = StepFailure(reason="task 1 on n2: Segmentation fault", exit_code=-11)
    assert step_failure(RANK_FAILED.format(ending="Exited with exit code 139")) == by_shell, "as the shell of a task"


@pytest.mark.parametrize("shell", ["sh: 1: ", "sh: line 1: ", "sh: "])  # dash, bash, busybox
def test_a_program_that_the_shell_of_a_task_does_not_find_is_named(shell):
    text = f"{shell}/nowhere/perf: not found\n" + RANK_FAILED
    assert step_failure(text.format(ending="Exited with exit code 127")) == StepFailure(
        reason="/nowhere/perf: not found on the compute node", exit_code=127
    )
    assert step_failure(text.format(ending="Exited with exit code 3")).reason.startswith("task 1 on n2")


def test_causes_are_said_in_words(subtests):
    cases = [
        (NODE_FAILED, "a node failed (srun: error: Node failure on n2)", -15),
        (
            "".join(sorted(NODE_FAILED.splitlines(keepends=True), key=lambda line: "slurmstepd" not in line)),
            "a node failed (srun: error: Node failure on n2)",
            -15,
        ),
        (CANCELLED, "the step was cancelled (slurmstepd-n1: error: *** STEP 9.0", -9),
        (OUT_OF_MEMORY, "a node ran out of memory (slurmstepd: error: Detected 1 oom_kill", None),
        (MISSING, "/nowhere/perf: No such file or directory on the compute node", 127),
        (MISSING.replace("No such file or directory", "Permission denied"), "/nowhere/perf: Permission denied", 126),
        ("srun: error: Unable to create step for job 4: More processors requested than permitted\n", "", None),
        (
            "srun: error: Slurm job 7 has expired\nsrun: Check SLURM_JOB_ID environment variable.\n",
            "the Slurm allocation is gone (srun: error: Slurm job 7 has expired)",
            None,
        ),
        (
            "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T14:08:10 DUE TO TIME LIMIT ***\n",
            "the time of the Slurm job is over",
            None,
        ),
        ("", "", None),
        ("the program says: node failure, out of memory, job 7 has expired\n", "", None),
    ]
    for text, begins, exit_code in cases:
        with subtests.test(text=text):
            failure = step_failure(text)
            assert failure.reason.startswith(begins)
            assert bool(failure.reason) == bool(begins)
            assert failure.exit_code == exit_code


def test_long_lines_are_cut_and_made_printable():
    line = "srun: error: Application launch failed: \x1b[1m" + "x" * 1000
    shown = line.replace("\x1b", "?")[:299] + "…"
    assert step_failure(line).not_started == shown
    assert step_failure(line[:300]).not_started == f"{shown[:-1]}x"


def test_what_took_the_nodes_away_is_told_from_what_ended_a_step(subtests):
    cases = [
        ("DUE TO PREEMPTION", "Slurm took the nodes for another job", True),
        ("DUE TO NODE FAILURE, SEE SLURMCTLD LOG", "a node failed", True),
        ("DUE to JOB REQUEUE", "the Slurm allocation is gone", True),
        ("DUE TO TIME LIMIT", "the time of the Slurm job is over", False),
    ]
    for cause, meaning, lost in cases:
        with subtests.test(cause=cause):
            found = step_failure(
                f"slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T14:07:59 {cause} ***\n"
            )
            assert found.reason.startswith(meaning)
            assert found.lost is lost

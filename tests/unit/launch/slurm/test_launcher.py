"""Launches as steps of Slurm: the plans; a real Slurm runs them in tests/integration/test_slurm.py."""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from program import stand_in

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.allocation import Allocation
from ncclt.launch.slurm.launcher import SlurmLauncher, file_variables, ship

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "slurm"
PLAIN = Allocation(job_ids=("7",), groups=(("n1", "n2", "n3"),), cpus_per_task=12)
HETEROGENEOUS = Allocation(job_ids=("5", "6"), groups=(("a1",), ("b07", "b08")), addresses=(("a1", "10.0.0.1"),))
VARIABLES = {"NCCL_ALGO": "Ring", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}
COMMAND = ("/opt/nccl-tests/all_reduce_perf", "-b", "8M", "-e", "64M")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "NCCL_BUFFSIZE": "1", "NCCL_DEBUG": "INFO"}


def launcher(allocation=PLAIN, *, nodes=2, hosts=(), **options):
    return SlurmLauncher(
        shape=JobShape(nodes=nodes, processes_per_node=8, hosts=hosts),
        allocation=allocation,
        **{"environment": ENVIRONMENT, **options},
    )


def run_step(folder, command=("perf",), **programs):
    """Run a command as one step of a Slurm of stand-ins."""
    made = launcher(environment=stand_in(folder, **programs))
    return made.run(replace(made.plan(command, variables={}, timeout_s=60.0), clean_up=()))


def test_golden_plan(subtests, check_golden):
    """The plan is pinned; run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change, and read the difference."""
    cases = [
        ("plain", launcher()),
        ("chosen_hosts", launcher(hosts=("n3", "n2"), extra=("--mpi=pmix",), keep_env=["NCCL_BUFFSIZE"])),
        ("container", launcher(container="nvcr.io#nvidia/pytorch:26.10-py3")),
        ("heterogeneous", launcher(HETEROGENEOUS, nodes=3)),
        ("heterogeneous_one_component", launcher(HETEROGENEOUS, hosts=("b07", "b08"))),
    ]
    for name, made in cases:
        with subtests.test(name=name):
            plan = asdict(made.plan(COMMAND, variables=VARIABLES, timeout_s=120.0))
            check_golden(GOLDEN / f"{name}.json", json.dumps(plan, indent=2) + "\n")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("TaskProlog              = /etc/prolog.sh", ", from TaskProlog=/etc/prolog.sh"),
        ("TaskProlog              = (null)", ""),
        ("", ""),
    ],
)
def test_a_variable_that_nobody_asked_for_is_blamed_on_the_prolog_where_there_is_one(tmp_path, config, told):
    """srun and scontrol are stand-ins: what a task finds in its environment, and Slurm's own configuration."""
    unfit = "echo 'ncclt: unfit: NCCL_ALGO on n1' >&2; exit 78"
    result = run_step(tmp_path, srun=unfit, scontrol=f"echo '{config}'")
    assert result.stderr == f"ncclt: unfit: NCCL_ALGO on n1{told}\n"


@pytest.mark.parametrize(("exit_code", "told"), [(0, False), (7, True)])
def test_a_step_that_ends_well_is_no_failure_whatever_it_printed(tmp_path, exit_code, told):
    said = "srun: error: n1: task 0: Exited with exit code 7"
    result = run_step(tmp_path, srun=f"echo 'ncclt: started\n{said}' >&2; exit {exit_code}")
    assert (result.exit_code, result.not_started) == (exit_code, "")
    assert ("ncclt: Slurm says: task 0 on n1" in result.stderr) == told


@pytest.mark.parametrize(
    ("said", "ended", "exit_code", "not_started", "lost"),
    [
        # srun's own code is the highest of all tasks, also of those that it ended itself.
        ("srun: error: n1: task 0: Exited with exit code 7", 143, 7, "", ""),
        ("srun: error: n1: task 0: Segmentation fault", 139, -11, "", ""),
        ("srun: error: Socket timed out on send/recv operation", 3, 3, "", ""),
        ("srun: error: Node failure on n2", 143, 143, "", "a node failed (srun: error: Node failure on n2)"),
        (
            "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure",
            1,
            1,
            "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure",
            "",
        ),
        (
            "slurmstepd: error: execve(): sh: No such file or directory",
            2,
            127,
            "slurmstepd: error: execve(): sh: No such file or directory",
            "",
        ),
        ("words of the command itself", 9, 9, "", ""),
    ],
    ids=["code", "signal", "silence", "node", "half", "no-shell", "own"],
)
def test_a_step_ends_as_the_task_that_failed_first(tmp_path, said, ended, exit_code, not_started, lost):
    result = run_step(tmp_path, srun=f"echo 'ncclt: started\n{said}' >&2; exit {ended}")
    assert (result.exit_code, result.not_started, result.lost) == (exit_code, not_started, lost)
    assert ("ncclt: Slurm says: " in result.stderr) == ("words of" not in said and "failed on node" not in said)


@pytest.mark.parametrize("refusals", [1, 9])
def test_a_refused_step_is_tried_again_and_is_no_failure_of_the_command(tmp_path, refusals):
    """srun runs the tasks after some refusals, in words that nobody has listed."""
    said = "srun: error: the controller has something against job 7"
    refuse = (
        f"echo >>{tmp_path}/tries; [ $(wc -l <{tmp_path}/tries) -gt {refusals} ] || {{ echo '{said}' >&2; exit 1; }}"
    )
    start = 'while [ $1 != sh ]; do shift; done; exec "$@"'
    result = run_step(tmp_path, ("echo", "measured"), srun=f"{refuse}; {start}")
    started = refusals == 1
    assert (result.exit_code, result.stdout) == ((0, "measured\n") if started else (1, ""))
    assert result.not_started == ("" if started else said)
    assert (tmp_path / "tries").read_text().count("\n") == (2 if started else 3)


def test_a_full_folder_of_a_node_is_named(tmp_path):
    """The files of a command travel to each node; mktemp is a stand-in for one that has no room."""
    (tmp_path / "worker.py").write_text("")
    task, texts = ship(("python", str(tmp_path / "worker.py")), [tmp_path / "worker.py"])
    environment = {**stand_in(tmp_path, mktemp="exit 1"), "TMPDIR": "/full", **file_variables(texts)}
    done = subprocess.run(task, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ncclt: {os.uname().nodename} cannot write to /full: free space there"


def test_files_travel_in_variables(tmp_path):
    """The worker is read from a descriptor, and its variable wins over the container's environment as well."""
    worker = tmp_path / "worker.py"
    worker.write_text("print('µ')\n")
    plan = launcher(container="image").plan(("python", str(worker), "-x"), variables={}, timeout_s=1.0, files=(worker,))
    assert plan.files == (("worker.py", "print('µ')\n"),)
    assert plan.argv[-4:] == ("--", "python", "/dev/fd/3", "-x")
    assert str(tmp_path) not in " ".join(plan.argv)
    assert "NCCLT_FILE_0" in next(word for word in plan.argv if word.startswith("--container-env="))


def test_shipped_files_are_read_and_leave_nothing(tmp_path):
    """The very shell words of a task, run here."""
    files = [tmp_path / name for name in ("one.sh", "two 'quoted'.txt")]
    files[0].write_text('echo "$1 $(cat "$2")"; ls "$TMPDIR"; env | grep -c ^NCCLT_FILE_\n')
    files[1].write_text("µ\n\n")
    folder = tmp_path / "scratch"
    folder.mkdir()
    task, texts = ship(("sh", str(files[0]), "word with blanks", str(files[1])), files)
    done = subprocess.run(
        task,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder), **file_variables(texts)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "word with blanks µ\n0\n"


@pytest.mark.parametrize(
    ("script", "exit_code", "lingers_s"),
    [
        ("exit 0", 0, []),
        ("exit 7", 7, ["0.5"]),
        ("kill -SEGV $$", 139, ["0.5"]),
        ("kill -KILL $$", 137, ["0.5"]),
        # As Slurm does: a signal to all processes of the task.
        ("kill -TERM 0; exec sleep 600", 143, ["0"]),
        ("trap 'exit 3' TERM; kill -TERM 0; exit 9", 3, ["0"]),
        ("trap 'exit 0' USR1; kill -USR1 0; exit 9", 0, []),
        ("/nowhere/perf", 127, ["0.5"]),
    ],
)
def test_the_shell_of_a_task_is_never_ended_by_a_signal_and_lingers_after_a_failure(
    tmp_path, script, exit_code, lingers_s
):
    asked = tmp_path / "asked"
    done = subprocess.run(
        ship(("sh", "-c", script), ())[0],
        env=stand_in(tmp_path, sleep=f"echo $1 >>{asked}"),
        stderr=subprocess.DEVNULL,
        timeout=240,
        process_group=0,
    )
    assert done.returncode == exit_code
    assert (asked.read_text().split() if asked.exists() else []) == lingers_s


def test_the_shell_of_a_task_hands_signals_on(subtests):
    """With proctrack/cgroup Slurm sends SIGTERM to the shell alone, and SIGKILL half a minute later."""
    cases = [
        ("echo up; exec sleep 600", signal.SIGTERM, 143),
        ("echo up; exec sleep 600", signal.SIGINT, 143),
        ("trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done", signal.SIGTERM, 3),
        ("trap 'exit 0' USR1; echo up; while :; do sleep 0.05; done", signal.SIGUSR1, 0),
    ]
    for script, sent, exit_code in cases:
        with (
            subtests.test(script=script),
            subprocess.Popen(ship(("sh", "-c", script), ())[0], stdout=subprocess.PIPE, process_group=0) as shell,
        ):
            try:
                assert shell.stdout.readline() == b"up\n"
                shell.send_signal(sent)
                assert shell.wait(240) == exit_code
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)


def test_seven_files_of_90_kilobytes_still_fit(tmp_path):
    files = [tmp_path / f"{number}.py" for number in range(7)]
    for file in files:
        file.write_text("é" * 45_000)
    assert [name for name, _ in ship(("python", *map(str, files)), files)[1]] == [file.name for file in files]
    files[0].write_text("é" * 45_000 + "x")
    with pytest.raises(UsageError, match=r"0\.py is too long"):
        ship(("python", *map(str, files)), files)
    with pytest.raises(UsageError, match="8 files are too many"):
        ship(("python",), [tmp_path / str(number) for number in range(8)])


def test_without_an_allocation_nothing_can_be_planned():
    made = SlurmLauncher.create(shape=JobShape(), environment={})
    assert made.name == "slurm"
    with pytest.raises(UsageError, match="not a Slurm allocation"):
        made.plan(COMMAND, variables={}, timeout_s=1.0)


def test_an_allocation_that_is_too_small_is_refused_at_once():
    environment = {"PATH": "", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    with pytest.raises(UsageError, match="allocation 7 has 2"):
        SlurmLauncher.create(shape=JobShape(nodes=4), environment=environment)
    assert SlurmLauncher.create(shape=JobShape(nodes=2), environment=environment).plan(
        COMMAND, variables={}, timeout_s=1.0
    )


@pytest.mark.parametrize(
    ("granted", "per_task", "tasks", "extra", "refused"),
    [
        ("1(x2)", "", 4, (), "has 1 CPUs on n1, too few for 4 tasks, one for each GPU"),
        ("64,8", "", 16, (), "has 8 CPUs on n2, too few for 16 tasks"),
        ("64(x2)", "16", 8, (), "has 64 CPUs on n1, too few for 8 tasks of 16 CPUs each"),
        ("64(x2)", "8", 8, (), ""),
        ("1(x2)", "", 4, ("--overcommit",), ""),
        ("", "", 4, (), ""),
    ],
)
def test_an_allocation_with_too_few_cpus_is_told_what_it_lacks(granted, per_task, tasks, extra, refused):
    """`salloc -N2` alone gives one CPU on each node, and srun would only say that more were requested."""
    environment = {
        "PATH": "",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_CPUS_PER_NODE": granted,
        "SLURM_CPUS_PER_TASK": per_task,
    }
    shape = JobShape(nodes=2, processes_per_node=tasks)
    if not refused:
        assert SlurmLauncher.create(shape=shape, environment=environment, extra=extra)
        return
    with pytest.raises(UsageError, match=refused) as caught:
        SlurmLauncher.create(shape=shape, environment=environment, extra=extra)
    assert caught.value.hint == f"allocate with --exclusive, or with --ntasks-per-node={tasks}"


STUBBORN = """\
# A Slurm whose steps need some persuasion: each scancel takes one of the names in the file.
case $(basename "$0") in
  squeue)
    [ -s "$STEPS" ] && { cat "$STEPS"; exit 0; }
    [ -z "$GONE" ] || { echo "error: Invalid job id" >&2; exit 1; } ;;
  scancel) echo "$@" >>"$STEPS.asked"; sed -i 1d "$STEPS" ;;
esac
"""


@pytest.mark.parametrize(
    ("steps", "gone", "exit_code", "asked"),
    [
        ("", "", 0, []),
        ("", "yes", 0, []),
        ("7.0 other\n7.1 ncclt-{ncclt-mark}-not\n", "", 0, []),
        ("7.3 ncclt-{ncclt-mark}\n8.3 ncclt-{ncclt-mark}\n", "", 0, ["--quiet 7.3 8.3", "--quiet --signal=KILL 8.3"]),
        ("7.3 ncclt-{ncclt-mark}\n" * 9, "", 1, ["--quiet 7.3 7.3 7.3 7.3 7.3 7.3 7.3 7.3 7.3"]),
    ],
)
def test_the_clean_up_cancels_its_own_steps_until_they_are_gone(tmp_path, steps, gone, exit_code, asked):
    """A step that stays is reported by the last line of output."""
    (tmp_path / "steps").write_text(steps)
    environment = stand_in(tmp_path, squeue=STUBBORN, scancel=STUBBORN)
    (command,) = launcher().plan(COMMAND, variables={}, timeout_s=1.0).clean_up
    done = subprocess.run(
        (*command[:-1], "3"),
        env={**environment, "STEPS": str(tmp_path / "steps"), "GONE": gone},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = tmp_path / "steps.asked"
    assert done.returncode == exit_code
    assert (said.read_text().splitlines() if said.exists() else [])[: len(asked)] == asked
    assert ("Slurm step 7.3" in done.stdout) == bool(exit_code)

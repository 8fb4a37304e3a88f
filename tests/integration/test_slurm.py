"""Launches on a real Slurm of two nodes: what reaches the tasks, what comes back, and that nothing is left."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from leftovers import carrying
from program import run_program
from waiting import soon

from ncclt.core.message import Collective, Message
from ncclt.launch.launcher import MARK, JobShape
from ncclt.launch.slurm.allocation import addresses_by_scontrol, read_allocation
from ncclt.launch.slurm.launcher import SlurmLauncher
from ncclt.launch.slurm.sbatch import BatchRequest, follow, plan_batch, submit, submit_and_follow
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.testing.launcher_contract import LauncherContract

PATIENT_S = 120.0

STUBBORN = """
import os, signal, sys, time
if "FLEES" in os.environ and os.fork() == 0:
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", os.environ["WORD"], flush=True)
time.sleep(600)
"""


@pytest.fixture
def allocation(slurm_cluster):
    """The environment of a program that runs in an allocation of both nodes."""
    with slurm_cluster.allocation() as environment:
        yield environment


@pytest.fixture
def launcher(allocation):
    return SlurmLauncher.create(shape=JobShape(nodes=2, processes_per_node=2), environment=allocation)


def run(launcher, code, *, variables=None, timeout_s=PATIENT_S, files=()):
    command = (sys.executable, "-S", "-c", code)
    return launcher.run(launcher.plan(command, variables=variables or {}, timeout_s=timeout_s, files=files))


class TestSlurmLauncher(LauncherContract):
    """The launcher for a Slurm allocation."""

    @pytest.fixture(autouse=True)
    def _in_the_allocation(self, allocation):
        self._environment = allocation

    def launcher(self):
        allocation = read_allocation(self._environment, addresses_of=addresses_by_scontrol)
        return SlurmLauncher(shape=JobShape(nodes=2), allocation=allocation, environment=self._environment, grace_s=0.3)

    def refused(self):
        return SlurmLauncher.create(shape=JobShape(nodes=2), environment=self._environment, extra=("--no-such-option",))


def test_variables_are_the_same_on_both_nodes_and_nothing_inherited_is(allocation):
    """Values with commas, quotes and blanks survive; ranks are numbered node by node."""
    inherited = {"NCCL_BUFFSIZE": "1", "NCCL_DEBUG": "INFO", "SLURM_EXPORT_ENV": "NONE"}
    made = SlurmLauncher.create(shape=JobShape(nodes=2, processes_per_node=2), environment=allocation | inherited)
    value = "mlx5_0,mlx5_1:1 'x' \"y\" $HOME"
    told = (
        "import os; e = os.environ;"
        "nccl = sorted((n, v) for n, v in e.items() if n.startswith('NCCL_'));"
        "print(e['SLURM_PROCID'], e['SLURMD_NODENAME'], e['MASTER_ADDR'], e['MASTER_PORT'], nccl, sep='|')"
    )
    result = run(made, told, variables={"NCCL_IB_HCA": value})
    ranks = sorted(line.split("|") for line in result.stdout.splitlines())
    assert [rank[:3] for rank in ranks] == [
        [str(number), node, "127.0.0.1"] for number, node in enumerate(("n1", "n1", "n2", "n2"))
    ], result
    assert {rank[4] for rank in ranks} == {str([("NCCL_IB_HCA", value)])}
    assert len({rank[3] for rank in ranks}) == 1


def test_a_rank_that_fails_has_all_it_printed_forwarded(launcher):
    """srun says `Force Terminated` where it drops output that is under way; how much that is, is chance."""
    script = '[ "$SLURM_PROCID" = 0 ] || exec sleep 600; seq 200; sleep 0.05; seq 200; echo wrong; exit 7'
    result = launcher.run(launcher.plan(("sh", "-c", script), variables={}, timeout_s=PATIENT_S))
    assert (result.exit_code, result.stdout[-6:]) == (7, "wrong\n"), result.stderr
    assert "ncclt: Slurm says: task 0 on n1: Exited with exit code 7" in result.stderr
    assert "Force Terminated" not in result.stderr


def test_a_hang_is_ended_on_all_nodes(slurm_cluster, launcher):
    """The tasks ignore SIGTERM, and half of them have left their session; on a busy machine they begin late."""
    for limit_s in (8.0, 32.0, PATIENT_S):
        result = run(launcher, STUBBORN, variables={"WORD": "stubborn-in-time", "FLEES": "yes"}, timeout_s=limit_s)
        assert result.timed_out
        if result.stdout.count("begun") == 8:
            break
    assert result.stdout.count("begun") == 8
    assert (result.survivors, result.left_elsewhere) == ((), ())
    assert slurm_cluster.steps() == []
    assert not carrying("stubborn-in-time")


def test_two_launches_run_at_once_on_their_own_nodes(allocation, tmp_path):
    """Each waits for a sign of the other."""
    code = (
        "import os, pathlib, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / os.environ['SLURMD_NODENAME']).touch()\n"
        "while len(list(folder.iterdir())) < 2: time.sleep(0.05)\n"
    )
    results = {}

    def launch(host):
        results[host] = run(SlurmLauncher.create(shape=JobShape(hosts=(host,)), environment=allocation), code)

    threads = [threading.Thread(target=launch, args=(host,)) for host in ("n1", "n2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {host: (result.exit_code, result.timed_out) for host, result in results.items()} == {
        "n1": (0, False),
        "n2": (0, False),
    }, results


def test_a_step_of_another_node_is_cancelled_by_its_name(slurm_cluster, allocation, launcher):
    """What a reaper does when srun is gone; the tasks carry no mark, as if they were on another machine.

    Whatever flees from its task is Slurm's to find, by cgroups on a real cluster.
    """
    (command,) = launcher.plan(("true",), variables={}, timeout_s=1.0).clean_up
    srun = ("srun", "--nodes=2", "--overlap", "--job-name=ncclt-orphan", sys.executable, "-S", "-c", STUBBORN)
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = allocation | {"WORD": "stubborn-elsewhere"}
    step = subprocess.Popen(srun, env=environment, **nothing)
    try:
        if not soon(lambda: len(carrying("stubborn-elsewhere")) >= 3):
            # On a busy machine a controller may lose the answer to a step that was asked for: ask once more.
            step.kill()
            step.wait()
            step = subprocess.Popen(srun, env=environment, **nothing)
            assert soon(lambda: len(carrying("stubborn-elsewhere")) >= 3)
        clean_up = [word.replace(MARK, "orphan") for word in command]
        done = run_program(clean_up, env=allocation)
        assert done.returncode == 0, done
        assert slurm_cluster.steps() == []
        assert soon(lambda: not carrying("stubborn-elsewhere"))
    finally:
        step.kill()
        step.wait()


def test_kill_9_of_ncclt_leaves_no_step(slurm_cluster, allocation):
    """Nothing can be done in a process that is killed so: its reaper does it."""
    program = (
        "import os, sys\n"
        "from ncclt.launch.launcher import JobShape\n"
        "from ncclt.launch.slurm.launcher import SlurmLauncher\n"
        "launcher = SlurmLauncher.create(shape=JobShape(nodes=2))\n"
        f"command = (sys.executable, '-S', '-c', {STUBBORN!r})\n"
        "launcher.run(launcher.plan(command, variables={}, timeout_s=600.0))\n"
    )
    ncclt = subprocess.Popen(
        (sys.executable, "-c", program),
        env=allocation | {"WORD": "stubborn-and-orphaned", "FLEES": "yes"},
        stdin=subprocess.DEVNULL,
    )
    try:
        # ncclt itself, its reaper, srun and its child, and of each of two tasks a shell and two processes.
        begun = soon(lambda: len(slurm_cluster.steps()) == 1 and len(carrying("stubborn-and-orphaned")) >= 9)
        assert begun, (slurm_cluster.steps(), carrying("stubborn-and-orphaned"))
    finally:
        ncclt.kill()
        ncclt.wait()
    assert soon(lambda: not carrying("stubborn-and-orphaned"))
    assert soon(lambda: slurm_cluster.steps() == [])


def test_the_ranks_of_a_heterogeneous_job_are_numbered_through(slurm_cluster):
    """One component for each node, as where GPUs differ."""
    program = (
        "import sys\n"
        "from ncclt.launch.launcher import JobShape\n"
        "from ncclt.launch.slurm.launcher import SlurmLauncher\n"
        "code = 'import os; e = os.environ; print(*(e[n] for n in"
        ' ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURMD_NODENAME"]))\'\n'
        "launcher = SlurmLauncher.create(shape=JobShape(nodes=2, processes_per_node=2))\n"
        "result = launcher.run(launcher.plan((sys.executable, '-c', code), variables={}, timeout_s=60.0))\n"
        "print(result.stdout, result.stderr, result.not_started)\n"
        "sys.exit(result.exit_code)\n"
    )
    components = "--nodes=1 --ntasks=2 --nodelist=n1 : --nodes=1 --ntasks=2 --nodelist=n2"
    said = slurm_cluster.ask("salloc", *components.split(), sys.executable, "-c", program)
    assert sorted(line for line in said.splitlines() if line.strip()) == [
        "0 4 0 n1",
        "1 4 1 n1",
        "2 4 0 n2",
        "3 4 1 n2",
    ]
    slurm_cluster.wait_until_empty()


def test_the_pytorch_benchmark_measures_between_two_nodes(allocation):
    """Its worker is read from a descriptor, its ranks meet where Slurm says, its result comes over srun's output."""
    pytest.importorskip("torch.distributed")
    message = Message(
        collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2, spans_nodes=True
    )
    benchmark = TorchCollectives(backend="gloo", budget_s=0.1)
    (command,) = benchmark.commands((message,), folder=None)
    made = SlurmLauncher.create(shape=JobShape(nodes=2), environment=allocation)
    result = made.run(
        made.plan(command.argv, variables=dict(command.variables), timeout_s=PATIENT_S, files=command.files)
    )
    assert result.exit_code == 0, result
    output = CommandOutput(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)
    (measurement,) = benchmark.read(command, output).measurements
    assert measurement.message == message
    assert measurement.wrong == 0


def batch(folder, code, **changes):
    return BatchRequest(
        command=(sys.executable, "-c", code), shape=JobShape(nodes=2), folder=folder, job_name="ncclt-test", **changes
    )


def test_a_study_is_submitted_and_followed(slurm_cluster, tmp_path):
    """Its outputs stay apart, its exit code comes back, and in it there is an allocation of both nodes."""
    code = (
        "import sys\n"
        "from ncclt.launch.launcher import JobShape\n"
        "from ncclt.launch.slurm.launcher import SlurmLauncher\n"
        "launcher = SlurmLauncher.create(shape=JobShape(nodes=2))\n"
        "result = launcher.run(launcher.plan(('sh', '-c', 'echo $SLURMD_NODENAME'), variables={}, timeout_s=60.0))\n"
        "print(sorted(result.stdout.split()))\n"
        "sys.exit('what people read')\n"
    )
    shown, said = [], []
    exit_code = submit_and_follow(
        batch(tmp_path, code, time_limit="5", extra=("--exclusive",)),
        wait=True,
        show=shown.append,
        say=said.append,
        environment=slurm_cluster.environment,
        poll_s=0.1,
    )
    assert exit_code == 1
    assert "".join(shown) == "['n1', 'n2']\n"
    assert "what people read\n" in "".join(said)
    assert "has ended: failed (NonZeroExitCode)" in said[-1]


def test_the_notice_of_the_end_reaches_ncclt_itself(slurm_cluster, tmp_path):
    """`--signal=B:TERM@60` signals the batch shell, whose place ncclt has taken."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    plan = plan_batch(batch(tmp_path, code))
    job_id = submit(plan, environment=slurm_cluster.environment)
    said = []

    def warn(text):
        assert text == "ready\n"
        slurm_cluster.ask("scancel", "--batch", "--signal=TERM", job_id)

    exit_code = follow(
        job_id, plan.logs(job_id), show=warn, say=said.append, environment=slurm_cluster.environment, poll_s=0.1
    )
    assert exit_code == 1
    assert "saved\n" in "".join(said)


def test_ctrl_c_leaves_the_job_and_a_second_one_cancels_it(slurm_cluster, tmp_path):
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ncclt.launch.launcher import JobShape\n"
        "from ncclt.launch.slurm.sbatch import BatchRequest, submit_and_follow\n"
        "def say(text):\n"
        "    print(text, end='', flush=True)\n"
        "request = BatchRequest(command=('sleep', '600'), shape=JobShape(), folder=Path(sys.argv[1]))\n"
        "sys.exit(submit_and_follow(request, wait=True, show=say, say=say, poll_s=0.1))\n"
    )
    following = subprocess.Popen(
        (sys.executable, "-c", program, str(tmp_path)),
        env=slurm_cluster.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with following:
        said = ""
        for sign in ("is running", "continues; `scancel"):
            said += next(line for line in following.stdout if sign in line)
            following.send_signal(signal.SIGINT)
        said += following.stdout.read()
        assert following.wait(PATIENT_S) == 130
    assert "is cancelled" in said
    slurm_cluster.wait_until_empty()

"""What only real processes show of every launcher that can run here; Slurm has tests of its own."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys

import pytest
from program import run_program
from waiting import until

from ncclt.launch.launcher import JobShape
from ncclt.launch.mpi import MpirunLauncher
from ncclt.launch.process.process_tree import members, new_mark
from ncclt.launch.ranks import UNFIT_CODE, find_unfit_reason

PATIENT_S = 120.0
WORD = "NCCLT_TEST_WORD"

OWNER = """
import sys
from ncclt.launch import launcher_class
from ncclt.launch.launcher import JobShape
name, hosts, options, code, word = eval(sys.argv[1])
shape = JobShape(nodes=len(hosts), hosts=hosts) if hosts else JobShape(processes_per_node=2)
launcher = launcher_class(name).create(shape=shape, **options)
command = (sys.executable, "-I", "-S", "-c", code)
launcher.run(launcher.plan(command, variables={"NCCLT_TEST_WORD": word}, timeout_s=600.0))
"""

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    open(os.path.join({folder!r}, str(os.getpid())), "w").close()
time.sleep(600)
"""


@pytest.fixture(
    scope="module", params=["mpirun", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("torchrun", "ssh"))]
)
def ways(request):
    """A launcher's name, its hosts and the options of its `create`; each starts two ranks."""
    name = request.param
    if name in ("torchrun", "ssh") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if name == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    if name == "ssh":
        sshd = request.getfixturevalue("sshd")
        return name, sshd.hosts, {"options": {"ssh_arg": sshd.options}}
    return name, (), {}


def test_kill_9_of_ncclt_leaves_nothing(ways, tmp_path):
    """Ranks that ignore SIGTERM, their children in other sessions, helpers, and the reaper itself."""
    word = new_mark()
    code = STUBBORN.format(folder=str(tmp_path))
    owner = subprocess.Popen((sys.executable, "-c", OWNER, repr((*ways, code, word))), env=os.environ | {WORD: word})
    try:
        assert until(lambda: owner.poll() is not None or len(list(tmp_path.iterdir())) == 2)
        assert owner.poll() is None
        assert len(members(word)) >= 6, "ranks, their children, the owner and its reaper"
        owner.kill()
        owner.wait()
        assert until(lambda: not members(word))
    finally:
        owner.kill()
        owner.wait()
        for left in members(word):
            os.kill(left, signal.SIGKILL)


def test_100_mb_of_output_cost_little_memory():
    """Only its end is kept; measured in a process of its own."""
    code = (
        "import os, resource\n"
        "from ncclt.launch.launcher import LaunchPlan\n"
        "from ncclt.launch.process.session import KEEP_BYTES, ProcessSession\n"
        "plan = LaunchPlan(argv=('sh', '-c', 'head -c 100000000 /dev/zero; echo end'), timeout_s=600)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "result = ProcessSession(plan, environment=os.environ).run()\n"
        "assert result.stdout.endswith('end\\n') and len(result.stdout) == KEEP_BYTES\n"
        "assert result.dropped_bytes == 100_000_004 - KEEP_BYTES\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = run_program((sys.executable, "-c", code))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000, "KiB; 8 MiB are kept, once as bytes and once as text"


def test_a_variable_that_mpirun_hands_on_and_the_plan_does_not_name_starts_no_rank():
    """As what the profile of a remote shell sets; the site's network is left to the site."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")

    def run(*foreign, variables):
        words = [word for variable in foreign for word in ("-x", variable)]
        launcher = MpirunLauncher.create(shape=JobShape(processes_per_node=2), extra=words)
        return launcher.run(launcher.plan(("echo", "ran"), variables=variables, timeout_s=PATIENT_S))

    fine = run("NCCL_IB_TC=106", variables={"NCCL_ALGO": "allreduce:ring,tree;broadcast:ring"})
    assert (fine.exit_code, fine.stdout.split()) == (0, ["ran"] * 2), fine
    refused = run("NCCL_TUNER_PLUGIN=/srv/other.so", variables={})
    assert (refused.exit_code, refused.stdout) == (UNFIT_CODE, "")
    assert find_unfit_reason(refused.stderr).startswith("unexpected NCCL_TUNER_PLUGIN=/srv/other.so on ")

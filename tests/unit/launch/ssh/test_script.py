"""The script of a node, run by this machine's shell: what a host does with it, without any ssh."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ncclt.launch.launcher import MARK, JobShape
from ncclt.launch.process.process_tree import members, new_mark
from ncclt.launch.ranks import UNFIT_CODE, find_unfit_reason
from ncclt.launch.ssh.launcher import RANK, SshLauncher, end_script

PATIENT_S = 60.0
PYTHON = (sys.executable, "-I", "-S", "-c")


def script_of(argv, cwd, **options):
    request = {"meeting_host": "127.0.0.1", "variables": {}, "files": (), "limit_s": 600}
    launcher = SshLauncher(shape=JobShape(hosts=("host",)), cwd=Path(cwd), grace_s=0.3)
    return launcher.node_script(argv, **{**request, **options})


@pytest.fixture
def node(tmp_path):
    """Start a node's script; its input stays open until somebody closes it."""
    started = []
    folder = tmp_path / "folder of the launch"
    folder.mkdir()

    def start(argv, *, cut=None, script=None, rank=3, **options):
        mark = new_mark()
        text = (script or script_of(argv, tmp_path, **options)).replace(MARK, mark)
        (folder / "script").write_text(text[:cut])
        process = subprocess.Popen(
            ("sh", folder / "script", folder, str(rank)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "NCCL_OF_THE_HOST": "1", "NCCL_ALGO": "Tree", "NCCLT_POLICY": "/x.csv"},
        )
        started.append(process)
        return process, mark

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def ending(process):
    """Exit code and outputs, with its input left open."""
    said = {}
    reader = threading.Thread(target=lambda: said.update(err=process.stderr.read()))
    reader.start()
    out = process.stdout.read()
    reader.join(PATIENT_S)
    return process.wait(timeout=PATIENT_S), out, said["err"]


def test_a_command_gets_its_variables_files_and_rank(node, tmp_path):
    """Word by word, and no NCCL variable of the host's own; nothing of it is left."""
    odd = "mlx5_0,mlx5_1;x=$HOME `id` \"q\" 'p' \\ \n%s"
    show = "import os, sys; print(repr([*sys.argv[1:], open(sys.argv[1]).read(), os.environ['ODD'], os.getcwd()]))"
    names = "; print(sorted(n for n in os.environ if n.startswith('NCCL'))); sys.exit(9)"
    process, mark = node(
        (*PYTHON, show + names, "/here/worker.py", "a b", RANK),
        variables={"ODD": odd, "NCCL_PROTO": "LL"},
        files=[("/here/worker.py", "my worker.py", odd)],
    )
    code, out, err = ending(process)
    assert (code, err) == (9, "")
    file = f"{tmp_path}/folder of the launch/my worker.py"
    assert out == f"{[file, 'a b', '3', odd, odd, str(tmp_path)]!r}\n['NCCLT_LAUNCH', 'NCCL_PROTO']\n"
    assert members(mark) == ()


def test_a_node_that_does_not_know_where_to_meet_says_so_at_once(node):
    """torchrun would try for minutes."""
    process, _mark = node(("touch", "/nowhere/at/all"), meeting_host="alias.invalid")
    code, _out, err = ending(process)
    assert code == UNFIT_CODE
    assert find_unfit_reason(err) == f"{os.uname().nodename} does not know the address of alias.invalid"


STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "os.fork() or os.setsid(); print('up', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("way", ["connection", "time"])
def test_a_node_ends_by_itself(node, way):
    """When nobody waits for it any more, or when it is late: also what ignores SIGTERM in a session of its own."""
    process, mark = node((*PYTHON, STUBBORN), limit_s=3 if way == "time" else 600)
    assert process.stdout.readline() == "up\n"
    if way == "connection":
        process.stdin.close()
    code, _out, _err = ending(process)
    assert code == 128 + signal.SIGKILL
    assert members(mark) == ()


def test_what_a_command_leaves_is_ended(node):
    """Although it has ended well itself."""
    leave = "import os, time; os.fork() or (os.setsid(), os.close(1), os.close(2), time.sleep(600)); print('well')"
    process, mark = node((*PYTHON, leave))
    assert ending(process)[:2] == (0, "well\n")
    assert members(mark) == ()


def test_half_a_script_does_nothing(node, tmp_path):
    """The connection may break while it is being sent."""
    touched = tmp_path / "touched"
    whole = script_of(("touch", str(touched)), tmp_path)
    for cut in range(0, len(whole) - len("main\n"), 97):
        process, _mark = node((), script=whole, cut=cut)
        process.stdin.close()
        ending(process)
    assert not touched.exists()
    process, _mark = node((), script=whole)
    assert ending(process)[0] == 0
    assert touched.exists()


def test_only_the_rank_that_is_meant_is_ended(node):
    """Two nodes may be one machine, and 1 is the beginning of 11."""
    eleventh, mark = node((*PYTHON, STUBBORN), rank=11)
    assert eleventh.stdout.readline() == "up\n"
    for rank in (1, 11):
        process = subprocess.run(
            ("sh", "-s", "folder", str(rank)),
            input=end_script(grace_s=0.3).replace(MARK, mark),
            text=True,
            capture_output=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert (process.returncode, process.stderr) == (0, "")
        assert bool(members(mark)) == (rank == 1)

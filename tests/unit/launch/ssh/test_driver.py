"""One ssh for each node, with a stand-in that runs the remote command here."""

import json
import os
import subprocess
import sys

import pytest

from ncclt.launch.ssh import driver
from ncclt.launch.ssh.driver import NODES_FILE, remote_command

PATIENT_S = 60.0

STAND_IN = """\
#!/bin/sh
# The last word is what the other side gets to do; a host called `lost` cannot be reached.
for word; do host=$command command=$word; done
[ "$host" != lost ] || { echo "connect to host lost: No route to host" >&2; exit 255; }
eval "$command"
"""


@pytest.fixture
def drive(tmp_path):
    """Run a script on some hosts and return what came of it."""
    ssh = tmp_path / "ssh"
    ssh.write_text(STAND_IN)
    ssh.chmod(0o755)

    def _drive(script, *hosts):
        (tmp_path / NODES_FILE).write_text(json.dumps([[str(ssh), "-T", host] for host in hosts]))
        (tmp_path / "script").write_text(script)
        return subprocess.run(
            (sys.executable, "-P", "-m", "ncclt.launch.ssh.driver", tmp_path, "script"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
            check=False,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )

    return _drive


def test_all_nodes_run_the_script_with_their_rank(drive, tmp_path):
    """It lies in a private folder while it runs; one of more than a pipe's size arrives whole."""
    noise = f"# {'x' * 200_000}\n"
    done = drive(f'{noise}echo "rank $2"; stat -c %a "$1"', "a", "b", "c")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", "700", "700", "700", "rank 0", "rank 1", "rank 2"]
    assert list(tmp_path.glob("ncclt-*")) == []


def test_the_first_failure_is_told_and_the_others_are_let_go(drive, tmp_path):
    """They see the end of their input, and their own failures count no more."""
    done = drive('[ "$2" = 1 ] && exit 7; cat >/dev/null; echo "rank $2 ends"; exit 3', "a", "b", "c")
    assert done.returncode == 7
    assert done.stderr == "ncclt: node 1 (b) failed first, with exit code 7\n"
    assert sorted(done.stdout.splitlines()) == ["rank 0 ends", "rank 2 ends"]
    assert list(tmp_path.glob("ncclt-*")) == []


def test_a_host_that_cannot_be_reached(drive):
    """ssh says why, and we which it is."""
    done = drive("cat >/dev/null", "a", "lost")
    assert done.returncode == 255
    assert done.stderr == (
        "connect to host lost: No route to host\nncclt: node 1 (lost) failed first, with exit code 255: it cannot be "
        "reached, or the connection was lost\n"
    )


def test_a_signal_is_told_as_shells_do(drive):
    """The connection itself was killed."""
    assert drive("kill -9 $PPID; cat >/dev/null", "a").returncode == 128 + 9


def test_a_node_that_does_not_end_is_named_and_its_connection_closed(monkeypatch, capsys):
    monkeypatch.setattr(driver, "_OTHERS_S", 0.2)
    stays, fails = ["sh", "-c", "exec sleep 60", "stays"], ["sh", "-c", "exit 3", "fails"]
    assert driver.run([stays, fails], b"") == 3
    assert capsys.readouterr().err.splitlines() == [
        "ncclt: node 1 (fails) failed first, with exit code 3",
        "ncclt: node 0 (stays) did not end after that: its connection is closed",
    ]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_remote_command_is_for_any_shell(shell, tmp_path):
    """It needs nothing but words in single quotes; one line, for csh knows no other."""
    command = remote_command(4, len(b"echo $2; cat"))
    assert "\n" not in command
    done = subprocess.run(
        (shell, "-c", command), input=b"echo $2; cat and the rest", capture_output=True, timeout=PATIENT_S, check=True
    )
    assert done.stdout == b"4\n and the rest"

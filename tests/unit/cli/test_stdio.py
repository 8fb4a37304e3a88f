"""Whatever a shell hands over as stdout, a command ends with a sentence and an exit code, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [("profile", "list"), ("doctor", "--rules"), ("tune", "--help"), ("env", "--help"), ("--version",)]
TIMEOUT_S = 120


@pytest.fixture
def environ(tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NCCLT_", "XDG_", "PYTHON"))}
    return {**kept, "HOME": str(tmp_path)}


def run(words, environ, **options):
    argv = [sys.executable, "-m", "ncclt", *words]
    return subprocess.run(argv, env=environ, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, **options)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_reader_that_is_gone_is_nothing_to_complain_about(words, environ):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = run(words, environ, stdout=gone)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_is_said_in_one_line(words, environ):
    with Path("/dev/full").open("w") as full:
        done = run(words, environ, stdout=full)
    assert (done.returncode, done.stderr) == (1, "ncclt: stdout cannot be written: No space left on device\n")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_stdout_is_no_error(words, environ):
    argv = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ncclt", *words]
    done = subprocess.run(argv, env=environ, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_an_encoding_lacks_becomes_a_question_mark(environ):
    fabric = "preflight --launcher simulate --cluster dgx-a100 --nodes 3 --full -q --no-store"
    done = run(fabric.split(), {**environ, "PYTHONIOENCODING": "ascii:strict"}, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "n00   ?" in done.stdout
    assert done.stdout.isascii()


def test_a_caller_in_the_same_process_may_listen(environ):
    """With an object of his own in the place of stdout."""
    code = (
        "import contextlib, io, sys\n"
        "from ncclt.cli import main\n"
        "sys.argv = ['ncclt', '--version']\n"
        "heard = io.StringIO()\n"
        "with contextlib.redirect_stdout(heard):\n"
        "    try:\n        main()\n    except SystemExit as end:\n        code = end.code\n"
        "print(code, heard.getvalue().split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.split() == ["0", "ncclt"]

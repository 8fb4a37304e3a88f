"""A user of whom the machine knows nothing but a number, as in a container that was started with `--user 1234`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclt.user_dirs import user_folder, with_home

_AS_NOBODY = """\
import pwd

def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = unknown
from ncclt.cli import main
main()
"""
"""A user id without an account cannot be taken on without privileges; this is what Python says of one."""


def ncclt_of_nobody(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, without HOME and without an account."""
    left_out = ("NCCLT_", "XDG_", "NCCL_")
    environ = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith(left_out)}
    argv = [sys.executable, "-c", _AS_NOBODY, *words]
    return subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("asked", [("--storage", "sqlite:///none.db"), ("--server", "http://127.0.0.1:9"), ()])
def test_a_job_starts_for_a_user_without_a_home(tmp_path, asked):
    done = ncclt_of_nobody(
        tmp_path, "run", "--cluster", "leonardo", "--model", "bert", *asked, "--", "sh", "-c", "echo it trains; exit 7"
    )
    assert (done.returncode, done.stdout) == (7, "it trains\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []  # above all no folder that is named ~


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("env", "--cluster", "leonardo", "--model", "bert"), 3, "nothing has been tuned"),
        (("config", "show"), 0, "/.config/ncclt/config.toml"),
        (("admin", "plugin", "path"), (0, 3), ""),
    ],
)
def test_other_commands_say_a_sentence_or_take_a_sensible_place(tmp_path, words, code, said):
    done = ncclt_of_nobody(tmp_path, *words)
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_names_no_folder_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert user_folder("XDG_CACHE_HOME", ".cache") == Path("/home/me/.cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert user_folder("XDG_CACHE_HOME", ".cache") == Path("/fast")
    assert Path(with_home({"HOME": "me"})["HOME"]).is_absolute()

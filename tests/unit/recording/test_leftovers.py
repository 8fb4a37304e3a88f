"""Ending what a launch leaves outside of its session."""

import os
import subprocess
import sys

import pytest

from ncclt.recording.leftovers import end_leftovers

SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]


@pytest.fixture
def start():
    """Start sleepers; end those that are left."""
    started = []

    def _start(mark):
        process = subprocess.Popen(
            SLEEP, env=os.environ | {"PYTHONPATH": mark}, stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield _start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_only_processes_of_that_folder_are_ended(tmp_path, start):
    ours, theirs = start(f"{tmp_path / 'x'}/inject:/other"), start(f"{tmp_path / 'xy'}/inject")
    assert end_leftovers(tmp_path / "x") == ()
    assert ours.wait(timeout=5) == -9
    assert theirs.poll() is None


def test_nothing_to_end(tmp_path):
    assert end_leftovers(tmp_path) == ()

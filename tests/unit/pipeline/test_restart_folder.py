"""Folders of the runs of `ncclt autotune --restarts`."""

import json
import os
import shutil
import subprocess
import sys

from ncclt.pipeline.restart_folder import open_run_folder, read_run_states

DIES = """
import shutil, sys, os
from pathlib import Path
from ncclt.pipeline.restart_folder import open_run_folder
base = Path(sys.argv[1])
with open_run_folder(base, "bert") as folder:
    shutil.copytree(folder.path, base / ".ncclt-restarts-left")
"""


def _leave(base):
    """Leave the folder of a run that was killed with everything that would have removed it."""
    subprocess.run([sys.executable, "-c", DIES, str(base)], check=True, timeout=240)
    return base / ".ncclt-restarts-left"


def test_folder_of_a_dead_run_is_removed_by_the_next_run(tmp_path):
    left = _leave(tmp_path)
    assert not read_run_states(tmp_path, "bert")
    with open_run_folder(tmp_path, "gpt"):
        assert not left.exists()
    assert not list(tmp_path.iterdir())


def test_live_run_is_shown_and_stays(tmp_path):
    with open_run_folder(tmp_path, "bert") as first:
        first.show(status="start 1 with control", candidates=["candidate a: ring"])
        with open_run_folder(tmp_path, "gpt"):
            (state,) = read_run_states(tmp_path, "bert")
        assert first.path.exists()
    assert state.pid == os.getpid()
    assert state.describe()[0].endswith(": start 1 with control")
    assert state.describe()[1:] == ["candidate a: ring"]


def test_run_of_another_machine_is_dead_only_after_a_day_of_silence(tmp_path):
    left = _leave(tmp_path)
    facts = json.loads((left / "state.json").read_text())
    (left / "state.json").write_text(json.dumps(facts | {"boot_id": "another"}))
    with open_run_folder(tmp_path, "gpt"):
        assert left.exists()
    os.utime(left / "state.json", (0, 0))
    with open_run_folder(tmp_path, "gpt"):
        assert not left.exists()


def test_damaged_or_foreign_folder_hinders_no_run(tmp_path):
    (tmp_path / ".ncclt-restarts-x").mkdir()
    (tmp_path / ".ncclt-restarts-y").mkdir()
    (tmp_path / ".ncclt-restarts-y" / "state.json").write_text("{")
    with open_run_folder(tmp_path, "gpt") as folder:
        assert folder.path.exists()
    assert not read_run_states(tmp_path, "gpt")
    shutil.rmtree(tmp_path / ".ncclt-restarts-x")

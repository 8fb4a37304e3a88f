"""PyTorch belongs to the nodes: everything but its own benchmark and models by name runs without it."""

import json
import runpy
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
free_port = runpy.run_path(str(TESTS / "fakes" / "ports.py"))["free_port"]
STORE = ("--storage", "sqlite:///ncclt.db")
BERT = ("--cluster", "mi355x-2x8", "--model", "bert")
SHAPE = ("--nodes", "2", "--gpus-per-node", "8", "--nccl-version", "2.28.3", "--allow", "recorded")


@pytest.fixture
def ncclt(ncclt):
    """The command line in processes that find no torch, as do their children."""
    blocking = ncclt.folder / "without"
    blocking.mkdir()
    (blocking / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    ncclt.variables["PYTHONPATH"] = str(blocking)

    def run(*words, rc=0):
        done = subprocess.run(
            ncclt.argv(*words), env=ncclt.environment, cwd=ncclt.folder, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == rc, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    run.shell, run.folder = ncclt, ncclt.folder
    done = subprocess.run([sys.executable, "-c", "import torch"], env=ncclt.environment, capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr
    return run


def test_replayed_study_is_tuned_delivered_and_served(ncclt):
    ncclt("tune", *BERT, "--launcher", "replay", "--study", "first", *STORE)
    assert "NCCLT_RECOMMENDATION" in ncclt("env", *BERT, *SHAPE, *STORE)
    port = free_port()
    ncclt.shell.start("serve", "--port", port, *STORE)
    until_s = time.monotonic() + 240
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/studies", timeout=60) as answer:
                studies = json.load(answer)["items"]
            break
        except OSError:
            assert time.monotonic() < until_s, "it did not listen"
            time.sleep(0.1)
    assert [study["name"] for study in studies] == ["first"]


def test_doctor_plugin_and_import_run(ncclt):
    ncclt("doctor", "--from", TESTS / "golden" / "doctor" / "healthy_h100")
    (ncclt.shell.folder / "mine.csv").write_text("collective,size_bytes,calls\nall_reduce,4096,2\n")
    ncclt("profile", "import", "mine.csv", "--name", "mine", *STORE)
    assert "libnccl-tuner-ncclt.so" in ncclt("admin", "plugin", "build", "--into", "plugin")

"""The gate before an NCCL upgrade, as CI calls it: a stand-in for nccl-tests, and trainings over gloo."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import quick_job

from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster

FAKES = Path(__file__).parents[1] / "fakes"
JOB = [sys.executable, "-S", str(FAKES / "upgrade_job.py")]
NEW = ("--to-env", "VERSION=2.32.3")


@pytest.fixture
def gate(nursery, tmp_path):
    """Return a caller of `ncclt upgrade --gate OPTIONS -- COMMAND`."""

    def call(options, command=JOB, **environ):
        bare = {name: value for name, value in os.environ.items() if not name.startswith("NCCL")}
        store = ["--storage", f"sqlite:///{tmp_path / 'store.db'}"]
        words = ["upgrade", *store, "--gate", "--dir", str(tmp_path), "--warmup", "3", "--steps", "8", *options]
        done = nursery([*words, "--", *command], bare | environ, tmp_path)
        assert not list(tmp_path.glob(".ncclt-record-*"))
        return subprocess.CompletedProcess(words, *done)

    return call


def test_equal_sides_pass_in_a_dozen_lines(gate):
    done = gate([*NEW, "--margin", "0.05"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "today: NCCL 2.28.9, CUDA driver 12.8, network IB"
    assert lines[1] == "new:   NCCL 2.32.3, CUDA driver 12.8, network IB"
    assert "https://github.com/NVIDIA/nccl/issues/2094" in done.stdout
    assert re.search(r"^verdict: (not slower|faster): all_reduce ", done.stdout, re.M)
    assert lines[-1].startswith("Next:    upgrade")
    assert len(lines) <= 12


def test_small_messages_slower_by_ten_percent_end_with_5(gate):
    done = gate([*NEW, "--to-env", "SLOW=1.1", "--to-env", "SLOW_BELOW=65536"])
    assert done.returncode == 5, done.stdout + done.stderr
    assert re.search(r"^verdict: slower: all_reduce up to 64 KiB takes \+\d+\.\d % time", done.stdout, re.M)
    assert "Next:    stay with NCCL 2.28.9" in done.stdout
    document = json.loads(gate([*NEW, "--to-env", "SLOW=1.1", "--json"]).stdout)
    assert (document["decision"], document["is_regression"]) == ("slower", True)
    assert len(document["groups"]) == 3


def test_crash_of_the_new_side_ends_with_5_and_its_output(gate):
    done = gate([*NEW, "--to-env", "FAIL=unhandled cuda error"])
    assert done.returncode == 5
    assert "verdict: failed: failed in 2 of 2 launches of the new side, 0 of 1 of today's: exit code 1" in done.stdout
    assert "unhandled cuda error" in done.stderr
    assert "to reproduce the failure: env 'FAIL=unhandled cuda error'" in done.stdout
    later = gate([*NEW, "--to-env", "FAIL_AT=3"])
    assert later.returncode == 4, "it did not fail again"
    assert "no such network" in later.stderr


def test_hanging_new_side_ends_with_5(gate):
    done = gate([*NEW, "--to-env", "HANG=1", "--timeout", "3"])
    assert done.returncode == 5
    assert "ended after 3 s (--timeout)" in done.stdout


def test_command_that_fails_today_too_is_an_error(gate):
    done = gate([*NEW], FAIL="no GPU")
    assert done.returncode == 2
    assert "the command fails on both sides: exit code 1\nno GPU" in done.stderr


def test_library_that_was_not_loaded_is_refused(gate):
    done = gate(["--to-env", "LD_LIBRARY_PATH=/opt/nccl-2.32.3/lib"])
    assert done.returncode == 2
    assert "the NCCL version does not differ: both sides loaded NCCL 2.28.9" in done.stderr
    ring = gate(["--to-env", "NCCL_ALGO=Ring"])
    assert ring.returncode == 2
    assert "both sides loaded NCCL 2.28.9" in ring.stderr
    wrong = gate(["--to", "2.32.3", "--to-env", "X=1"])
    assert wrong.returncode == 2
    assert "new loaded NCCL 2.28.9, not 2.32.3" in wrong.stderr


def test_undecided_ends_with_4(gate):
    done = gate([*NEW, "--blocks", "3", "--margin", "0.001"])
    assert done.returncode == 4, done.stdout
    assert "verdict: undecided: " in done.stdout
    assert "Next:    --blocks 6 compares longer" in done.stdout


def test_other_command_is_compared(gate):
    """As with another container image."""
    done = gate(["--against", f"env VERSION=2.27.5 {' '.join(JOB)}", "--margin", "0.05"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("today: NCCL 2.27.5")
    assert "differs: command, today env VERSION=2.27.5 " in done.stdout


@pytest.mark.thorough
def test_steps_of_a_training_without_nccl_need_a_stated_difference(gate, tmp_path):
    job = [*quick_job.install(tmp_path), "100000"]
    path = {"PYTHONPATH": str(tmp_path / "site")}
    refused = gate(["--to-env", "SLOW=1"], job, **path)
    assert refused.returncode == 2
    assert "NCCL version: not seen on the side today" in refused.stderr
    done = gate(["--to-env", "SLOW=1", "--differs", "a slower step"], job, **path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "verdict: slower: training step takes +" in done.stdout
    assert done.stdout.startswith("today: NCCL version: not seen\nnew:   NCCL version: not seen\n")
    assert "note: difference as stated, not seen: a slower step" in done.stdout


def test_version_of_the_cluster_stands_for_today(gate, tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.clusters.add(sample_cluster())
    done = gate([*NEW, "--margin", "0.05", "--cluster", "pair"], VERSION="2.27.5")
    assert "pair is described with NCCL 2.28.9, and today loads 2.27.5" in done.stdout

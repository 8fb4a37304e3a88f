"""The TaskProlog that hands over plugin and table, by shells and by a real Slurm of two nodes."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("run_for_prolog", Path(__file__).with_name("test_run.py"))
alone = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(alone)
library, store = alone.library, alone.store

# One rank of eight that plays NCCL's part with what its environment gives it.
RANK = """
import os
from pathlib import Path
from ncclt.plugin.loaded import LoadedPlugin
plugin = LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"]))
with plugin.communicator(api=5, ranks=8, nodes=2) as communicator:
    communicator.ask(4, 4096)
print("ran", flush=True)
"""
STEP = {"SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURMD_NODENAME": "n1"}


@pytest.fixture
def prolog(tmp_path, store, library):
    """The script, written with a table in tables/ and reports in reports/."""
    (tmp_path / "tables").mkdir()
    words = ["--policy-dir", str(tmp_path / "tables"), "--report", str(tmp_path / "re ports")]
    assert written(tmp_path, store, library, *words).returncode == 0
    return tmp_path / "prolog.sh"


def written(tmp_path, store, library, *words):
    return subprocess.run(
        [
            *alone.NCCLT, "env", "--cluster", "leonardo", "--model", "bert", "--storage", store.url,
            "--format", "slurm-taskprolog", "--output", str(tmp_path / "prolog.sh"), *words,
        ],
        env=alone.environ(tmp_path, NCCLT_PLUGIN=library), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def said(prolog, shell="sh", **environ):
    """Run the script with nothing but a shell; return its exit code and lines."""
    done = subprocess.run(
        [shutil.which(shell), prolog], env={"PATH": "/nowhere", **environ}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_step_of_the_measured_size_gets_plugin_table_and_reports(prolog, library, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    code, lines = said(prolog, shell, **STEP)
    given = dict(line.removeprefix("export ").split("=", 1) for line in lines)

    assert code == 0
    (table,) = (tmp_path / "tables").iterdir()
    assert (given["NCCL_TUNER_PLUGIN"], given["NCCLT_POLICY"]) == (str(library), str(table))
    assert given["NCCLT_PLUGIN_REPORT"] == f"{tmp_path}/re ports/7.1.0"
    assert given["NCCLT_RECOMMENDATION"] == "0c0ffee1"
    assert said(prolog, shell, **STEP | {"SLURM_STEP_NUM_NODES": "1"}) == (0, [])
    assert said(prolog, shell, **STEP, NCCL_PROTO="LL") == (0, [])
    mine = said(prolog, shell, **STEP, NCCLT_PLUGIN_REPORT="/mine")[1]
    assert [line for line in lines if line not in mine] == [f"export NCCLT_PLUGIN_REPORT={tmp_path}/re ports/7.1.0"]


def test_a_node_that_lacks_the_table_does_not_start(prolog, tmp_path):
    (table,) = (tmp_path / "tables").iterdir()
    table.unlink()

    assert said(prolog, **STEP) == (1, [f"print ncclt: {table} cannot be read on n1, so the task does not start"])


def test_what_cannot_be_handed_over_is_refused(tmp_path, store, library):
    missing = written(tmp_path, store, library, "--policy-dir", str(tmp_path / "no"))
    assert (missing.returncode, "make it once" in missing.stderr) == (2, True)
    unbuilt = written(tmp_path, store, tmp_path / "none.so", "--policy-dir", str(tmp_path))
    assert (unbuilt.returncode, "ncclt plugin build" in unbuilt.stderr) == (2, True)
    alone_report = written(tmp_path, store, library, "--report", str(tmp_path))
    assert alone_report.returncode == 2
    other = written(tmp_path, store, library, "--policy-dir", str(tmp_path), "--format", "export")
    assert other.returncode == 2
    assert not (tmp_path / "prolog.sh").exists()


def srun(environment, prolog, folder):
    return subprocess.run(
        ["srun", "-N2", "--ntasks-per-node=2", f"--task-prolog={prolog}", sys.executable, "-c", RANK],
        env={name: value for name, value in environment.items() if not name.startswith("NCCL")}, cwd=folder,
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_real_slurm_starts_tasks_with_the_table_or_not_at_all(slurm_cluster, prolog, tmp_path):
    """Four tasks use the table and report; without it, or without the script, none of them starts."""
    with slurm_cluster.allocation() as environment:
        done = srun(environment, prolog, tmp_path)
        assert (done.returncode, done.stdout.split()) == (0, ["ran"] * 4), done
        (reports,) = (tmp_path / "re ports").iterdir()
        heads = [json.loads(path.read_text().splitlines()[0]) for path in reports.iterdir()]
        assert sorted(head["launch_rank"] for head in heads) == [0, 1, 2, 3]
        assert {(head["table"], head["not_in_use"]) for head in heads} == {("0c0ffee1", "")}
        attested = subprocess.run(
            [*alone.NCCLT, "attest", *reports.iterdir(), "--storage", f"sqlite:///{tmp_path}/ncclt.db"],
            env=alone.environ(tmp_path), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (attested.returncode, "took effect" in attested.stdout) == (0, True), attested
        (table,) = (tmp_path / "tables").iterdir()
        for gone in (table, prolog):
            gone.unlink()
            refused = srun(environment, prolog, tmp_path)
            assert refused.returncode != 0
            assert "ran" not in refused.stdout.split(), refused
        assert list((tmp_path / "re ports").iterdir()) == [reports]

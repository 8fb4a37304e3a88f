"""Only what fits, and the newest: shapes of jobs, clocks, finished studies, stores that are not there or damaged."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.deliver.job_info import JobInfo
from ncclt.deliver.render.delivery import choose_form
from ncclt.deliver.shared_decision import await_participants
from ncclt.nccl.tuner_plugin import find
from ncclt.store import open_store
from ncclt.testing.landscapes import write_landscape

SHAPE = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.22.3")
NAMES = ("--cluster", "leonardo", "--model", "nasnetmobile")
TUNE = (
    *("tune", "--model", "nasnetmobile", "--cluster", "leonardo", "--launcher", "simulate"),
    *("--nodes", "2", "--quiet"),
)
LIST = "    --gpus-per-node 4 --nccl-version 2.22.3   (SIMULATED)"


@pytest.fixture
def tuned(ncclt):
    """The command line, with one finished study in the user's own store and no launcher around."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NCCL_VERSION", "LD_PRELOAD", "PET_NNODES"):
        assert name not in ncclt.environment
    # A PATH without any Python: its NCCL would be taken for the job's.
    (ncclt.folder / "bin").mkdir()
    for name in ("sh", "env", "echo"):
        (ncclt.folder / "bin" / name).symlink_to(f"/bin/{name}")
    ncclt.variables |= {"PATH": str(ncclt.folder / "bin"), "NCCLT_ALLOW": "simulated", "KNOWN_TIMES": "1"}
    ncclt(*TUNE)
    return ncclt


def test_a_job_gets_what_was_measured_for_its_whole_shape_or_a_list(tuned):
    refused = tuned("env", *NAMES, "--nodes", "2", rc=3)
    assert refused.stdout == ""
    assert "GPUs per node, NCCL version not given" in refused.stderr
    assert LIST in refused.stderr.splitlines()
    # The line as it stands there.
    whole = tuned("env", *NAMES, "--nodes", "2", *LIST.partition("(")[0].split())
    assert "NCCLT_SIMULATED" in whole.stdout
    # What the launcher says counts as if it were an option.
    tuned.variables |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}
    tuned.variables["NCCL_VERSION"] = "2.22.3-1"
    assert tuned("env", *NAMES).stdout == whole.stdout
    tuned.variables["SLURM_GPUS_ON_NODE"] = "8"
    other = tuned("env", *NAMES, rc=3)
    assert other.stdout == ""
    assert "GPUs per node: measured with 4, asked for 8 (" in other.stderr
    assert "GPUs per node 8 from SLURM_GPUS_ON_NODE=8" in other.stderr
    tuned.variables["SLURM_GPUS_ON_NODE"] = "4"


OTHER_SHAPES = [
    (("--nodes", "2"), ("--nproc-per-node=8",), "GPUs per node: measured with 4, asked for 8"),
    (SHAPE, ("--nproc-per-node=8",), "--gpus-per-node 4 contradicts the job: GPUs per node 8 from torchrun"),
    (SHAPE, ("--nnodes=3", "--nproc-per-node=4"), "--nodes 2 contradicts the job: nodes 3 from torchrun"),
    (("--nodes", "2"), ("--nproc-per-node=4",), "NCCL version not given"),
]


def show_other_node(folder, job):
    """Show in a shared folder that another node of a job sees it, as its `ncclt run` would."""
    await_participants(folder, JobInfo(name=job), name="another node", count=2, wait_s=0)


def test_a_command_of_another_shape_starts_unchanged_and_says_why(tuned):
    torchrun = tuned.folder / "bin" / "torchrun"
    torchrun.write_text("#!/bin/sh\necho trains ${NCCLT_RECOMMENDATION-unchanged}\n")
    torchrun.chmod(0o755)
    (tuned.folder / "shared").mkdir()
    tuned.variables["NCCLT_ALLOW_DIFFERENCE"] = "NO_GPU"
    run = ("run", *NAMES, "--no-plugin", "--shared", "shared", "--wait", "0", "--job")
    for number, (options, words, said) in enumerate(OTHER_SHAPES):
        done = tuned(*run, f"a{number}", *options, "--", "torchrun", *words, "train.py")
        assert done.stdout == "trains unchanged\n"
        assert said in done.stderr
        assert tuned(*run, f"b{number}", "--fallback", "fail", *options, "--", "torchrun", *words, rc=3).stdout == ""
    show_other_node(tuned.folder / "shared", "named last")
    fitting = tuned(*run, "last", *SHAPE, "--fallback", "fail", "--", "torchrun", "--nnodes=2", "--nproc-per-node=4")
    assert fitting.stdout.startswith("trains")


ENDS = [
    # Variables carry the gain; the table alone does; nothing is gained; the proof is too short.
    ("Simple", ("--prove-variables",), "variables"),
    ("LL128", (), "table"),
    ("", (), None),
    pytest.param("LL128", ("--blocks", "2"), "undecided", marks=pytest.mark.thorough),
]


def landscape(path, faster):
    """Write a recording in which ring with one protocol takes four fifths of the default's time, at every size."""
    rows = []
    for size in (1 << power for power in range(12, 30)):
        time_us = 50 + size / 1e5
        for protocol, share in (("", 1.0), ("ll", 1.1), ("ll128", 1.0), ("simple", 1.0)):
            taken = time_us * (0.8 if protocol and protocol == faster.lower() else share)
            forced = {"algo": "ring", "proto": protocol, "nchannels": 8} if protocol else {}
            shape = {"system": "Made Up Box", "nodes": 2, "gpus_per_node": 4, "in_place": True}
            rows.append({**shape, **forced, "size_bytes": size, "time_us": round(taken, 2), "spread": 0.01})
    write_landscape(path, rows)


@pytest.mark.parametrize(("faster", "budget", "form"), ENDS)
def test_one_line_says_what_to_do_and_works_as_it_stands_in_a_fresh_shell(ncclt, faster, budget, form):
    """In another folder, without the variables that the study had."""
    torchrun = ncclt.folder / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text("#!/bin/sh\necho trains $NCCLT_RECOMMENDATION ${NCCLT_TABLE+by table}\n")
    torchrun.chmod(0o755)
    landscape(ncclt.folder / "box.csv", faster)
    words = ("tune", "--model", "vit-l-32", "--landscape", "box.csv", *budget)
    ncclt.variables["NCCLT_STORAGE"] = "sqlite:///here.db"
    done = ncclt(*words)
    shown = ncclt("studies", "show", json.loads(ncclt("studies", "list", "--json").stdout)["studies"][0]["id"])
    document = json.loads(ncclt(*words, "--json").stdout)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("Use:", "Continue:", "Next:"))]
    assert len(lines) == (form is not None)
    assert [line for line in shown.stdout.splitlines() if line.startswith("Next:")] == (
        lines if form != "undecided" else []
    )
    assert document["use"]["form"] == (form if form != "undecided" else None)
    if form is None:
        return
    name, _, command = lines[0].partition(":")
    command = command.strip()
    url = f"sqlite:///{ncclt.folder / 'here.db'}"
    if form in ("table", "variables"):
        with open_store(url) as store:
            found = store.recommendations.get(document["recommendation"]["id"])
        # The command of a measured result, and the word that a job needs for a recorded one.
        measured = replace(found, launcher="local", recorded="")
        command = choose_form(measured, source=f" --storage {url} --allow recorded", build=find() is None).command
    del ncclt.variables["NCCLT_STORAGE"]
    (elsewhere := ncclt.folder / "elsewhere").mkdir()
    path = f"{torchrun.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    show_other_node(elsewhere, "named NAME")
    shell = subprocess.run(
        ["bash", "-c", f'{command} && echo "then $NCCLT_RECOMMENDATION"'],
        cwd=elsewhere,
        env={**ncclt.environment, "PATH": path, "NCCLT_ALLOW_DIFFERENCE": "NO_GPU"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert shell.returncode == 0, shell.stderr
    if form == "undecided":
        assert name == "Continue"
        assert "Validating: " in shell.stderr
        assert "only 2 of at least 3 blocks" in done.stdout
        assert " blocks)" in shell.stdout
        assert "only" not in shell.stdout
    elif form == "table":
        assert f"trains {document['recommendation']['id']} by table\n" in shell.stdout
    else:
        assert shell.stdout.endswith(f"then {document['recommendation']['id']}\n")


READERS = [
    ("studies", "show", "x"),
    ("cluster", "list"),
    ("profile", "list"),
    ("preflight", "--history"),
    ("advise", "--model", "bert", "--cluster", "leonardo", "--compute-ms", "1"),
    ("env", "--cluster", "leonardo", "--model", "bert"),
]


def test_commands_that_read_make_no_store(ncclt):
    """A store that was named must be there; the user's own need not."""
    ncclt.variables["XDG_DATA_HOME"] = str(ncclt.folder / "data")
    for words in READERS:
        done = ncclt(*words, rc=None)
        assert done.returncode == (3 if words[0] == "env" or "x" in words else 0), (words, done.stderr)
    ncclt.variables["NCCLT_STORAGE"] = f"sqlite:///{ncclt.folder}/none/dir/n.db"
    ncclt(
        "tune", "--model", "bert", "--cluster", "leonardo", "--launcher", "simulate", "--dry-run"
    )  # it would make the store
    for words in READERS:
        done = ncclt(*words, rc=69)
        assert done.stdout == ""
        assert f"there is no store at {ncclt.folder}/none/dir/n.db" in done.stderr
    started = ncclt("run", "--cluster", "leonardo", "--model", "bert", "--", "echo", "ran")
    assert started.stdout == "ran\n"
    assert "there is no store at" in started.stderr
    assert list(ncclt.folder.iterdir()) == []


def test_a_damaged_file_ends_tune_before_a_verdict(ncclt):
    path = ncclt.folder / "ncclt.db"
    words = (*TUNE[:-1], "--trials", "6", "--patience", "0", "--storage", f"sqlite:///{path}", "--json")
    ncclt(*words)
    whole = path.read_bytes()
    for content in (whole[:8192] + b"\xa5" * (len(whole) - 8192), b"\x00"):
        path.write_bytes(content)
        done = ncclt(*words, "--continue", "1", rc=69)
        assert done.stdout == ""
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert json.loads(ncclt(*words).stdout)["verdict"]

"""The same question has the same answer: study, policy, verdict and environment of shipped workloads and clusters.

All of it is asked for by the command line, so that no change behind it needs a change here. After a wanted change of an
answer run this once with NCCLT_UPDATE_GOLDEN=1, and read the difference.
"""

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from ncclt.cli import main
from ncclt.store.shipped import profiles_folder, shipped_clusters

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "answers.jsonl"
CLUSTERS = sorted(shipped_clusters(profiles_folder()))
pytestmark = pytest.mark.usefixtures("known_times")
UPDATE = bool(os.environ.get("NCCLT_UPDATE_GOLDEN"))
WORKLOADS = dict(zip(CLUSTERS, ["bert", "gpt2", "llama-7b", "resnet101", "bert-large", "vit-l-32"], strict=True))
"""One workload per cluster, searched for long enough that policies are proven."""

NOTHING_FITS = 3
"""Exit code of `ncclt env` where the verdict is undecided."""


def command(*words):
    """Run a command in this process and return its exit code and what it prints."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["ncclt", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code in (0, NOTHING_FITS), errors.getvalue()
    return ended.value.code, out.getvalue()


def answer(cluster, workload, folder):
    """Return what one pair comes to, as plain values; times with 6 digits, no ids, no dates, no sentences."""
    storage = ("--storage", f"sqlite:///{folder / f'{workload}.db'}")
    _, document = command(
        *("tune", "--launcher", "simulate", "--cluster", cluster, "--model", workload),
        *("--seed", "0", "--trials", "12", "--blocks", "8", "--quiet", "--json"),
        *storage,
    )
    found = json.loads(document)
    variables = found["variables"]
    shape = [
        word
        for name in ("nodes", "gpus_per_node", "nccl_version")
        for word in (f"--{name.replace('_', '-')}", str(found[name]))
    ]
    code, text = command("env", "--cluster", cluster, "--model", workload, *shape, *storage, "--allow", "simulated")
    return {
        "cluster": cluster,
        "workload": workload,
        "shape": [found[name] for name in ("nodes", "gpus_per_node", "nccl_version")],
        "launches": list(found["launches"].values()),
        "trials": [f"{settled(trial['setting'])} {digits(trial['time_per_step_us'])}" for trial in found["trials"]],
        "rules": [settled(rule) for rule in found["policy"]["rules"]],
        "parameters": found["policy"]["parameters"],
        "decision": found["verdict"],
        "speedup": digits(found["speedup"]),
        "by variables": variables and [variables["verdict"]["decision"], digits(variables["verdict"]["speedup"])],
        "exit": code,
        "environment": [
            re.sub(r"(NCCLT_RECOMMENDATION)=.*", r"\1=", line) for line in text.splitlines() if not line.startswith("#")
        ],
    }


def settled(row):
    """Return the values of a setting or a rule in one line, those of its parameters with their names."""
    words = [
        ",".join(f"{name}={number}" for name, number in value.items()) if isinstance(value, dict) else str(value)
        for value in row.values()
    ]
    return " ".join(words) or "default"


def digits(value):
    return value if value is None else float(f"{value:.6g}")


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("NCCL", "SLURM", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "cluster", [*CLUSTERS[:2], *(pytest.param(one, marks=pytest.mark.thorough) for one in CLUSTERS[2:])]
)
def test_the_answer_of_a_cluster_is_the_recorded_one(cluster, own_home):
    recorded = {}
    if GOLDEN.exists():
        recorded = {row["cluster"]: row for row in map(json.loads, GOLDEN.read_text().splitlines())}
    current = answer(cluster, WORKLOADS[cluster], own_home)
    if UPDATE:  # in one process: each test writes the whole file
        recorded[cluster] = current
        rows = (recorded[name] for name in sorted(recorded))
        GOLDEN.write_text("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows))
    assert UPDATE or list(recorded) == CLUSTERS
    differences = [
        f"{part}: {was!r} is now {now!r}"
        for part, value in current.items()
        for was, now in differing(recorded[cluster][part], value)
    ]
    assert differences == []


def differing(was, now):
    """Give what differs: of lists of equal length the entries, else the whole."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [pair for pair in zip(was, now, strict=True) if pair[0] != pair[1]]
    return [] if was == now else [(was, now)]

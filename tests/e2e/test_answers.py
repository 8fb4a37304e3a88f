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
from ncclt.store.shipped import profiles_folder, shipped_clusters, shipped_workloads

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "answers.jsonl"
CLUSTERS = sorted(shipped_clusters(profiles_folder()))
WORKLOADS = sorted(shipped_workloads(profiles_folder()))
UPDATE = bool(os.environ.get("NCCLT_UPDATE_GOLDEN"))
THOROUGH = dict(zip(CLUSTERS, ["bert", "gpt2", "llama-7b", "resnet101", "bert-large", "vit-l-32"], strict=True))
"""One workload per cluster is searched for longer, so that policies are proven, too."""

SHORT = dict(zip(CLUSTERS, ["nasnetmobile", "nasnetmobile", *["nasnetmobile-unfused"] * 4], strict=True))
"""The only other one of each cluster that `make test` asks for: each cluster, workload and decision is among them."""
QUICK = {cluster: [one for one in WORKLOADS if one in (THOROUGH[cluster], SHORT[cluster])] for cluster in CLUSTERS}

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
    trials = "12" if THOROUGH[cluster] == workload else "3"
    _, document = command(
        "tune",
        "--launcher",
        "simulate",
        "--cluster",
        cluster,
        "--model",
        workload,
        "--seed",
        "0",
        "--trials",
        trials,
        "--blocks",
        "8" if THOROUGH[cluster] == workload else "4",
        "--quiet",
        "--json",
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


def check_answers(cluster, workloads, folder):
    recorded = [json.loads(line) for line in GOLDEN.read_text().splitlines()] if GOLDEN.exists() else []
    found = [answer(cluster, workload, folder) for workload in workloads]
    if UPDATE:  # in one process: each test writes the whole file
        kept = [row for row in recorded if row["cluster"] != cluster or row["workload"] not in workloads]
        recorded = sorted([*kept, *found], key=lambda row: (row["cluster"], row["workload"]))
        GOLDEN.write_text("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in recorded))
    known = {row["workload"]: row for row in recorded if row["cluster"] == cluster}

    assert UPDATE or list(known) == WORKLOADS
    differences = [
        f"{workload} on {cluster}: {part}: {was!r} is now {now!r}"
        for workload, row in zip(workloads, found, strict=True)
        for part in row
        for was, now in differing(known[workload][part], row[part])
    ]
    assert differences == []


def differing(was, now):
    """Give what differs: of lists of equal length the entries, else the whole."""
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [pair for pair in zip(was, now, strict=True) if pair[0] != pair[1]]
    return [] if was == now else [(was, now)]


@pytest.mark.parametrize(
    "cluster", [*CLUSTERS[:2], *(pytest.param(one, marks=pytest.mark.thorough) for one in CLUSTERS[2:])]
)
def test_two_answers_of_a_cluster_are_the_recorded_ones(cluster, own_home):
    check_answers(cluster, QUICK[cluster], own_home)


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_all_other_answers_of_a_cluster_are_the_recorded_ones(cluster, own_home):
    check_answers(cluster, [one for one in WORKLOADS if one not in QUICK[cluster]], own_home)

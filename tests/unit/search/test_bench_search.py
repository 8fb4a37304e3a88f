"""The benches of the search run on tables that nobody has seen, and their peers search as they say."""

import importlib
import json
import math
import runpy
import subprocess
from functools import partial
from pathlib import Path

import optuna
import pytest
import torch
from known_times import known_us

from ncclt.core.message import Collective
from ncclt.search.space import cluster_space
from ncclt.store.shipped import named_clusters, profiles_folder

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).resolve().parents[3] / "bench"
FIELDS = {"landscape", "workload", "method", "launches", "regret_mean", "regret_worst", "seeds"}


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a bench in this process, where all that it imports is loaded already."""
    monkeypatch.syspath_prepend(BENCH)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    threads, verbosity = torch.get_num_threads(), optuna.logging.get_verbosity()

    def call(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = runpy.run_path(str(BENCH / script))["main"](arguments)
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    yield call
    torch.set_num_threads(threads)
    optuna.logging.set_verbosity(verbosity)


def write_table(path, *, default=True, sizes=(1 << 16, 1 << 20, 1 << 24)):
    """Two algorithms, two protocols, four channel counts; Tree LL wins when small, Ring Simple else."""
    lines = ["system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,time_us"]
    for size in sizes:
        own = 30 + size / 40e3
        lines += [f"9x Q9,8,1,NVSwitch,all_reduce,{size},,,{'' if default else 32},{own}"]
        for algorithm, protocol, latency, share in (
            ("Ring", "LL", 20, 4),
            ("Ring", "Simple", 60, 0.8),
            ("Tree", "LL", 12, 4),
            ("Tree", "Simple", 50, 1.2),
        ):
            for channels in (2, 8, 16, 32):
                time_us = latency + share * size / 40e3 * max(1, 16 / channels)
                lines.append(f"9x Q9,8,1,NVSwitch,all_reduce,{size},{algorithm},{protocol},{channels},{time_us}")
    path.write_text("\n".join(lines))
    return str(path)


def test_json_is_one_document_about_an_unseen_table(run, tmp_path):
    table = write_table(tmp_path / "new.csv")
    amounts = ("--seeds", "2", "--budget", "8", "--noise", "0.02", "--noise", "0.1")
    cases = ("--mixes", "middle,64KiB", "--methods", "ours,tpe,random")
    done = run("search.py", "--json", "--landscape", table, *amounts, *cases)

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 * 2 * 3 * 2
    assert set(rows[0]) >= FIELDS
    assert {row["launches"] for row in rows} == {5, 8}
    assert all(0 <= row["regret_mean"] <= row["regret_worst"] and math.isfinite(row["regret_worst"]) for row in rows)
    assert {row["noise"] for row in rows} == {0.02, 0.1}
    quiet = [row for row in rows if row["noise"] == 0.02]
    ours = [row["regret_mean"] for row in quiet if row["method"] == "ours" and row["launches"] == 8]
    assert max(ours) <= 0.02


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("peers")


def test_every_method_searches_to_the_end_of_a_budget(run, tmp_path, peers):
    table = write_table(tmp_path / "new.csv")
    done = run("search.py", "--json", "--landscape", table, "--seeds", "1", "--budget", "8", "--mixes", "64KiB")

    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["launches"] == 8]
    assert [row["method"] for row in rows] == list(peers.METHODS)
    assert all(0 <= row["regret_mean"] <= row["default_regret"] for row in rows)


def test_a_default_that_was_lucky_once_does_not_hide_a_gain_of_17_percent(monkeypatch):
    """At 10 % noise the default's only launch was 15 % too fast: until it is repeated nothing seems to beat it."""
    monkeypatch.syspath_prepend(BENCH)
    landscapes, bench = importlib.import_module("landscapes"), importlib.import_module("search")
    cluster = named_clusters(profiles_folder())["dgx-a100"].sized(nodes=1)
    workload = landscapes.mixes(Collective.ALL_REDUCE)["64KiB"].placed(nodes=1, gpus_per_node=8)
    space = cluster_space(workload.collectives, cluster, parameters={})
    case = landscapes.build_case("known", "64KiB", "", cluster, workload, space, partial(known_us, cluster))

    regrets = bench.search(case, "ours", seed=2, budget=20, sigma=0.1)

    assert case.default_us / case.ideal_us > 1.17
    assert regrets[-1] < 0.05

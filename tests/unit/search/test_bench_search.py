"""The benches of the search run on tables that nobody has seen, and their peers search as they say."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
FIELDS = {"landscape", "workload", "method", "launches", "regret_mean", "regret_worst", "seeds"}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True, check=False
    )


def write_table(path, *, default=True, sizes=(1 << 16, 1 << 20, 1 << 24)):
    """Two algorithms, two protocols, four channel counts; Tree LL wins when small, Ring Simple else."""
    lines = ["system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,time_us"]
    for size in sizes:
        own = 30 + size / 40e3
        lines += [f"9x Q9,8,1,NVSwitch,all_reduce,{size},,,{'' if default else 32},{own}"]
        for algorithm, protocol, latency, share in (
            ("Ring", "LL", 20, 4), ("Ring", "Simple", 60, 0.8), ("Tree", "LL", 12, 4), ("Tree", "Simple", 50, 1.2)
        ):  # fmt: skip
            for channels in (2, 8, 16, 32):
                time_us = latency + share * size / 40e3 * max(1, 16 / channels)
                lines.append(f"9x Q9,8,1,NVSwitch,all_reduce,{size},{algorithm},{protocol},{channels},{time_us}")
    path.write_text("\n".join(lines))
    return str(path)


def test_json_is_one_document_about_an_unseen_table(tmp_path):
    table = write_table(tmp_path / "new.csv")
    done = run(
        "search.py", "--json", "--landscape", table, "--seeds", "2", "--budget", "8", "--mixes", "middle,64KiB",
        "--methods", "ours,tpe,random,grid,coordinate,racing",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 * 6 * 2
    assert set(rows[0]) >= FIELDS
    assert {row["launches"] for row in rows} == {5, 8}
    assert all(0 <= row["regret_mean"] <= row["regret_worst"] and math.isfinite(row["regret_worst"]) for row in rows)
    ours = [row["regret_mean"] for row in rows if row["method"] == "ours" and row["launches"] == 8]
    assert max(ours) <= 0.02


def test_a_table_without_a_default_says_what_stands_in(tmp_path):
    table = write_table(tmp_path / "none.csv", default=False)
    done = run("policy.py", "--json", "--landscape", table, "--seeds", "1", "--launches", "6", "--mixes", "64KiB")

    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["ideal_us"] <= row["ours_us"] <= row["default_us"]
    assert "c=32 stands in for it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--methods", "magic"), "no method magic"), (("--landscape", "nowhere.csv"), "nowhere.csv")],
)
def test_mistakes_are_named(arguments, said):
    done = run("search.py", *arguments)

    assert done.returncode == 2
    assert said in done.stderr

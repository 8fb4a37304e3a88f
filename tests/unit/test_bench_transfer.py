"""The bench of transfer runs every pair of like hardware through the pipeline, and skips what it cannot use."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "transfer.py"
HEAD = "system,gpus,nodes,gpus_per_node,nccl_version,collective,dtype,size_bytes,algo,proto,nchannels,time_us\n"


def table(path, choices, *, system="box", gpus=4):
    rows = [
        f"{system},{gpus},1,{gpus},2.27.3,all_reduce,float,{size},{algo},{proto},,{size / 1000 * factor}\n"
        for algo, proto, factor in choices
        for size in (4096, 65536, 1 << 20)
    ]
    path.write_text(HEAD + "".join(rows))
    return str(path)


def bench(*words):
    return subprocess.run(
        [sys.executable, BENCH, "--seeds", "1", "--noise", "0.01", *words],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_every_pair_has_three_methods_and_what_cannot_be_used_a_line(tmp_path):
    choices = [("", "", 1.0), ("Ring", "Simple", 1.1), ("Ring", "LL", 1.2), ("Tree", "LL", 0.5), ("Tree", "Simple", 1)]
    four = table(tmp_path / "four.csv", choices, system="4x A100 NVSwitch")
    eight = table(tmp_path / "eight.csv", choices, system="8x A100 NVSwitch", gpus=8)
    other = table(tmp_path / "other.csv", choices, system="4x H100 NVSwitch")
    bare = table(tmp_path / "bare.csv", choices[:1])
    files = [word for path in (four, eight, other, bare, str(tmp_path / "gone.csv")) for word in ("--landscape", path)]

    done = bench(*files, "--mixes", "64KiB", "--json")

    assert done.returncode == 0, done.stderr
    assert "bare.csv" in done.stderr
    assert "gone.csv" in done.stderr
    rows = json.loads(done.stdout)["rows"]
    pairs = [(row["source"].split()[0], row["target"].split()[0], row["differs"], row["method"]) for row in rows]
    assert pairs == [
        (one, two, "gpus", method)
        for one, two in (("eight", "four"), ("four", "eight"))
        for method in ("none", "ours", "copy")
    ]
    for row in rows:
        assert row["search"] + row["confirm"] + row["prove"] == row["total_mean"]
        assert row["deployed_regret"] == 0, "half the time is found"
        assert (row["weight"] > 0) is (row["method"] == "ours")
    assert all(row["excess_launches"] == row["excess_deployed"] == 0 for row in rows if row["method"] == "none")


def test_landscapes_of_nothing_alike_are_an_error(tmp_path):
    done = bench("--landscape", table(tmp_path / "one.csv", [("", "", 1.0), ("Tree", "LL", 0.5), ("Ring", "LL", 1)]),
                 "--mixes", "64KiB")  # fmt: skip
    assert done.returncode == 2
    assert "no two of these landscapes are of like hardware" in done.stderr

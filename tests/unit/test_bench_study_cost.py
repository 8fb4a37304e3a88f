"""The bench of whole studies runs the real pipeline on a table and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).parents[2] / "bench" / "study_cost.py"
HEAD = "system,gpus,nodes,gpus_per_node,nccl_version,collective,dtype,size_bytes,algo,proto,nchannels,time_us\n"


def table(path, choices):
    rows = [
        f"box,4,1,4,2.27.3,all_reduce,float,{size},{algo},{proto},,{size / 1000 * factor}\n"
        for algo, proto, factor in choices
        for size in (4096, 65536, 1 << 20)
    ]
    path.write_text(HEAD + "".join(rows))
    return path


def bench(*words):
    return subprocess.run(
        [sys.executable, BENCH, "--seeds", "2", "--noise", "0.01", "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_table_gives_rows_and_one_that_cannot_be_used_a_line(tmp_path):
    good = table(tmp_path / "good.csv", [("", "", 1.0), ("Ring", "Simple", 1.1), ("Tree", "LL", 0.5)])
    bare = table(tmp_path / "bare.csv", [("", "", 1.0)])

    done = bench("--landscape", str(bare), "--landscape", str(good), "--workload", "64KiB")

    assert done.returncode == 0, done.stderr
    assert "bare.csv" in done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["workload"], row["method"], row["seeds"], row["tuned_rate"]) == ("64KiB", "ours", 2, 1.0)
    assert row["deployed_gain"] == row["best_gain"] == 1.0
    assert row["search"] + row["confirm"] + row["prove"] == row["total_mean"]
    assert row["total_p95"] is None, "of fewer than 20 studies"
    assert row["prove"] == 16, "four blocks of four launches"


def test_nothing_that_can_be_used_is_an_error(tmp_path):
    done = bench("--landscape", str(tmp_path / "gone.csv"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "gone.csv" in done.stderr

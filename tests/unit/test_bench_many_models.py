"""The bench of several workloads counts each launch once, and compares with a study of each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "many_models.py"


def landscape(folder):
    """Return a table in which tree/ll takes half of the default's time at every size."""
    head = "system,gpus,nodes,gpus_per_node,nccl_version,collective,dtype,size_bytes,algo,proto,nchannels,time_us"
    rows = [
        f"box,4,1,4,2.27.3,all_reduce,float,{size},{pair},,{size / 1000 * factor}"
        for pair, factor in ((",", 1.0), ("Ring,Simple", 1.1), ("Tree,LL", 0.5))
        for size in (4096, 65536, 1 << 20)
    ]
    path = folder / "good.csv"
    path.write_text("\n".join([head, *rows, ""]))
    return path


def bench(*words):
    return subprocess.run(
        [sys.executable, BENCH, "--seeds", "1", "--noise", "0.01", "--json", *words],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_one_study_of_all_gains_as_much_with_fewer_launches(tmp_path):
    good = landscape(tmp_path)

    done = bench("--landscape", str(good), "--workload", "64KiB", "--workload", "small")

    assert done.returncode == 0, done.stderr
    apart, together = json.loads(done.stdout)["rows"]
    assert (apart["method"], together["method"]) == ("apart", "together")
    assert apart["workloads"] == together["workloads"] == "small+64KiB"
    assert apart["deployed_gain"] == pytest.approx(together["deployed_gain"]) == pytest.approx(1.0)
    assert together["launches"] < apart["launches"]
    assert together["saved"] == 1 - together["launches"] / apart["launches"]


def test_one_workload_is_nothing_to_compare(tmp_path):
    good = landscape(tmp_path)

    done = bench("--landscape", str(good), "--workload", "64KiB")

    assert (done.returncode, done.stdout) == (2, "")
    assert "fewer than two of the workloads" in done.stderr

"""`ncclt preflight --launcher local` with a stand-in for nccl-tests: real processes on chosen GPUs, invented times."""

import json
import runpy
from pathlib import Path

import pytest

STAND_IN = runpy.run_path(str(Path(__file__).resolve().parents[1] / "fakes" / "nccl_tests_stand_in.py"))

# A launch that sees GPU 2, or all of them, fails as it is told.
WITH_GPU_2 = """\
#!/bin/sh
case ",${CUDA_VISIBLE_DEVICES:-2}," in *,2,*) STAND_IN=$FAULT; export STAND_IN;; esac
exec "%s" "$@"
"""


@pytest.fixture
def preflight(ncclt):
    """The command for one node of four GPUs, with the stand-in's programs in place behind a switch."""
    real, folder = ncclt.folder / "real", ncclt.folder / "nccl-tests"
    real.mkdir()
    folder.mkdir()
    STAND_IN["install"](real)
    program = folder / "all_reduce_perf"
    program.write_text(WITH_GPU_2 % (real / "all_reduce_perf"))
    program.chmod(0o755)
    return (
        *("preflight", "--cluster", "dgx-a100", "--nodes", "1", "--gpus-per-node", "4"),
        *("--launcher", "local", "--nccl-tests"),
        folder,
        "--storage",
        "sqlite:///ncclt.db",
        "--json",
    )


def test_real_processes_of_a_healthy_node(ncclt, preflight):
    usual = json.loads(ncclt(*preflight, "--expect", "0.001").stdout)

    assert (usual["state"], usual["simulated"], usual["benchmark"]) == ("healthy", False, "nccl_tests")
    assert len(usual["readings"]) == 1
    assert [size for size, _ in usual["readings"][0]["times_us"]] == [64, 4096, 1 << 18, 1 << 24, 1 << 30]


@pytest.mark.parametrize("fault", ["segfault", "wrong"])
def test_a_gpu_with_which_launches_fail_is_named(ncclt, preflight, fault):
    ncclt.variables["FAULT"] = fault

    document = json.loads(ncclt(*preflight, "--expect", "0.001", rc=4).stdout)

    assert [(f["part"], f["gpus"]) for f in document["findings"]] == [("gpu", [2])], document["verdict"]
    fine = [r for r in document["readings"] if r["outcome"] == "ok"]
    assert fine
    assert all(2 not in r["gpus"] for r in fine)

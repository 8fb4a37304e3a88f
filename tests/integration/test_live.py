"""Ranks of real processes switch the compiled plugin's plan at the same question, or all keep the one in force."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from program import run_program

from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree import agreement_environment, hook_path, write_hook
from ncclt.nccl.tuner_plugin.build import build, compiler
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import table_text

pytest.importorskip("torch", reason="needs PyTorch")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def jobs():
    """One small job per fault; the last of four ranks has it."""
    if compiler() is None:
        pytest.skip("no C compiler here")
    command = [sys.executable, ROOT / "bench" / "live.py", "--part", "protocol", "--quick", "--json"]
    done = run_program(command)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return {row["fault"]: row for row in json.loads(done.stdout)["rows"]}


def test_no_two_ranks_choose_differently_whatever_fails(jobs):
    assert len(jobs) == 13
    assert {fault: row["disagreements"] for fault, row in jobs.items()} == dict.fromkeys(jobs, 0)
    assert min(row["calls"] for row in jobs.values()) > 1000


def test_plans_are_switched_where_nothing_hinders_it(jobs):
    assert jobs["none"]["switches"] >= 10
    for fault in ("exception", "estimates", "other thread", "no memory", "killed"):
        assert jobs[fault]["switches"] >= 5, fault
        assert jobs[fault]["lines"] == [], fault
    assert jobs["other thread"]["left_out"] > jobs["none"]["left_out"]


def test_plan_in_force_stays_once_ranks_differ_or_capture(jobs):
    for fault in ("hidden estimates", "other offers"):
        (line,) = jobs[fault]["lines"]
        assert "ended: ranks 0 and 3 were asked different questions" in line, fault
    assert (jobs["other offers"]["switches"], set(jobs["other offers"]["ends"])) == (0, {"default"})
    assert jobs["hidden estimates"]["switches"] >= 1
    assert "captured a CUDA graph with collectives" in jobs["capture"]["lines"][0]
    assert set(jobs["capture"]["ends"]) == {"plan stays"}


def test_second_plan_before_the_first_is_armed_is_aborted(jobs):
    assert jobs["second plan"]["aborts"] >= 1


def test_rank_that_cannot_know_the_decision_fails_its_call(jobs):
    assert jobs["lost store"]["ends"]["fail-stop"] == 1
    assert any("its next collectives fail" in line for line in jobs["lost store"]["lines"])


RANK = """
import json, os, sys
from pathlib import Path
import _ncclt_agreement.live as live

class Director:
    news = finished = ""

    def decide(self, boundary):
        return os.environ["PLAN"] if not boundary.plan else None
    def end(self, reason):
        print("ended:", reason, file=sys.stderr)

live.find_director = Director
import torch
import torch.distributed as dist
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin

class Still(torch.optim.Optimizer):  # PyTorch's own ones load torch._dynamo, which takes longer than this test
    def add_param_group(self, group):
        self.param_groups.append(group)
    def step(self):
        pass

dist.init_process_group("gloo")
optimizer = Still([torch.zeros(1)], {})
chosen = []
with LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"])).communicator(api=5, ranks=2, nodes=1, number=7) as comm:
    for step in range(60):
        chosen.append(int(min(comm.ask(4, 64).costs) < 1))
        optimizer.step()
        dist.barrier()
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(chosen))
dist.destroy_process_group()
"""


def test_ranks_that_differ_keep_the_default_and_one_is_named(tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler here")
    write_hook(hook_path(tmp_path))
    rows = ["allreduce,0,100,tree,ll,2,1,2"]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "PYTHONPATH"))},
        **agreement_environment(hook_path(tmp_path), {}),
        "NCCL_TUNER_PLUGIN": str(build(tmp_path / "lib" / "libnccl-tuner-ncclt.so")),
        "NCCLT_LIVE": "1",
        "NCCLT_LIVE_STEPS": "5",
        "NCCL_RUNTIME_CONNECT": "0",
        "PLAN": encode_table(table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=1, ranks=2)),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "out").mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "rank.py", tmp_path / "out"],
            env=environ | {"RANK": str(rank)} | more,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, more in enumerate(({}, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}))
    ]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    for rank in range(2):
        assert set(json.loads((tmp_path / "out" / str(rank)).read_text())) == {0}
    assert any("rank 1 on " in error and "TORCH_NCCL_USE_COMM_NONBLOCKING 1" in error for error in errors)

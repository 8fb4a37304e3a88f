"""Live tuning of real trainings over gloo, whose delays stand for NCCL's choices (training/asked.py)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Decision
from ncclt.pipeline.live import LiveRequest, build_arms, build_verification, plan_live, read_live, write_live
from ncclt.prove.live_director import BLOCKS_FILE, STATE_FILE, resume_experiment
from ncclt_api.pages.study_charts import verification_charts
from ncclt_api.pages.wording import format_interval

pytest.importorskip("torch.distributed")

TRAINING = Path(__file__).parent / "training" / "asked.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
OTHERS = ("NCCL", "PYTHONPATH", "TORCH")


class LiveJob:
    """A training under torchrun that is tuned live; its blocks are short, for its steps take up to 0.1 s."""

    def __init__(self, folder, plugin, kind, steps):
        self.request = LiveRequest(
            argv=(sys.executable, *TORCHRUN, str(TRAINING), kind, str(steps)),
            arms=build_arms(NcclVersion(2, 28, 9), nodes=1, ranks=2),
            plugin=plugin,
            folder=folder,
            min_effect=0.02,
            max_cost=0.2,
            min_block_s=0.0,
        )
        write_live(self.request)
        own = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        argv, variables = plan_live(self.request, own)
        self.environ = own | variables | {"NCCL_RUNTIME_CONNECT": "0", "OMP_NUM_THREADS": "1"}
        self.argv = argv

    def start(self, **variables):
        return subprocess.Popen(
            self.argv, env=self.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, **variables):
        process = self.start(**variables)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return out, err


@pytest.mark.parametrize(
    "kind",
    ["ddp", pytest.param("zero1", marks=pytest.mark.thorough), pytest.param("fsdp2", marks=pytest.mark.thorough)],
)
def test_the_faster_arm_wins_and_stays_in_all_ranks_though_one_dies(tmp_path, library, kind):
    """The ranks that torchrun starts again begin with the default, and continue with the blocks so far."""
    job = LiveJob(tmp_path, library, kind, 350)
    # By default PyTorch keeps the store, in which ranks that start again may read gloo addresses of dead ones.
    out, err = job.run(DIES_AT="40", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    result = read_live(job.request)
    assert (result.verdict.decision, result.arm) == (Decision.TUNED, "ring/ll128"), (result, err)
    assert result.verdict.speedup > 1.1
    choices = re.findall(r"trained to the end, choices: ([-+]+)", out)
    assert len(choices) == 2
    assert choices[0] == choices[1]
    assert choices[0].startswith("-" * 6)
    assert "+" * 50 in choices[0], "the arm stays in force, but for the blocks that guard it"
    assert json.loads((tmp_path / STATE_FILE).read_text())["restarts"] == 1
    assert all(before.step < after.step for before, after in pairwise(resume_experiment(tmp_path, ["a", "b", "c"])[1]))
    assert result.other_backend == "gloo"
    drawn = verification_charts(
        build_verification(
            job.request, result, model="", cluster="", revision="", environ={}, ranks=2, created="2026-01-01T00:00:00"
        )
    )
    assert [one.id for one in drawn] == ["steps-chart", "steps-interval-chart"]
    (line,) = drawn[1].lines
    assert drawn[1].table.rows[-1][-1] == format_interval(result.verdict.interval)
    assert line.high[-1] - line.low[-1] < line.high[0] - line.low[0]
    assert "live tuning: tuned: steps are faster with ring/ll128, stalls included; keeping it" in err


@pytest.mark.thorough
def test_a_rank_without_plugin_ends_live_tuning_and_not_the_training(tmp_path, library):
    job = LiveJob(tmp_path, library, "ddp", 20)
    out, err = job.run(NCCL_TUNER_PLUGIN="", STAND_IN_PLUGIN=str(library))

    assert out.count("trained to the end") == 2
    assert err.count("ncclt: ") == 1
    missing = f"rank 0 on {os.uname().nodename}: no tuner plugin (NCCL_TUNER_PLUGIN is not set) (and 1 more)"
    assert read_live(job.request).verdict.reason == missing


@pytest.mark.thorough
def test_a_director_that_fails_ends_live_tuning_and_not_the_training(tmp_path, library):
    job = LiveJob(tmp_path, library, "ddp", 30)
    (tmp_path / BLOCKS_FILE).mkdir()
    out, err = job.run()

    assert out.count("trained to the end") == 2
    assert err.count("ncclt: ") == 1


@pytest.mark.thorough
def test_a_job_that_is_ended_leaves_its_blocks(tmp_path, library):
    job = LiveJob(tmp_path, library, "ddp", 100_000)
    process = job.start()
    while not (tmp_path / BLOCKS_FILE).exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    result = read_live(job.request)
    assert result.steps > 0
    assert result.verdict.decision is Decision.UNDECIDED

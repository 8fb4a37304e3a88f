"""Live tuning from outside the job: what it is started with, and the verdict on what it has written."""

import json
import runpy
from pathlib import Path

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Decision
from ncclt.core.verification import Side
from ncclt.deliver.agree import hook_path
from ncclt.nccl.tuner_plugin.compact_table import MOST_BYTES
from ncclt.pipeline.live import (
    LiveRequest,
    build_arms,
    build_verification,
    explain_obstacle,
    plan_live,
    read_live,
    write_live,
)
from ncclt.prove.live_director import ARMS_FILE, STATE_FILE

VERSION = NcclVersion(2, 28, 9)
write_blocks = runpy.run_path(str(Path(__file__).parents[2] / "fakes" / "live_job.py"))["write_blocks"]


@pytest.fixture
def request_(tmp_path):
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"compiled")
    folder = tmp_path / "live"
    folder.mkdir(mode=0o700)
    return LiveRequest(
        argv=("torchrun", "train.py"),
        arms=build_arms(VERSION, nodes=1, ranks=2),
        plugin=plugin,
        folder=folder,
        min_effect=0.02,
        max_cost=0.005,
    )


def test_ranks_are_started_with_hook_plugin_and_folder(request_):
    write_live(request_)
    argv, variables = plan_live(request_, {"PYTHONPATH": "/own"})

    assert argv == request_.argv
    assert variables["PYTHONPATH"] == f"{hook_path(request_.folder)}:/own"
    assert variables["NCCLT_LIVE"] == "1"
    assert variables["NCCL_TUNER_PLUGIN"].endswith(".so")
    assert (hook_path(request_.folder) / "_ncclt_agreement" / "experiment.py").is_file()
    told = json.loads((request_.folder / ARMS_FILE).read_text())
    assert [arm["name"] for arm in told["arms"]] == ["ring/ll128", "ring/simple", "tree/ll128"]


def test_arms_are_compact_tables_of_the_job():
    arms = build_arms(VERSION, nodes=2, ranks=16)

    assert arms[0].table.startswith("1:live-ring-ll128:2.28.9:16.2:")
    assert all(len(arm.table) < MOST_BYTES for arm in arms)


@pytest.mark.parametrize(
    ("environ", "plugin", "version", "why"),
    [
        ({}, None, VERSION, "plugin is missing"),
        ({"NCCL_TUNER_PLUGIN": "vendor"}, "here", VERSION, "another tuner plugin"),
        ({"NCCLT_TABLE": "1:x"}, "here", VERSION, "a tuner table already"),
        ({}, "here", None, "NCCL version of the job is unknown"),
        ({}, "here", NcclVersion(2, 27, 7), "needs NCCL 2.28.3 or later, the job has 2.27.7"),
        ({}, "here", NcclVersion(2, 28, 3), ""),
    ],
)
def test_obstacles_are_named_before_the_job_starts(tmp_path, environ, plugin, version, why):
    found = explain_obstacle(environ, plugin=plugin and tmp_path, version=version)

    assert why in found
    assert bool(found) == bool(why)


def test_a_gain_is_proven_again_from_the_blocks(request_):
    write_blocks(request_.folder, 0.05, steps=9)
    result = read_live(request_)

    assert result.verdict.decision is Decision.TUNED
    assert result.arm == "ring/ll128"
    assert result.verdict.interval[0] > 1.02
    assert "20 blocks inside one job; live: experimental, not yet seen on several GPUs" in result.verdict.reason
    assert {launch.side for launch in result.launches} == {Side.BASE, Side.TUNED}
    looks = [launch.estimate for launch in result.launches if launch.estimate]
    assert looks[-1] == (result.verdict.speedup, *result.verdict.interval), "what is drawn is what was judged"
    assert looks[-1][2] - looks[-1][1] < looks[0][2] - looks[0][1]

    stored = build_verification(
        request_, result, model="", cluster="", environ={}, revision="", ranks=2, created="2026-01-01T00:00:00"
    )
    assert dict(stored.tuned_env)["NCCLT_TABLE"] == request_.arms[0].table
    assert any("live" in note and "not yet seen on several GPUs" in note for note in stored.notes)
    assert type(stored).from_document(stored.to_document()) == stored


def test_a_gain_whose_stalls_are_not_ruled_out_is_undecided(request_):
    write_blocks(request_.folder, 0.05)
    result = read_live(request_)

    assert result.verdict.decision is Decision.UNDECIDED
    assert result.verdict.reason.startswith("leading: +5.0 %")
    assert result.verdict.reason.endswith("too few steps to rule out stalls that would cancel it")


def test_a_job_that_ends_early_is_undecided(request_):
    write_blocks(request_.folder, 0.05, blocks=5)
    result = read_live(request_)

    assert result.verdict.decision is Decision.UNDECIDED
    assert result.verdict.reason.endswith("the job ended before a decision")


def test_a_job_without_blocks_says_why(request_):
    state = {"ranks": 8, "backend": "nccl"}
    for written, why, is_training in (
        (None, "no NCCL communicator was seen; --live needs", False),
        ({**state, "step": 0}, "fewer than 6 optimizer steps were seen; --live needs", False),
        ({**state, "step": 6}, "the job ended before any arm was compared", True),
        ({**state, "step": 6, "backend": "gloo"}, "the job ended before any arm was compared", False),
    ):
        if written is not None:
            (request_.folder / STATE_FILE).write_text(json.dumps(written))
        result = read_live(request_)
        assert result.verdict.reason.startswith(why)
        assert result.is_training is is_training

    (request_.folder / STATE_FILE).write_text(json.dumps({"finished": "rank 1 has no plugin"}))

    assert read_live(request_).verdict.reason == "rank 1 has no plugin"

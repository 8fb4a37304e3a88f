"""A long study on a bad cluster: launches that hang, and again and again `kill -9`.

All processes are real; the times are those of the simulated cluster. What hangs is drawn from a seed.
"""

import os
import random
import runpy
import signal
import time
import uuid
from dataclasses import asdict
from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.store import open_store

pytestmark = pytest.mark.thorough

FAKES = Path(__file__).resolve().parents[1] / "fakes"
STAND_IN = runpy.run_path(str(FAKES / "nccl_tests_stand_in.py"))
LEFTOVERS = runpy.run_path(str(FAKES / "leftovers.py"))

CLUSTER = Cluster(
    name="campaign",
    gpus_per_node=8,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    nccl_version="2.28.9",
)


def told(**more):
    """What the stand-in is told about the cluster."""
    return {"cluster": asdict(CLUSTER), "sigma": 0.002, **more}


KILLS = 9
"""So many that each moment is drawn twice or more: after no, one and two launches of this start."""


def test_a_tuner_killed_again_and_again_loses_nothing(nursery, tmp_path):
    """What was stored stays as it is, at most the launch in flight is lost each time, and nothing is left running."""
    folder = tmp_path / "build"
    folder.mkdir()
    # Now and then a launch hangs, so that the tuner dies while it waits; by this seed two of each kind within nine.
    STAND_IN["install"](folder, **told(faults={"seed": 275, "share": 0.2, "kinds": ["hang", "stubborn_child"]}))
    word = uuid.uuid4().hex
    argv = [
        *("tune", "--model", "nasnetmobile", "--cluster", "dgx-a100", "--nodes", "1"),
        *("--gpus-per-node", "8", "--launcher", "local", "--nccl-tests"),
        str(folder),
        *("--trials", "500", "--patience", "0", "--quiet", "--storage", "sqlite:///ncclt.db"),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLURM", "XDG_"))}
    environment |= {"HOME": str(tmp_path), "NCCLT_TEST_WORD": word}
    moments = random.Random(2)
    kept: list = []
    for kill in range(1, KILLS + 1):
        tuner = nursery.begin(argv, environment, tmp_path)
        # While it reads, thinks, launches, waits or stores: some launches later and a moment more.
        try:
            wait_for_launches(folder, more=moments.randrange(3))
            time.sleep(moments.uniform(0.0, 0.2))
        finally:
            os.kill(tuner, signal.SIGKILL)
        ended, _out, err = nursery.end()
        assert ended == -signal.SIGKILL, err[-3000:]
        assert LEFTOVERS["soon_gone"](word) == [], "the reaper ends what a killed tuner was waiting for"

        trials = stored(tmp_path)
        assert trials[: len(kept)] == kept, "what was stored is as it was"
        assert [trial.number for trial in trials] == sorted({trial.number for trial in trials})
        assert len(trials) <= launched(folder) <= len(trials) + kill, "at most the launch in flight is lost"
        kept = trials
    assert len(kept) > KILLS / 6, "it went on from where it was"
    hung = {line.split()[1] for line in (folder / "drawn").read_text().splitlines()}
    assert hung == {"hang", "stubborn_child"}, "some were killed while they waited"


def launched(folder):
    """How many launches the stand-in has seen."""
    path = folder / "launches"
    return path.stat().st_size if path.exists() else 0


def wait_for_launches(folder, *, more, within_s=120.0):
    """Wait until the stand-in has been launched so often again, or hangs."""
    before = launched(folder)
    deadline = time.monotonic() + within_s
    while launched(folder) < before + more and not (launched(folder) > before and hangs(folder)):
        assert time.monotonic() < deadline, "the tuner launches nothing any more"
        time.sleep(0.01)


def hangs(folder):
    drawn = folder / "drawn"
    lines = drawn.read_text().splitlines() if drawn.exists() else []
    return bool(lines) and int(lines[-1].split()[0]) == launched(folder)


def stored(folder):
    """All trials of the only study, in their order; none before there is a store."""
    if not (folder / "ncclt.db").exists():
        return []
    with open_store(f"sqlite:///{folder / 'ncclt.db'}") as store:
        return [trial for summary in store.studies.page().items for trial in store.trials.find(summary.study.id)]

"""A study whose ranks are real: variables of the site, own tuning and debugging of the user's shell on gloo."""

import os
import time

import pytest
from quiet_tune import tune_quietly

from ncclt.core.budget import Budget
from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision
from ncclt.core.study import Arm
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.open_testbed import launched_testbed
from ncclt.measure.target import Target
from ncclt.pipeline.tune import TuneRequest
from ncclt.store import open_store
from ncclt.store.shipped import named_clusters, profiles_folder

pytest.importorskip("torch")

pytestmark = pytest.mark.thorough

PAIR = named_clusters(profiles_folder())["pcie-pair"]
MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=64 << 10, group_size=2)
WORKLOAD = Workload(
    name="w",
    messages=(MessageCalls(message=MESSAGE, calls_per_step=1.0),),
    provenance=Provenance(source="test"),
)

SLOW = """
import os, pathlib, time
if "RANK" in os.environ:
    seen = " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NCCL_"))
    with pathlib.Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(seen + "\\n")
    if os.environ.get("NCCL_PROTO") == "Simple":
        import torch.distributed as dist
        sound = dist.all_reduce
        def all_reduce(*args, **kwargs):
            time.sleep(0.02)
            return sound(*args, **kwargs)
        dist.all_reduce = all_reduce
"""


def test_a_slowed_setting_of_today_costs_and_debugging_reaches_no_rank(tmp_path, monkeypatch):
    """Gloo reads no NCCL_* variable, so a stand-in slows the ranks that have the user's."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    notes = tmp_path / "notes"
    own = {"NCCL_PROTO": "Simple", "NCCL_IB_HCA": "mlx5_0", "NCCL_OF_THE_SITE": "1", "NCCL_DEBUG": "INFO"}
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM", "OMPI", "PMI"))}
    shell |= {"PYTHONPATH": str(tmp_path), "NOTES": str(notes), "OMP_NUM_THREADS": "1", **own}
    # Like a job over NCCL, whose variables act.
    monkeypatch.setattr(Target, "is_gloo", False)
    target = Target(launcher="torchrun", benchmark="torch_collectives", backend="gloo", gpus_per_node=2, nodes=1)
    testbed = launched_testbed(PAIR, WORKLOAD.collectives, target, environ=shell, ask=False)
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        result = tune_quietly(
            TuneRequest(workload=WORKLOAD, budget=Budget(trials=1, blocks=8, process_wide=())),
            testbed,
            store,
            clock=time.monotonic,
        )
    today = result.recommendation.today
    assert today.default.decision is Decision.TUNED, today.default
    assert today.words.startswith("your settings cost ")
    assert today.words.endswith(": unset NCCL_PROTO")
    ranks = [dict(word.split("=", 1) for word in line.split()) for line in notes.read_text().splitlines()]
    assert {(rank["NCCL_IB_HCA"], rank["NCCL_OF_THE_SITE"]) for rank in ranks} == {("mlx5_0", "1")}
    assert not any("NCCL_DEBUG" in rank for rank in ranks)
    launches = sum(trial.arm is Arm.TODAY for trial in result.trials)
    assert sum(rank.get("NCCL_PROTO") == "Simple" for rank in ranks) == 2 * launches > 0

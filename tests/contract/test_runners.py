"""Every runner that needs no GPU keeps the contract of runners."""

from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.core.trial import Runner
from ncclt.measure.replay import ReplayRunner, load_landscape
from ncclt.measure.simulated import SimulatedRunner
from ncclt.testing.landscapes import write_landscape
from runner_contract import RunnerContract

PAIR = Cluster(
    name="pair",
    gpus_per_node=2,
    gpu="L40S",
    compute_capability=89,
    link_class="shm",
    link_gbps=32.0,
    nccl_version="2.28.9",
)

ROWS = [
    {"gpus_per_node": 2, "size_bytes": size, "algo": algo, "proto": proto, "time_us": time_us}
    for size, algo, proto, time_us in (
        (4096, "", "", 10.5),
        (1 << 20, "", "", 90),
        (4096, "ring", "ll", 9.5),
        (1 << 20, "ring", "ll", 180),
    )
]


class TestSimulatedRunner(RunnerContract):
    def runner(self) -> Runner:
        return SimulatedRunner(PAIR, seed=1)


class TestReplayRunner(RunnerContract):
    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.path = write_landscape(tmp_path / "recorded.csv", ROWS)

    def runner(self) -> Runner:
        return ReplayRunner(load_landscape(self.path), seed=1)

    def impossible(self) -> Setting:
        return Setting(channels=3)

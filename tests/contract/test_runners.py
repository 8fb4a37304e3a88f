"""Every runner that needs no GPU keeps the contract of runners."""

from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.core.trial import Runner
from ncclt.measure.simulated import ReplayRunner, SimulatedRunner, load_landscape
from runner_contract import RunnerContract

PAIR = Cluster(
    name="pair", gpus_per_node=2, gpu="L40S", compute_capability=89, link_class="shm", link_gbps=32.0,
    nccl_version="2.28.9",
)  # fmt: skip

TABLE = """\
system,gpus,nodes,collective,size_bytes,algo,proto,nchannels,time_us
box of 2 L40S,2,1,all_reduce,4096,,,,10.5
box of 2 L40S,2,1,all_reduce,1048576,,,,90
box of 2 L40S,2,1,all_reduce,4096,Ring,LL,,9.5
box of 2 L40S,2,1,all_reduce,1048576,Ring,LL,,180
"""


class TestSimulatedRunner(RunnerContract):
    def runner(self) -> Runner:
        return SimulatedRunner(PAIR, seed=1)


class TestReplayRunner(RunnerContract):
    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.path = tmp_path / "recorded.csv"
        self.path.write_text(TABLE)

    def runner(self) -> Runner:
        return ReplayRunner(load_landscape(self.path, {}), seed=1)

    def impossible(self) -> Setting:
        return Setting(channels=3)

"""The plugins keep the contracts of ncclt, and a study runs with all of them."""

import os
import subprocess

import pytest

import ncclt
from ncclt.core.message import Collective, Message
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.profile import get_reader
from ncclt.testing.benchmark_contract import BenchmarkContract
from ncclt.testing.launcher_contract import LauncherContract
from ncclt.testing.reader_contract import ReaderContract
from ncclt_lab.benchmark import LabCopy
from ncclt_lab.launcher import LabLauncher

LOG = """lab-comm rank={rank} step=1 all_reduce float32 4096 group=2
lab-comm rank={rank} step=1 all_reduce float32 65536 group=2
lab-comm rank={rank} step=2 all_reduce float32 4096 group=2
"""


@pytest.fixture
def logs(tmp_path):
    paths = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(LOG.format(rank=rank))
    return paths


class TestReader(ReaderContract):
    @pytest.fixture
    def reader(self):
        return get_reader("lab_log")

    @pytest.fixture
    def sample(self, logs):
        return logs

    @pytest.fixture
    def expected(self):
        sizes = {4096: 1.0, 65536: 0.5}
        return {
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=2): calls
            for size, calls in sizes.items()
        }


class TestLauncher(LauncherContract):
    def launcher(self):
        return LabLauncher(environment=os.environ, grace_s=0.3)

    def refused(self):
        return LabLauncher(environment=os.environ, extra=("--no-such-option",))


class TestBenchmark(BenchmarkContract):
    def benchmark(self):
        return LabCopy()

    def good_output(self, command):
        done = subprocess.run(command.argv, capture_output=True, text=True, check=False)
        return CommandOutput(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def test_a_study_runs_with_all_of_them(logs, tmp_path):
    workload = ncclt.read_workload(logs, name="lab")
    target = ncclt.Target(cluster="dgx-h100", nodes=1, gpus_per_node=2, launcher="lab", benchmark="lab_copy")
    budget = ncclt.Budget(trials=4, blocks=3, sampler="ncclt_lab.sampler:NearBest(share=0.3)")
    result = ncclt.tune(workload, target, budget, storage=f"sqlite:///{tmp_path}/lab.db")
    assert {trial.result.outcome for trial in result.trials} == {"ok"}

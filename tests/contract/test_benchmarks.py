"""Every benchmark keeps the contract."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ncclt.measure.benchmarks import BENCHMARKS, create_benchmark
from ncclt.measure.benchmarks.benchmark import Benchmark, BenchmarkCommand, CommandOutput
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import NcclTestsFeatures
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives, worker_word
from ncclt.testing.benchmark_contract import BenchmarkContract

STAND_IN = Path(__file__).parents[1] / "fakes" / "nccl_tests_stand_in.py"


def _run_stand_in(command: BenchmarkCommand) -> CommandOutput:
    program = Path(command.argv[0]).name
    argv = [sys.executable, "-I", "-S", str(STAND_IN), program, *command.argv[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=240)
    return CommandOutput(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


class TestNcclTestsText(BenchmarkContract):
    """nccl-tests of an unknown release: the table is read."""

    def benchmark(self) -> Benchmark:
        return NcclTests()

    def good_output(self, command: BenchmarkCommand) -> CommandOutput:
        return _run_stand_in(command)


class TestNcclTestsJson(TestNcclTestsText):
    """nccl-tests with -J: the result file is read."""

    def benchmark(self) -> Benchmark:
        return NcclTests(features=NcclTestsFeatures(json=True, cycles=True, per_iteration=True))


class TestTorchCollectives(BenchmarkContract):
    """The PyTorch worker; that it writes what is read here is proven with real ranks in tests/integration."""

    def benchmark(self) -> Benchmark:
        return TorchCollectives(backend="gloo")

    def good_output(self, command: BenchmarkCommand) -> CommandOutput:
        assert command.output_file is not None
        rows = [
            {"message": worker_word(message), "samples_us": [12.5, 11.0], "settled": True, "wrong": 0, "bits": "ab12"}
            for message in command.messages
        ]
        document = {"version": 1, "environment": {}, "beside": {}, "measurements": rows}
        command.output_file.write_text(json.dumps(document))
        return CommandOutput(exit_code=0, stdout="")


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_of_the_table_is_named_as_it_calls_itself(name):
    """The table's word, the module's benchmark and its own name are the same."""
    assert create_benchmark(name).name == name

"""Contract of benchmarks: subclass it in a test module and return a benchmark and an output that it can read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.errors import BenchmarkError
from ncclt.measure.benchmarks.benchmark import Benchmark, BenchmarkCommand, CommandOutput
from ncclt.testing.watchdog import WatchedContract


class BenchmarkContract(WatchedContract, ABC):
    """Tests of the contract in `ncclt.measure.benchmarks.benchmark.Benchmark`."""

    @abstractmethod
    def benchmark(self) -> Benchmark:
        """Return the benchmark under test."""

    @abstractmethod
    def good_output(self, command: BenchmarkCommand) -> CommandOutput:
        """Return the command's output on a healthy cluster, with its result file written if it has one."""

    def messages(self) -> Sequence[Message]:
        """Return some messages of all collectives, in an odd order, some with sizes that are not powers of two."""
        sizes = (28_351_488, 1024, 4_194_304, 1_048_576)
        return [
            Message(collective=collective, dtype=dtype, size_bytes=size, group_size=4)
            for size in sizes
            for collective in Collective
            for dtype in ("float32", "bfloat16")
        ]

    def test_has_a_name(self) -> None:
        """The name is a word that can be typed."""
        assert self.benchmark().name.isidentifier()

    def test_every_message_is_measured_once(self, tmp_path: Path) -> None:
        """The commands cover the messages: none twice, none missing, none invented."""
        covered = [m for c in self.benchmark().commands(self.messages(), folder=tmp_path) for m in c.messages]
        assert sorted(covered) == sorted(self.messages())

    def test_commands_depend_on_their_arguments_alone(self, tmp_path: Path) -> None:
        """The same messages give the same commands, and planning writes nothing."""
        first = self.benchmark().commands(self.messages(), folder=tmp_path)
        assert self.benchmark().commands(self.messages(), folder=tmp_path) == first
        assert not list(tmp_path.iterdir())

    def test_result_files_lie_in_the_folder(self, tmp_path: Path) -> None:
        """No two commands write the same file, and none without a folder."""
        files = [c.output_file for c in self.benchmark().commands(self.messages(), folder=tmp_path) if c.output_file]
        assert len(set(files)) == len(files)
        assert all(file.parent == tmp_path for file in files)
        assert not any(c.output_file for c in self.benchmark().commands(self.messages(), folder=None))

    def test_good_output_gives_every_time(self, tmp_path: Path) -> None:
        """One measurement per message of the command, in its order, with times above 0 and nothing wrong."""
        for command in self.benchmark().commands(self.messages(), folder=tmp_path):
            reading = self.benchmark().read(command, self.good_output(command))
            assert tuple(m.message for m in reading.measurements) == command.messages
            assert all(sample > 0 for m in reading.measurements for sample in m.samples_us)
            assert not reading.is_wrong

    @pytest.mark.parametrize("text", ["", "\n" * 5, "Segmentation fault (core dumped)\n", "usage: prog [options]\n"])
    def test_output_without_result_is_an_error_with_a_hint(self, text: str) -> None:
        """No measurement is invented, whatever the exit code."""
        command = self.benchmark().commands(self.messages(), folder=None)[0]
        with pytest.raises(BenchmarkError) as caught:
            self.benchmark().read(command, CommandOutput(exit_code=0, stdout=text))
        assert caught.value.hint

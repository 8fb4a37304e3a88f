"""Benchmark whose program prints `lab-copy MESSAGE SAMPLES_US...`, one line per message."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.trial import Measurement
from ncclt.errors import BenchmarkError
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, BenchmarkReading, CommandOutput

PROGRAM = Path(__file__).with_name("copy_times.py")


class LabCopy:
    """Times of a program in place of collectives."""

    name = "lab_copy"

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan one command for all messages; its result goes to standard output."""
        words = tuple(map(_word, messages))
        return (BenchmarkCommand(argv=(sys.executable, str(PROGRAM), *words), messages=tuple(messages)),)

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read the lines; every message needs one."""
        samples_us = {}
        for line in output.stdout.splitlines():
            words = line.split()
            if words[:1] == ["lab-copy"] and len(words) > 2:
                samples_us[words[1]] = tuple(map(float, words[2:]))
        missing = [message.label for message in command.messages if _word(message) not in samples_us]
        if missing:
            raise BenchmarkError(f"no time for {missing[0]}", hint=f"run `{' '.join(command.argv)}` by hand")
        return BenchmarkReading(
            measurements=tuple(
                Measurement(message=message, samples_us=samples_us[_word(message)], wrong=0)
                for message in command.messages
            )
        )


def _word(message: Message) -> str:
    return f"{message.collective}:{message.dtype}:{message.size_bytes}:{message.group_size}"

"""The port behind which a benchmark builds its commands and reads what they printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol as Port
from typing import runtime_checkable

from ncclt.core.message import Message
from ncclt.core.trial import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkCommand:
    """One command and what it measures.

    Attributes:
        argv: program and arguments; never given to a shell.
        messages: what it measures, each with its group size known.
        output_file: where it writes its result; None = the result is on its standard output.
        variables: what it needs in its environment besides the setting's own, sorted.
        files: files of this machine that stand in `argv` and have to be where it runs.
    """

    argv: tuple[str, ...]
    messages: tuple[Message, ...]
    output_file: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """How a command ended and what it printed.

    Attributes:
        exit_code: negative = ended by that signal; None = not known, for example of a file that was read later.
        stdout, stderr: decoded, perhaps without their beginning.
    """

    exit_code: int | None
    stdout: str
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkReading:
    """What the output of a command says.

    Attributes:
        measurements: one per message of the command, in its order; empty only where `failed_check` says why.
        failed_check: how the benchmark itself found that data came out wrong; empty = it did not.
    """

    measurements: tuple[Measurement, ...]
    failed_check: str = ""

    @property
    def is_wrong(self) -> bool:
        """Tell whether any element came out wrong."""
        return bool(self.failed_check) or any(m.wrong for m in self.measurements)


class Benchmark(Port):
    """Measures messages with some program.

    Contract: `commands` and `read` start nothing. `commands` is a function of its arguments alone and covers every
    message exactly once, in as few commands as it can. `read` returns a reading for exactly the messages of the
    command or raises; it never invents a time. What it reads may be of any length and broken anywhere.
    """

    @property
    def name(self) -> str:
        """Return the word by which people ask for this benchmark."""
        ...

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan the measurement of some messages.

        Args:
            messages: distinct, each with its group size known.
            folder: an empty folder for result files; None = everything has to go over standard output.

        Raises:
            UsageError: the benchmark cannot measure one of the messages at all.
        """
        ...

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read what a command gave.

        Raises:
            BenchmarkError: there is no usable time for some message; the message says why, as far as can be seen.
        """
        ...


@runtime_checkable
class Paced(Port):
    """A benchmark that can stop sampling a message early; not every program can, so it is a port of its own.

    Contract: what `paced` returns measures every message all the same, in a few samples where it is slow.
    """

    def paced(self, enough_us: Mapping[Message, float]) -> Benchmark:
        """Return this benchmark, taking no more than a first batch of samples of what is slower than it should be.

        Args:
            enough_us: message -> time per call above which a first batch is enough, µs; others are sampled in full.
        """
        ...

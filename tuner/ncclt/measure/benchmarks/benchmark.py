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
        files: files of this machine that are named in `argv` and needed where it runs.
    """

    argv: tuple[str, ...]
    messages: tuple[Message, ...]
    output_file: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """Exit code and outputs of a command.

    Attributes:
        exit_code: negative = ended by that signal; None = not known, for example for a file that was read later.
        stdout, stderr: decoded, possibly without their beginning.
    """

    exit_code: int | None
    stdout: str
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkReading:
    """The parsed output of a command.

    Attributes:
        measurements: one per message of the command, in its order; empty only where `failed_check` gives the reason.
        failed_check: how the benchmark itself detected wrong data; empty = it did not.
    """

    measurements: tuple[Measurement, ...]
    failed_check: str = ""

    @property
    def is_wrong(self) -> bool:
        """Return True if any element came out wrong."""
        return bool(self.failed_check) or any(m.wrong for m in self.measurements)


class Benchmark(Port):
    """Measures messages with some program.

    Contract: `commands` and `read` start nothing. `commands` is a function of its arguments alone and covers every
    message exactly once, in as few commands as it can. `read` returns a reading for exactly the messages of the
    command or raises; it never invents a time. What it reads may be of any length and broken anywhere.
    """

    @property
    def name(self) -> str:
        """Return the word used with `--benchmark`."""
        ...

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan the measurement of some messages.

        Args:
            messages: distinct, each with its group size known.
            folder: an empty folder for result files; None = everything has to go to standard output.

        Raises:
            UsageError: the benchmark cannot measure one of the messages at all.
        """
        ...

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read the output of a command.

        Raises:
            BenchmarkError: some message has no usable time; the error says why, as far as the output shows it.
        """
        ...


@runtime_checkable
class Paced(Port):
    """A benchmark that can stop sampling a message early; a separate port, because not every program can.

    Contract: what `paced` returns still measures every message, with a few samples where it is slow.
    """

    def paced(self, enough_us: Mapping[Message, float]) -> Benchmark:
        """Return this benchmark, taking only a first batch of samples of slow messages.

        Args:
            enough_us: message -> time per call above which a first batch is enough, µs; others are sampled in full.
        """
        ...


@runtime_checkable
class Rounding(Port):
    """A benchmark that cannot send every size; a separate port, because most can."""

    def sent_bytes(self, message: Message) -> int:
        """Return the size that is sent for a message whose group size is known, bytes."""
        ...

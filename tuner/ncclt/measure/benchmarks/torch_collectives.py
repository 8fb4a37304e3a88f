"""PyTorch's own collectives as a benchmark, for sites whose images contain PyTorch but not nccl-tests.

One process per rank runs a worker that imports nothing of ncclt. One command measures all messages, with the process
groups of the workload: the whole world, groups within nodes, groups across nodes; all groups of a kind work at the same
time, as in a training, and the slowest one counts.

Not tested on a GPU; tested on gloo, with PyTorch 2.13.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ncclt.core.message import DTYPE_SIZES, Message
from ncclt.core.trial import Measurement
from ncclt.errors import BenchmarkError, UsageError
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, BenchmarkReading, CommandOutput
from ncclt.measure.outcome import signal_name
from ncclt.nccl.nccl_tests.reason import failure_reason

VERSION = 1
"""Of the worker's document (`VERSION` there)."""

_MOST_BYTES = 256 * 1024 * 1024
"""Limit of the unpacked result, which has some 2 KiB per message."""

_CHUNK = re.compile(r"NCCLT-RESULT (\d{1,6})/(\d{1,6}) ([0-9a-f]{8}) ([A-Za-z0-9+/=]{1,1024})\.")
_FAILED = re.compile(r"ncclt: (rank \d{1,7} on \S{1,200}) failed after (\d{1,9}\.\d{6}) s: (.{1,2000})")
# The table that torchrun prints at the end; SIGTERM is what torchrun itself sends to the remaining ranks.
_ENDED_BY_SIGNAL = re.compile(r"rank\s+: (\d{1,7}) \(local_rank: \d+\)\s+exitcode\s+: -(?!15\b)(\d{1,2}) ")


class TorchRow(NamedTuple):
    """One message as it was measured.

    Attributes:
        word: the message as the worker received it.
        samples_us: time of each call on the slowest rank, µs.
        wrong: elements that came out wrong, on all ranks, in both checks.
        bits: hash of the bits that all ranks received for numbers whose sums depend on their order.
    """

    word: str
    samples_us: tuple[float, ...]
    wrong: int
    bits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchResult:
    """One run of the worker.

    Attributes:
        rows: in the order of the command; only the first ones if there is an error.
        environment: what it ran on: backend, hosts by rank, ranks of each node, devices, and what is equal on all
            ranks (versions and NCCL variables).
        beside: what ran beside the messages, None = nothing.
        error: why it ended early; empty = it did not.
    """

    rows: tuple[TorchRow, ...]
    environment: Mapping[str, Any]
    beside: str | None
    error: str

    @property
    def wrong(self) -> int:
        """Return the elements that came out wrong, of all messages."""
        return sum(row.wrong for row in self.rows)


def failed_rank(printed: str) -> str:
    """Return the reason that the ranks reported for their end; empty = they reported none.

    The first to fail is the cause: the others only notice that it has ended. A killed rank cannot report anything.
    """
    failures = sorted(
        (float(after_s), f"{rank}: {reason.strip()}") for rank, after_s, reason in _FAILED.findall(printed)
    )
    killed = [
        f"rank {rank} was ended by {signal_name(int(number))}" for rank, number in _ENDED_BY_SIGNAL.findall(printed)
    ]
    return "; ".join([*killed[:1], *(reason for _, reason in failures[:1])])


def find_result(printed: str) -> str:
    """Return the document that rank 0 printed.

    Raises:
        BenchmarkError: the document is missing or broken.
    """
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for number, count, checksum, letters in _CHUNK.findall(printed):
        parts.setdefault((checksum, int(count)), {})[int(number)] = letters
    if not parts:
        reason = failed_rank(printed) or failure_reason(printed)
        raise BenchmarkError(f"the PyTorch benchmark reported nothing: {reason}", hint=_HINT)
    if len(parts) > 1:
        raise BenchmarkError(
            f"{len(parts)} runs of the PyTorch benchmark answered where one was started",
            hint="every process considered itself rank 0: the launcher and the image may have different MPI libraries",
        )
    ((checksum, count), letters_of) = next(iter(parts.items()))
    if set(letters_of) != set(range(1, count + 1)):
        raise BenchmarkError(
            f"{len(letters_of)} of {count} parts of the PyTorch benchmark's result arrived", hint=_HINT
        )
    try:
        packed = base64.b64decode("".join(letters_of[number] for number in range(1, count + 1)), validate=True)
        if f"{zlib.crc32(packed):08x}" != checksum:
            raise ValueError("its checksum does not match")
        unpacking = zlib.decompressobj()
        return unpacking.decompress(packed, _MOST_BYTES).decode()
    except (binascii.Error, zlib.error, ValueError) as error:
        raise BenchmarkError(f"the PyTorch benchmark's result is broken: {error}", hint=_HINT) from error


def parse_result(text: str) -> TorchResult:
    """Read the worker's document.

    Raises:
        BenchmarkError: it is not what this version of the worker writes, or holds invalid times.
    """
    try:
        document = json.loads(text)
        version = document["version"]
        if version != VERSION:
            raise BenchmarkError(
                f"the PyTorch benchmark's result has version {version!r}, this release of ncclt reads {VERSION}",
                hint="the worker was copied from another release",
            )
        return TorchResult(
            rows=tuple(_row(row) for row in document["measurements"]),
            environment=dict(document["environment"]),
            beside=next(iter(document["beside"]), None),
            error=str(document.get("error", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BenchmarkError(
            f"the PyTorch benchmark's result cannot be read ({type(error).__name__}: {error})", hint=_HINT
        ) from error


def _row(row: Mapping[str, Any]) -> TorchRow:
    samples_us = tuple(float(sample) for sample in row["samples_us"])
    if not samples_us or not all(math.isfinite(sample) and sample > 0 for sample in samples_us):
        raise ValueError(f"times of {row['message']} that are none")
    if not isinstance(row["wrong"], int) or row["wrong"] < 0:
        raise ValueError(f"{row['wrong']!r} wrong elements of {row['message']}")
    return TorchRow(str(row["message"]), samples_us, row["wrong"], str(row["bits"]))


WORKER = Path(__file__).parent / "torch_worker" / "ncclt_torch_worker.py"
MEASURING = WORKER.with_name("ncclt_torch_measuring.py")

BACKENDS = ("nccl", "gloo")
LOADS = ("gemm",)
"""Work that can run beside the messages."""

CARRIERS: Mapping[str, str] = {
    "float8_e4m3": "uint8",
    "float8_e5m2": "uint8",
    "int16": "int8",
    "uint64": "int64",
    "uint32": "int32",
    "bool": "uint8",
}
"""dtypes that not every backend can reduce, and the dtype sent instead: NCCL's choice depends only on bytes."""

_HINT = "run the same command by hand; `ncclt doctor` looks for the usual causes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCollectives:
    """Builds the command of the worker's ranks and reads what rank 0 reports.

    Attributes:
        backend: of torch.distributed, `nccl` or `gloo` (CPU only; NCCL variables do not affect it).
        python: the interpreter that has PyTorch, where the ranks run.
        budget_s: for timing one message. Calls are timed until the 95 % interval of their median is within 2 % of it,
            until 256 are timed, or until this is spent; at least 8.
        timeout_s: how long a rank waits for others before it exits; slightly less than the launcher's own timeout, so
            that the reason can still be reported.
        beside: `gemm` = a matrix product runs at the same time on each rank, because winners change under load.
        enough_us: message -> time per call, µs, above which its first batch of samples is enough; all others are
            sampled as described for `budget_s`.
    """

    name: ClassVar[str] = "torch_collectives"

    backend: str = "nccl"
    python: str = sys.executable
    budget_s: float = 0.5
    timeout_s: float = 90.0
    beside: str | None = None
    enough_us: Mapping[Message, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UsageError(f"unknown backend {self.backend!r}", hint=f"one of {', '.join(BACKENDS)}")
        if self.beside is not None and self.beside not in LOADS:
            raise UsageError(
                f"{self.beside!r} cannot run concurrently with the collectives", hint=f"one of {', '.join(LOADS)}"
            )

    def paced(self, enough_us: Mapping[Message, float]) -> TorchCollectives:
        """Return this benchmark with other times above which a first batch is enough, µs."""
        return replace(self, enough_us=enough_us)

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan one command for all messages."""
        if not messages:
            return ()
        output_file = folder / "torch_collectives.json" if folder is not None else None
        enough = [f"{self.enough_us.get(message, 0.0):.6g}" for message in messages]
        argv = (
            *(self.python, str(WORKER), "--measuring", str(MEASURING), "--backend", self.backend),
            *("--budget-s", f"{self.budget_s:g}", "--timeout-s", f"{self.timeout_s:g}"),
            *(("--beside", self.beside) if self.beside else ()),
            *(("--output", str(output_file)) if output_file else ()),
            *(("--enough-us", *enough) if any(message in self.enough_us for message in messages) else ()),
            *("--messages", *map(worker_word, messages)),
        )
        return (
            BenchmarkCommand(
                argv=argv,
                messages=tuple(messages),
                output_file=output_file,
                # One thread per rank; otherwise the ranks of a node disturb each other.
                variables=(("OMP_NUM_THREADS", "1"),),
                files=(WORKER, MEASURING),
            ),
        )

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read the result file if it is on this machine, else what rank 0 printed."""
        printed = f"{output.stdout}\n{output.stderr}"
        if command.output_file is not None and command.output_file.is_file():
            text = command.output_file.read_text(encoding="utf-8", errors="replace")
        else:
            text = find_result(printed)
        result = parse_result(text)
        if result.error:
            reason = f"{failed_rank(printed) or result.error}"
            if result.wrong:
                return BenchmarkReading(
                    measurements=(), failed_check=f"{result.wrong} elements came out wrong, then: {reason}"
                )
            raise BenchmarkError(f"the PyTorch benchmark ended early: {reason}", hint=_HINT)
        return BenchmarkReading(measurements=self._measurements(command.messages, result))

    def _measurements(self, messages: Sequence[Message], result: TorchResult) -> tuple[Measurement, ...]:
        expected = [worker_word(message) for message in messages]
        words = [row.word for row in result.rows]
        if words != expected:
            missing = [message.label for message in messages if worker_word(message) not in words]
            problem = f"no time for {', '.join(missing[:3])}" if missing else "times of other messages than requested"
            raise BenchmarkError(f"the PyTorch benchmark reports {problem}", hint=_HINT)
        if result.beside != self.beside:
            raise BenchmarkError(
                f"{self.beside or 'nothing'} should have run beside the messages, and {result.beside or 'nothing'} did",
                hint="the worker is of another release of ncclt",
            )
        return tuple(
            Measurement(
                message=message,
                samples_us=row.samples_us,
                wrong=row.wrong,
                bits=row.bits,
                measured_bytes=None if sent_bytes(message) == message.size_bytes else sent_bytes(message),
            )
            for message, row in zip(messages, result.rows, strict=True)
        )


def worker_word(message: Message) -> str:
    """Write a message as the worker reads it, `all_reduce:float32:4232978:8:across`.

    The number counts elements of the dtype that is sent, for all_gather, reduce_scatter and all_to_all in the part of
    one rank. A size that is not a multiple of whole elements and equal parts is rounded up.

    Raises:
        UsageError: the group is not known, or has only one rank.
    """
    if message.group_size < 2:
        raise UsageError(
            f"{message.label} needs a group of at least 2 ranks, not {message.group_size}",
            hint="place the workload on the cluster first",
        )
    size = DTYPE_SIZES[message.dtype]
    elements = sent_bytes(message) // (size * message.parts)
    carrier = CARRIERS.get(message.dtype, message.dtype)
    words = [message.collective, carrier, elements * size // DTYPE_SIZES[carrier], message.group_size]
    return ":".join(map(str, words)) + (":across" if message.spans_nodes else "")


def sent_bytes(message: Message) -> int:
    """Return the size that is sent: the message's, rounded up to whole elements in equal parts."""
    unit = DTYPE_SIZES[message.dtype] * message.parts
    return -(-message.size_bytes // unit) * unit

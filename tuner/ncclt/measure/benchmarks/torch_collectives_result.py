"""Finds and checks the PyTorch worker's report, whose lines launchers may have joined, cut and mixed."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import signal
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncclt.errors import BenchmarkError
from ncclt.nccl.nccl_tests.reason import failure_reason

VERSION = 1
"""Of the worker's document (`VERSION` there)."""

_MOST_BYTES = 256 * 1024 * 1024
"""Limit of the unpacked result, which has some 2 KiB per message."""

_HINT = "run the same command by hand; `ncclt doctor` looks for the usual causes"
_CHUNK = re.compile(r"NCCLT-RESULT (\d{1,6})/(\d{1,6}) ([0-9a-f]{8}) ([A-Za-z0-9+/=]{1,1024})\.")
_FAILED = re.compile(r"ncclt: (rank \d{1,7} on \S{1,200}) failed after (\d{1,9}\.\d{6}) s: (.{1,2000})")
# The table that torchrun prints at the end; SIGTERM is what torchrun itself sends to the remaining ranks.
_ENDED_BY_SIGNAL = re.compile(r"rank\s+: (\d{1,7}) \(local_rank: \d+\)\s+exitcode\s+: -(?!15\b)(\d{1,2}) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRow:
    """One message as it was measured.

    Attributes:
        word: the message as the worker received it.
        samples_us: time of each call on the slowest rank, µs.
        wrong: elements that came out wrong, on all ranks, in both checks.
        settled: the 95 % interval of the median is within 2 % of it.
    """

    word: str
    samples_us: tuple[float, ...]
    wrong: int
    settled: bool


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
    """Return why the ranks ended, as they reported it; empty = they did not.

    The first to fail is the cause: the others only notice that it has ended. A killed rank cannot report anything.
    """
    said = sorted((float(after_s), f"{rank}: {reason.strip()}") for rank, after_s, reason in _FAILED.findall(printed))
    killed = [
        f"rank {rank} was ended by {_signal_name(int(number))}" for rank, number in _ENDED_BY_SIGNAL.findall(printed)
    ]
    return "; ".join([*killed[:1], *(reason for _, reason in said[:1])])


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
            hint="every process took itself for rank 0: the launcher and the image may have different MPI libraries",
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
    return TorchRow(word=str(row["message"]), samples_us=samples_us, wrong=row["wrong"], settled=bool(row["settled"]))


def _signal_name(number: int) -> str:
    known = number in {s.value for s in signal.Signals}
    return signal.Signals(number).name if known else f"signal {number}"

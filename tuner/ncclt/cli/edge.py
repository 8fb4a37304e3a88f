"""Where errors become exit codes, signals become a wish to stop, and documents become lines."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from ncclt.errors import (
    NccltError,
    NodesLostError,
    NotFoundError,
    ServerError,
    StoreError,
    UsageError,
)

EXIT_INTERRUPTED = 130
"""What a shell expects after Ctrl-C: 128 + SIGINT."""

EXIT_NODES_LOST = 75
"""EX_TEMPFAIL of sysexits.h: the nodes are gone, and the same command goes on with others."""

_EXIT_CODES: tuple[tuple[type[NccltError], int], ...] = (
    (UsageError, 2),
    (NotFoundError, 3),
    (StoreError, 69),
    (ServerError, 69),
    (NodesLostError, EXIT_NODES_LOST),
    (NccltError, 1),
)
"""First match counts; 69 is EX_UNAVAILABLE of sysexits.h."""


def exit_code(error: NccltError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def report(error: NccltError) -> int:
    """Write an error and its hint to stderr and return its exit code; stdout stays untouched."""
    sys.stderr.write(f"ncclt: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")
    return exit_code(error)


def print_json(document: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Write a line for people to stderr."""
    sys.stderr.write(text + "\n")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, which schedulers send, do what Ctrl-C does: end the running launch, then us."""
    # Under nohup SIGHUP is ignored and stays so.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class StopWish:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop after the running trial; the second one interrupts.

    Slurm announces preemption and the end of a job's time by SIGTERM, which therefore means the same.
    """

    def __init__(self) -> None:
        self._number = 0
        self._why = ""
        self._before: dict[int, Any] = {}
        self.exit_code = EXIT_INTERRUPTED

    def __call__(self) -> str:
        """Say why to stop; empty = nobody wants to."""
        if self._number and not self._why:
            from ncclt.launch.slurm.job import job_notice

            self._why = "interrupted by the user" if self._number == signal.SIGINT else "ended by SIGTERM"
            if self._number == signal.SIGTERM and (notice := job_notice(os.environ)):
                self._why, self.exit_code = notice, EXIT_NODES_LOST
        return self._why

    def __enter__(self) -> StopWish:
        """Listen to the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._number:
            raise KeyboardInterrupt
        self._number = number
        say("\nncclt: finishing the running trial, then saving; once more to kill it")

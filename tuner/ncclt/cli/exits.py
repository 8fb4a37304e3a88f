"""Exit codes, and requests to stop by signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from ncclt.cli.render import say
from ncclt.errors import NccltError, NodesLostError, NotFoundError, NotStartedError, ServerError, StoreError, UsageError

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it: 128 + SIGINT."""

EXIT_NODES_LOST = 75
"""EX_TEMPFAIL of sysexits.h: nodes were lost, or a launch did not start; the same command resumes."""

_EXIT_CODES: tuple[tuple[type[NccltError], int], ...] = (
    (UsageError, 2),
    (NotFoundError, 3),
    (StoreError, 69),
    (ServerError, 69),
    (NotStartedError, EXIT_NODES_LOST),
    (NodesLostError, EXIT_NODES_LOST),
    (NccltError, 1),
)
"""The first match counts; 69 is EX_UNAVAILABLE of sysexits.h."""


def report(error: NccltError) -> int:
    """Write an error and its hint to stderr and return its exit code; stdout stays untouched."""
    say(f"ncclt: {error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP, which schedulers send, as Ctrl-C: end the running launch, then this process."""
    # Under nohup SIGHUP is ignored and stays so.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class StopRequest:
    """Request to stop after the running trial, by the first Ctrl-C or SIGTERM; the second interrupts.

    Slurm announces preemption and a time limit by SIGTERM.
    """

    def __init__(self) -> None:
        self._number = 0
        self._why = ""
        self._before: dict[int, Any] = {}
        self.exit_code = EXIT_INTERRUPTED

    def __call__(self) -> str:
        """Return the reason to stop; empty = no request."""
        if self._number and not self._why:
            from ncclt.launch.slurm.job import job_notice

            self._why = "interrupted by the user" if self._number == signal.SIGINT else "ended by SIGTERM"
            if self._number == signal.SIGTERM and (notice := job_notice(os.environ)):
                self._why, self.exit_code = notice, EXIT_NODES_LOST
        return self._why

    def __enter__(self) -> StopRequest:
        """Install the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number:
            raise KeyboardInterrupt
        self._number = number
        say("\nncclt: finishing the running trial, then saving; interrupt again to kill it")

"""Exit codes, requests to stop by signals, and printed documents and tables."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal

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
"""EX_TEMPFAIL of sysexits.h: nodes were lost; the same command resumes on others."""

_EXIT_CODES: tuple[tuple[type[NccltError], int], ...] = (
    (UsageError, 2),
    (NotFoundError, 3),
    (StoreError, 69),
    (ServerError, 69),
    (NodesLostError, EXIT_NODES_LOST),
    (NccltError, 1),
)
"""The first match counts; 69 is EX_UNAVAILABLE of sysexits.h."""


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


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    numbers: Sequence[str] = (),
    to_stderr: bool = False,
) -> None:
    """Write a table to stdout.

    Args:
        header: column titles.
        rows: texts, one per column; never read as markup.
        caption: a line below the table.
        numbers: titles of the right-aligned columns.
        to_stderr: write it to stderr instead.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    for position, title in enumerate(header):
        number = title in numbers
        # Names and figures stay whole; where even these do not fit, an ellipsis shows it.
        whole = number or title == header[0] or not any(" " in row[position] for row in rows)
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if whole else "fold"
        table.add_column(title, justify="right" if number else "left", overflow=overflow, no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        # Piped into a file or a pager, rows must not be folded at 80 columns.
        console = Console(width=200, stderr=to_stderr)
    console.print(table)


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(text + "\n")


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


class StopWish:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the running trial; the second interrupts.

    Slurm announces preemption and a time limit by SIGTERM.
    """

    def __init__(self) -> None:
        self._number = 0
        self._why = ""
        self._before: dict[int, Any] = {}
        self.exit_code = EXIT_INTERRUPTED

    def __call__(self) -> str:
        """Return why to stop; empty = no request."""
        if self._number and not self._why:
            from ncclt.launch.slurm.job import job_notice

            self._why = "interrupted by the user" if self._number == signal.SIGINT else "ended by SIGTERM"
            if self._number == signal.SIGTERM and (notice := job_notice(os.environ)):
                self._why, self.exit_code = notice, EXIT_NODES_LOST
        return self._why

    def __enter__(self) -> StopWish:
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
        say("\nncclt: finishing the running trial, then saving; once more to kill it")

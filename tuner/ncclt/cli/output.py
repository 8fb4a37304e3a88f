"""Exit codes, requests to stop by signals, and printed documents and tables."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
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

_PIPED_WIDTH = 200
"""Columns of a table that no terminal shows."""

_SHORTEST = 8
"""Characters that remain of a name in a narrow table."""

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


_UNPRINTABLE = re.compile(
    r"(\x1b\[(?:(?:[0-57]|[2349][0-9]|10[0-7]|38;5;[0-9]{1,3});?)*m)|"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""What moves a terminal's cursor, hides text or reorders it; the group is colours and bold."""


def printable(text: str, *, colours: bool = False) -> str:
    """Return a text in which what would control a terminal is spelled out, whatever names the store holds.

    Args:
        text: to be shown; line ends and tabs stay.
        colours: keep colours and bold, which only our own tables have.
    """
    return _UNPRINTABLE.sub(
        lambda found: found[0] if colours and found[1] else found[0].encode("unicode_escape").decode(), text
    )


def exit_code(error: NccltError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def report(error: NccltError) -> int:
    """Write an error and its hint to stderr and return its exit code; stdout stays untouched."""
    sys.stderr.write(printable(f"ncclt: {error.message}\n"))
    if error.hint:
        sys.stderr.write(printable(f"  hint: {error.hint}\n"))
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
    """Write a table to stdout; bold and colours appear on a terminal alone, and there without NO_COLOR.

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

    rows = [[printable(cell) for cell in row] for row in rows]
    console = Console(stderr=to_stderr)
    # Piped into a file or a pager, rows must not be folded at 80 columns.
    width = console.width if console.is_terminal else _PIPED_WIDTH
    widths, gap = _widths(header, rows, numbers, width)
    table = Table(
        box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold", caption=caption or None,
        caption_justify="left",
    )  # fmt: skip
    for title, most in zip(header, widths, strict=True):
        table.add_column(title, justify="right" if title in numbers else "left", width=most, vertical="top")
    for row in rows:
        table.add_row(*(Text(_cut(cell, most)) for cell, most in zip(row, widths, strict=True)))
    # A table that cannot be narrower is left to the terminal: it folds lines, and loses none.
    Console(stderr=to_stderr, width=max(width, sum(widths) + gap * (len(widths) - 1))).print(table)


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str], width: int
) -> tuple[list[int], int]:
    """Return the characters of each column and between two: texts fold at blanks, then names lose their middle."""
    cells = [[*title.split("\n"), *(row[at] for row in rows)] for at, title in enumerate(header)]
    widths = [max(map(len, column)) for column in cells]
    words = [max((len(word) for text in column for word in text.split()), default=0) for column in cells]
    for at, title in enumerate(header):
        if title in numbers:  # the head of a number folds, the number itself does not
            words[at] = max(words[at], *(len(row[at]) for row in rows), 0)
    gap = 2 if sum(words) + 2 * (len(header) - 1) <= width else 1
    room = width - gap * (len(header) - 1)
    # An id is there to be copied.
    shortest = [
        words[at] if title in (*numbers, "id") else min(words[at], _SHORTEST) for at, title in enumerate(header)
    ]
    for least in (words, shortest):
        while sum(widths) > room and (wide := [at for at in range(len(widths)) if widths[at] > least[at]]):
            widths[max(wide, key=lambda at: widths[at])] -= 1
    return widths, gap


def _cut(text: str, most: int) -> str:
    """Return a text without the middle of each word that is longer than its column."""
    tail = (most - 1) // 2
    return " ".join(
        word if len(word) <= most else f"{word[: most - 1 - tail]}…{word[len(word) - tail :]}"
        for word in text.split(" ")
    )


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(printable(text) + "\n")


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

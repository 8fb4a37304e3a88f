"""Exit codes, requests to stop by signals, and printed documents and tables."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from ncclt.cli.stdio import Styled, visible
from ncclt.errors import (
    NccltError,
    NodesLostError,
    NotFoundError,
    NotStartedError,
    ServerError,
    StoreError,
    UsageError,
)

if TYPE_CHECKING:
    from rich.console import Console

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it: 128 + SIGINT."""

_PIPED_WIDTH = 200
"""Columns of a table that no terminal shows."""

_USUAL_WIDTH = 80
"""Columns of a terminal that does not tell its size."""

_SHORTEST = 8
"""Characters that remain of a name in a narrow table."""

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


def exit_code(error: NccltError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


def report(error: NccltError) -> int:
    """Write an error and its hint to stderr and return its exit code; stdout stays untouched."""
    say(f"ncclt: {error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")
    return exit_code(error)


def print_json(document: Any) -> None:
    """Write one JSON document to stdout."""
    is_utf = "utf" in (sys.stdout.encoding or "utf").lower()
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=not is_utf) + "\n")


def console(*, to_stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that writes styles; texts from outside are made `visible` before it prints them."""
    from rich.console import Console

    return Console(file=cast("IO[str]", Styled(sys.stderr if to_stderr else sys.stdout)), width=width)


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
    from rich.table import Table
    from rich.text import Text

    given = console(to_stderr=to_stderr)
    # Piped into a file or a pager, rows must not be folded at 80 columns.
    width = given.width if given.is_terminal else _PIPED_WIDTH
    rows = [[visible(cell) for cell in row] for row in rows]
    widths, gap = _widths(header, rows, numbers, width)
    table = Table(
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style="bold",
        caption=visible(caption) or None,
        caption_justify="left",
    )
    for title, most in zip(header, widths, strict=True):
        table.add_column(title, justify="right" if title in numbers else "left", width=most, vertical="top")
    for row in rows:
        table.add_row(*(Text(_cut(cell, most)) for cell, most in zip(row, widths, strict=True)))
    # A table that cannot be narrower is left to the terminal: it folds lines, and loses none.
    console(to_stderr=to_stderr, width=max(width, sum(widths) + gap * (len(widths) - 1))).print(table)


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


def say(text: str, *, to_stdout: bool = False) -> None:
    """Write a line to stderr; on a terminal it is folded at blanks, elsewhere it is one line."""
    stream = sys.stdout if to_stdout else sys.stderr
    text = visible(text)
    if stream.isatty():
        text = "\n".join(_folded(line, _columns(stream)) for line in text.split("\n"))
    stream.write(text + "\n")


def note(text: str) -> None:
    """Write a note below a table or result on stdout."""
    say(f"note: {text}", to_stdout=True)


def print_bold(text: str) -> None:
    """Write a line to stdout, bold on a terminal and never folded: a command must be copied whole."""
    from rich.text import Text

    console().print(Text(visible(text), style="bold"), soft_wrap=True)


def draw_bar(share: float, width: int) -> str:
    """Return a bar in eighths of a character; empty for no share, `width` characters for a whole.

    >>> draw_bar(0.25, 12), draw_bar(-0.1, 12), draw_bar(7, 3)
    ('███', '', '███')
    """
    eighths = round(8 * width * max(0.0, min(share, 1.0)))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _folded(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)


def _columns(stream: TextIO) -> int:
    """Return the columns of the terminal that a stream is."""
    if (named := os.environ.get("COLUMNS", "")).isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except OSError:  # no file, or a terminal without a size
        return _USUAL_WIDTH


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

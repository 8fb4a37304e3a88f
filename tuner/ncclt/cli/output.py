"""Names of `render` and `exits` under which commands that are not converted yet import them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ncclt.cli import render
from ncclt.cli.exits import EXIT_INTERRUPTED, EXIT_NODES_LOST, StopRequest, interruptible, report
from ncclt.cli.render import Column, console, draw_bar, note, print_json
from ncclt.cli.render import print_headline as print_bold

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_NODES_LOST",
    "StopRequest",
    "console",
    "draw_bar",
    "interruptible",
    "note",
    "print_bold",
    "print_json",
    "print_table",
    "report",
    "say",
]


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    numbers: Sequence[str] = (),
    to_stderr: bool = False,
) -> None:
    """Write a table whose columns are all needed."""
    columns = [Column(title, right=title in numbers) for title in header]
    render.print_table(rows, columns, caption=caption, to_stderr=to_stderr)


def say(text: str, *, to_stdout: bool = False) -> None:
    """Write a line to stderr or stdout."""
    render._write_folded(text, sys.stdout if to_stdout else sys.stderr)

"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


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
        numbers: titles of the columns that are set flush right.
        to_stderr: write it to stderr, where stdout is somebody else's.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    for title in header:
        number = title in numbers
        whole = number or title == header[0]
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        # Piped into a file or a pager, rows must not be folded at 80 columns.
        console = Console(width=200, stderr=to_stderr)
    console.print(table)

"""Output of all commands: headline, facts, tables, notes, progress, JSON and numbers.

A command parses, calls one function of `pipeline`, and passes its result on:

    if as_json:
        print_json({"schema": 1, "study": study})  # records become their `to_document`, at any depth
        return
    print_headline("2 keys")                       # bold on a terminal
    print_facts([("Store", store.shown), ("Use", command)], commands=("Use",))
    print_table(
        keys,                                    # any rows: records with a `cell` per column, or sequences without
        [
            Column("key", lambda key: key.id),
            Column("uses", lambda key: key.uses),             # int or float: right-aligned, 3 significant digits
            Column("created", lambda key: key.created[:10], drop=1),
            Column("note", lambda key: key.note, drop=2),     # the highest `drop` goes first on a narrow terminal
        ],
        caption="oldest first",
    )
    print_list("keys", keys, columns, as_json=as_json)  # a command that lists: the table or its JSON
    print_document(plan)                         # a plan: `key: value` lines of the document that --json prints
    note("…")                                    # "note: …" on stdout, folded on a terminal
    say("ncclt: …")                              # a line on stderr, likewise; `print_text` = the same on stdout

Give `drop` to what a reader misses least (bytes, shares, dates); verdict, collective and size have none. Where the
columns without `drop` do not fit, the rows are printed one below the other, so no word is ever cut. A cell that is None
is shown as `-`. Where no terminal shows it, a table keeps all columns.

The unit of a number stands in the title of its column: `Column("time, ms", lambda row: row.time_us / 1e3)`.
Anywhere else: `format_number`, `format_factor`, `format_percent`, `format_bandwidth`, `core.duration.format_duration`
and `core.message.format_bytes`.

rich is imported where a table or a bar is drawn: `ncclt env` and `ncclt run` import this module, and start fast.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from ncclt.cli.stdio import Styled, visible

if TYPE_CHECKING:
    from rich.console import Console

    from ncclt.launch.launcher import LaunchPlan

_PIPED_WIDTH = 200
"""Columns of a table that no terminal shows."""

_USUAL_WIDTH = 80
"""Columns of a terminal that does not tell its size."""

_READABLE = 20
"""Characters to which a text is folded at most before a column is dropped."""

_LABEL = 9
"""Characters of a label; the sentence of a longer one begins further right."""


_LONGEST_WORD, _SHOWN_OF_WORD = 160, 24
"""Characters of a word that is shown whole, and of what is shown of a longer one: srun takes scripts as words."""


def say(text: str) -> None:
    """Write a line to stderr; on a terminal it is folded at blanks, elsewhere it is one line."""
    _write_folded(text, sys.stderr)


def print_text(text: str) -> None:
    """Write a line to stdout, folded likewise."""
    _write_folded(text, sys.stdout)


def note(text: str) -> None:
    """Write a note below a table or result on stdout."""
    print_text(f"note: {text}")


def print_headline(text: str, *, is_command: bool = True) -> None:
    """Write a line to stdout, bold on a terminal; a command is never folded: it must be copied whole."""
    from rich.text import Text

    terminal = console()
    terminal.print(Text(visible(text), style="bold"), soft_wrap=is_command or not terminal.is_terminal)


def print_facts(facts: Iterable[tuple[str, str]], *, commands: Collection[str] = ()) -> None:
    """Write (label, sentence) to stdout, one line each.

    Args:
        facts: most important first; one without a sentence is left out.
        commands: labels of sentences to copy: bold, and never folded.
    """
    for label, sentence in facts:
        if not sentence:
            continue
        head = f"{label + ':':<{_LABEL}} "
        if label in commands:
            print_headline(head + sentence)
        else:
            _write_folded(head + sentence, sys.stdout, indent=len(head))


def print_json(document: Any) -> None:
    """Write one JSON document to stdout; records in it become their `to_document`."""
    is_utf = "utf" in (sys.stdout.encoding or "utf").lower()
    text = json.dumps(document, indent=2, ensure_ascii=not is_utf, default=lambda record: record.to_document())
    sys.stdout.write(text + "\n")


def print_document(document: Mapping[str, Any]) -> None:
    """Write a document to stdout as `key: value`, without its schema and what is not set; no word of it is folded."""
    for key, value in document.items():
        if key == "schema" or value in (None, ""):
            continue
        items = [f"{name}={shlex.quote(text)}" for name, text in value.items()] if isinstance(value, Mapping) else value
        if not isinstance(items, list):
            lines = [f"{key}: {items}"]
        elif key.endswith("argv"):
            lines = [f"{key}: {shlex.join(items)}"]
        elif any(" " in str(item) for item in items):
            lines = [f"{key}:", *(f"  {item}" for item in items)]
        else:
            lines = [f"{key}: {' '.join(map(str, items)) or 'none'}"]
        sys.stdout.write("\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        title: with the unit of its numbers; it may have several lines.
        cell: value in a row; None = rows are sequences, this is the value at the column's place.
        drop: columns with a higher one are dropped first where a terminal is narrow; 0 = never.
        right: align right, as columns of int and float are anyway.
    """

    title: str
    cell: Callable[[Any], Any] | None = None
    drop: int = 0
    right: bool = False


@dataclass(slots=True)
class _TextColumn:
    """Column as text, with the widths that it can have: whole, folded readably, folded at every blank."""

    title: str
    cells: list[str]
    drop: int
    right: bool

    def widths(self) -> tuple[int, int, int]:
        from rich.cells import cell_len

        texts = [*self.title.split("\n"), *self.cells]
        width = max(map(cell_len, texts))
        words = (word for text in texts for word in text.split())
        shortest = max((cell_len(word) for word in words), default=0)
        if self.right:  # the title of a number folds, the number itself does not
            shortest = max(shortest, *map(cell_len, self.cells), 0)
            return width, shortest, shortest
        return width, max(shortest, min(width, _READABLE)), shortest


def print_table(rows: Iterable[Any], columns: Sequence[Column], *, caption: str = "", to_stderr: bool = False) -> None:
    """Write a table to stdout; styles appear on a terminal alone, and there without NO_COLOR.

    Args:
        rows: one record or sequence per row; texts are never read as markup.
        columns: see `Column`.
        caption: lines below the table.
        to_stderr: write it to stderr instead.
    """
    from rich.table import Table
    from rich.text import Text

    records = list(rows)
    texts = [_read_column(column, place, records) for place, column in enumerate(columns)]
    terminal = console(to_stderr=to_stderr)
    width = terminal.width if terminal.is_terminal else _PIPED_WIDTH
    if terminal.is_terminal:
        texts = _drop_columns(texts, width)
    widths, gap = _fit(texts, width)
    needed = sum(widths) + gap * (len(widths) - 1)
    if terminal.is_terminal and needed > width:
        _print_stacked(texts, sys.stderr if to_stderr else sys.stdout)
    else:
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
        for text, column_width in zip(texts, widths, strict=True):
            title = Text(visible(text.title))
            table.add_column(title, justify="right" if text.right else "left", width=column_width, vertical="top")
        for cells in zip(*(text.cells for text in texts), strict=True):
            table.add_row(*map(Text, cells))
        console(to_stderr=to_stderr, width=max(width, needed)).print(table)
    for line in caption.splitlines():
        _write_folded(line, sys.stderr if to_stderr else sys.stdout)


def print_list(name: str, records: Sequence[Any], columns: Sequence[Column], *, as_json: bool) -> None:
    """Write records as a table, or as a document that holds them under a name."""
    if as_json:
        print_json({"schema": 1, name: records})
    else:
        print_table(records, columns)


def _read_column(column: Column, place: int, records: Sequence[Any]) -> _TextColumn:
    values = [column.cell(record) if column.cell else record[place] for record in records]
    numbers = [value for value in values if isinstance(value, int | float)]
    are_numbers = bool(numbers) and all(value is None or isinstance(value, int | float) for value in values)
    cells = [visible(_format_cell(value)) for value in values]
    return _TextColumn(title=column.title, cells=cells, drop=column.drop, right=column.right or are_numbers)


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if type(value) is int else format_number(value) if isinstance(value, float) else str(value)


def _drop_columns(columns: list[_TextColumn], width: int) -> list[_TextColumn]:
    """Return the columns of a table that is readable in a width, or those that are never dropped."""
    columns = list(columns)
    while sum(column.widths()[1] for column in columns) + 2 * (len(columns) - 1) > width:
        dropped = max(reversed(columns), key=lambda column: column.drop)
        if not dropped.drop:
            break
        columns.remove(dropped)
    return columns


def _fit(columns: list[_TextColumn], width: int) -> tuple[list[int], int]:
    """Return the characters of each column and between two; texts fold at blanks, the widest first."""
    whole, *folded = zip(*(column.widths() for column in columns), strict=True)
    widths = list(whole)
    gap = 2 if sum(folded[-1]) + 2 * (len(columns) - 1) <= width else 1
    room = width - gap * (len(columns) - 1)
    for least in folded:
        while sum(widths) > room and (wide := [at for at in range(len(widths)) if widths[at] > least[at]]):
            widths[max(wide, key=lambda at: widths[at])] -= 1
    return widths, gap


def _print_stacked(columns: Sequence[_TextColumn], stream: TextIO) -> None:
    """Write the cells of each row below each other, for a terminal that the table is too wide for."""
    for cells in zip(*(column.cells for column in columns), strict=True):
        for column, cell in zip(columns, cells, strict=True):
            title = " ".join(column.title.split())
            if cell:
                _write_folded(f"{title}: {cell}" if title else cell, stream)
        stream.write("\n")


def build_launch_document(setting: str, plan: LaunchPlan) -> dict[str, Any]:
    """Return a launch as a JSON object."""
    return {
        "setting": setting,
        "argv": list(plan.argv),
        "set_env": dict(plan.set_env),
        "unset_env": list(plan.unset_env),
        "files": dict(plan.files),
        "timeout_s": plan.timeout_s,
    }


def print_launches(rows: Iterable[Mapping[str, Any]], *, texts: bool) -> None:
    """Write launches; of a file its size, unless its text is wanted, and what equals the launch before only once."""
    from ncclt.core.message import format_bytes
    from ncclt.core.plural import count_noun

    before: Mapping[str, Any] = {}
    for row in rows:
        print(f"launch of {row['setting']}, at most {row['timeout_s']:.0f} s:")
        if row["unset_env"] and row["unset_env"] != before.get("unset_env"):
            print(f"  unset {' '.join(row['unset_env'])}")
        for name, value in row["set_env"].items() if row["set_env"] != before.get("set_env") else ():
            print(f"  {name}={shlex.quote(value)}")
        words = [
            word if texts or len(word) <= _LONGEST_WORD else f"{word[:_SHOWN_OF_WORD]}… ({len(word)} characters)"
            for word in row["argv"]
        ]
        print("  the same command" if row["argv"] == before.get("argv") else f"  {shlex.join(words)}")
        for name, text in row["files"].items():
            if text == before.get("files", {}).get(name):
                continue
            lines = text.splitlines()
            print(f"  file {name}: {count_noun(len(lines), 'line')}, {format_bytes(len(text.encode()))}")
            if texts:
                print("".join(f"    {line}\n" for line in lines), end="")
        before = row


class ProgressBar:
    """Progress on stderr: a bar on a terminal, elsewhere one line per phase, nothing if hidden."""

    def __init__(self, *, hidden: bool) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.is_hidden = hidden
        self._is_live = not hidden and sys.stderr.isatty()
        self._progress = Progress(
            SpinnerColumn("line"),  # in any encoding
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=console(to_stderr=True),
            disable=not self._is_live,
        )
        self._task = self._progress.add_task("", total=None, text="")
        self._phase = ""

    def __enter__(self) -> Self:
        """Start the bar."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Remove the bar."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        if not self.is_hidden:
            self._progress.console.print(visible(text), markup=False)

    def show(self, phase: str, line: str, text: str, *, done: int, total: int) -> None:
        """Move the bar.

        Args:
            phase: its name.
            line: what is shown of the phase where there is no bar.
            text: what stands behind the bar.
            done, total: of the phase.
        """
        if self._is_live:
            self._progress.update(self._task, description=phase, completed=done, total=total, text=text)
        elif phase != self._phase and not self.is_hidden:
            say(f"ncclt: {line}")
        self._phase = phase


def draw_bar(share: float, width: int) -> str:
    """Return a bar in eighths of a character; empty for no share, `width` characters for a whole.

    >>> draw_bar(0.25, 12), draw_bar(-0.1, 12), draw_bar(7, 3)
    ('███', '', '███')
    """
    eighths = round(8 * width * max(0.0, min(share, 1.0)))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def format_number(value: float) -> str:
    """Return a number with three significant digits, from four digits on as an integer.

    >>> [format_number(value) for value in (1190.4, 999.7, 15.632, 0.04631, 0.000063593, -1e-12, -1234567.0)]
    ['1,190', '1,000', '15.6', '0.0463', '0.0000636', '0', '-1,234,567']
    """
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{Decimal(f'{round(value, 9) + 0.0:.3g}'):f}"


def format_factor(ratio: float) -> str:
    """Return a ratio; near 1, where the difference counts, with three decimals.

    >>> [format_factor(ratio) for ratio in (1.0134, 0.9876, 1.1094, 1.3, 12.34, 2500.0)]
    ['1.013x', '0.988x', '1.11x', '1.30x', '12.3x', '2,500x']
    """
    if 0.9 < ratio < 1.1:
        return f"{ratio:.3f}x"
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{format_number(ratio)}x"


def format_percent(share: float) -> str:
    """Return a share as a percentage.

    >>> format_percent(0.0463), format_percent(1.0)
    ('4.63 %', '100 %')
    """
    return f"{format_number(100 * share)} %"


def format_bandwidth(gbps: float) -> str:
    """Return a bandwidth in GB/s, 1e9 bytes/s.

    >>> format_bandwidth(73.123)
    '73.1 GB/s'
    """
    return f"{format_number(gbps)} GB/s"


def console(*, to_stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that writes styles; texts from outside are made `visible` before it prints them."""
    from rich.console import Console

    return Console(file=cast("IO[str]", Styled(sys.stderr if to_stderr else sys.stdout)), width=width)


def _write_folded(text: str, stream: TextIO, indent: int | None = None) -> None:
    """Write lines to a stream, folded at blanks if it is a terminal.

    Args:
        indent: of what follows a fold; None = two more than the line itself.
    """
    text = visible(text)
    if stream.isatty():
        width = _read_width(stream)
        text = "\n".join(_fold(line, width, indent) for line in text.split("\n"))
    stream.write(text + "\n")


def _fold(line: str, width: int, indent: int | None) -> str:
    below = " " * (len(line) - len(line.lstrip()) + 2 if indent is None or indent > width // 2 else indent)
    return textwrap.fill(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


def _read_width(stream: TextIO) -> int:
    """Return the columns of the terminal that a stream is."""
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    except OSError:  # no file, or a terminal without a size
        return _USUAL_WIDTH

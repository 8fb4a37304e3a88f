"""Rows of delimited text, read one at a time: shared by every source that is a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ncclt.errors import TraceError
from ncclt.profile.numbers import parse_float, parse_int
from ncclt.profile.source import Document, read_line

DELIMITERS = ",;\t"
"""Possible separators of cells; the most frequent one in the header counts."""

_LINE_BYTES = 1 << 16
"""Longest line accepted. The longest in a real report are 2 KiB; a line without end would fill the memory."""

_ROWS = 2_000_000
"""Most rows accepted: a table of distinct messages has hundreds, a list of every call of a long run some 100 000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of a table.

    Attributes:
        label: the file's name, for messages.
        number: its (last) line, counted from 1 as an editor does.
        cells: the cells, outer blanks removed.
    """

    label: str
    number: int
    cells: tuple[str, ...]

    def refused(self, why: str, hint: str) -> TraceError:
        """Return the error for a row that cannot be read, with its line."""
        return TraceError(f"{self.label}, line {self.number}: {why}", hint=hint)

    def whole(self, column: str, text: str, *, least: int = 0) -> int:
        """Return the whole number in a cell.

        Raises:
            TraceError: it is none, or below `least`.
        """
        number = parse_int(text, least=least, most=10**18)
        if number is None:
            reason = f"{column} is {text[:40]!r}, not a whole number from {least} on"
            raise self.refused(reason, f"give digits, at least {least}")
        return number

    def positive(self, column: str, text: str) -> float:
        """Return the number above 0 in a cell.

        Raises:
            TraceError: it is none.
        """
        number = parse_float(text, least=0, most=1e18)
        if not number:
            raise self.refused(f"{column} is {text[:40]!r}, not a number above 0", "give digits, and a decimal point")
        return number


def rows(document: Document) -> Iterator[TableRow]:
    """Yield the rows of a table, its header first; empty lines and comment lines are skipped.

    Raises:
        TraceError: no UTF-8 text, a line or the table too long, or a quote that is never closed.
    """
    label, number = document.label, 0

    def refuse(why: str, hint: str) -> TraceError:
        return TraceError(f"{label}, line {number}: {why}", hint=hint)

    def read_lines() -> Iterator[str]:
        nonlocal number
        while line := read_line(document, _LINE_BYTES + 1):
            number += 1
            if len(line) > _LINE_BYTES:
                raise refuse("a line without end", "this is not a table of rows")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise refuse("this is not UTF-8 text", "save the table as UTF-8") from error
            if "\0" in text:
                raise refuse("a zero byte in the text", "this is not a table; save it as UTF-8 text")
            if text.strip() and not text.lstrip().startswith("#"):
                yield text

    lines = read_lines()
    first = next(lines, None)
    if first is None:
        return
    delimiter = max(DELIMITERS, key=first.count)
    try:
        for count, cells in enumerate(csv.reader(chain([first], lines), delimiter=delimiter, strict=True)):
            if count > _ROWS:
                hint = "give one row per kind of message, with its calls"
                raise TraceError(f"{label} has more than {_ROWS} rows", hint=hint)
            if any(cell.strip() for cell in cells):
                yield TableRow(label=label, number=number, cells=tuple(cell.strip() for cell in cells))
    except csv.Error as error:
        raise refuse(str(error), "is a quote never closed? quote cells as a spreadsheet does") from error


def first_row(head: bytes) -> tuple[str, ...]:
    """Return the cells of the first row in the beginning of a file, empty where it is no table."""
    try:
        row = next(rows(Document(label="head", stream=io.BufferedReader(io.BytesIO(head)))), None)
    except TraceError:
        return ()
    return row.cells if row else ()


def cells_by_name(header: Sequence[str], row: TableRow) -> dict[str, str]:
    """Return a row's cells by the names of the columns.

    Raises:
        TraceError: it has more or fewer cells than the header.
    """
    if len(row.cells) != len(header):
        raise row.refused(
            f"{len(row.cells)} cells under a header of {len(header)}",
            "the file may be cut off there, or a cell with a delimiter in it is not quoted",
        )
    return dict(zip(header, row.cells, strict=True))

"""Common options and output of all benches: rows printed as they come, or one JSON document."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, is_dataclass
from typing import Any

FIRST_WIDTH = 38
"""Width of the first column, the name of the case."""


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--json`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


class Rows(list[dict[str, Any]]):
    """Rows of one run."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._widths: list[int] = []

    def add(self, row: Any) -> None:
        """Add a row, a dictionary or a dataclass, and print it unless the output is JSON."""
        row = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row
        self.append(row)
        if self._as_json:
            return
        cells = [_cell(value) for value in row.values()]
        if len(self) == 1:
            self._widths = [max(len(title), len(cell), 7) for title, cell in zip(row, cells, strict=True)]
            self._widths[0] = max(self._widths[0], FIRST_WIDTH)
            self._print(list(row))
        self._print(cells)

    def _print(self, cells: list[str]) -> None:
        first, *others = cells
        columns = [f"{cell:>{width}}" for cell, width in zip(others, self._widths[1:], strict=True)]
        print(f"{first:<{self._widths[0]}}", *columns, flush=True)

    def end(self, *notes: str, **fields: Any) -> None:
        """Print the JSON document with further fields, or notes below the table."""
        print(json.dumps({**fields, "rows": self}) if self._as_json else "\n".join(notes))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)

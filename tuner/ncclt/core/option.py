"""Command-line metadata for the fields of a record; the record itself needs no command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import get_type_hints


class Group(StrEnum):
    """Headings of options in the help of a command, in this order; the options used most stand before them."""

    WHAT = "Search space"
    WHERE = "Target"
    LAUNCH = "Launch"
    BUDGET = "Budget"
    PROOF = "Measurement"


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line option of a field of a record.

    Attributes:
        help: text in `--help`.
        flag: flag; empty = `--` and the field's name with dashes.
        envvar: environment variable with the default value.
        metavar: name of the value in the help.
        least, most: min and max value.
        comma: comma-separated values; otherwise a field of several values is repeatable.
        of_launches: applies to real launches only.
        group: heading in the help; None = common option.
    """

    help: str
    flag: str = ""
    envvar: str | None = None
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    comma: bool = False
    of_launches: bool = False
    group: Group | None = None


def options_of(record: type) -> dict[str, Option]:
    """Return the fields of a dataclass that are options of a command line, in their order."""
    hints = get_type_hints(record, include_extras=True)
    marks = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in fields(record)}
    return {name: mark for name, options in marks.items() for mark in options if isinstance(mark, Option)}

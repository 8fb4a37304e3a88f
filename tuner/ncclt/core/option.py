"""How a command line offers the fields of a record; the record itself does not depend on one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """How a command line offers a field of a record.

    Attributes:
        help: its text in `--help`.
        flag: its spelling; empty = `--` and the field's name with dashes.
        envvar: the variable that sets it where the flag is left out.
        metavar: its value as shown in the help.
        least: smallest value.
        comma: one text with the values between commas; a field of several values is repeatable otherwise.
        of_launches: it applies to real launches only.
    """

    help: str
    flag: str = ""
    envvar: str | None = None
    metavar: str | None = None
    least: int | None = None
    comma: bool = False
    of_launches: bool = False


def options_of(record: type) -> dict[str, Option]:
    """Return the fields of a dataclass that are options of a command line, in their order."""
    hints = get_type_hints(record, include_extras=True)
    marks = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in fields(record)}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Option)}


def words_of(record: Any) -> list[str]:
    """Return a record as options of a command line that give the same record from any folder; defaults are left out."""
    words: list[str] = []
    defaults = {field.name: field.default for field in fields(record)}
    for name, option in options_of(type(record)).items():
        value, flag = getattr(record, name), option.flag or f"--{name.replace('_', '-')}"
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(flag.split("/")[0 if value else 1])
            continue
        several = [",".join(value) or "none"] if option.comma else value if isinstance(value, tuple) else [value]
        for text in (str(one.absolute() if isinstance(one, Path) else one) for one in several):
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words

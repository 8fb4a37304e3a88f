"""Values in recordings: of JSON, and texts such as the cells of a table.

A recorder may write a count as `8`, `"8"` or `8.0`; all of them are read. Whatever else stands in the place of a number
(a word, a truth value, NaN, a number out of range) is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MOST_RANKS = 2**24
"""More ranks than any job has; a larger number is damage."""

_WHOLE = re.compile(r"(-?[0-9]{1,20})(?:\.0{1,6})?")
_DECIMAL = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,3})?")


def parse_int(value: object, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
    """Return a whole number from `least` to `most`.

    >>> parse_int("8.0"), parse_int(8.5), parse_int(True), parse_int("1_000")
    (8, None, None, None)
    """
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value.strip())
        value = int(match[1]) if match else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if least <= value <= most else None


def parse_float(value: object, *, least: float = -math.inf, most: float = math.inf) -> float | None:
    """Return a finite number from `least` to `most`.

    >>> parse_float("1e3"), parse_float("nan"), parse_float(False), parse_float("1_000")
    (1000.0, None, None, None)
    """
    if isinstance(value, str):
        value = float(value) if _DECIMAL.fullmatch(value.strip()) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON may hold a whole number of any length
        return None
    return number if math.isfinite(number) and least <= number <= most else None


def as_text(value: object) -> str:
    """Return a text, empty for anything else."""
    return value if isinstance(value, str) else ""


def as_list(value: object) -> list[Any]:
    """Return a list, empty for anything else."""
    return value if isinstance(value, list) else []


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, empty for anything else."""
    return value if isinstance(value, Mapping) else {}

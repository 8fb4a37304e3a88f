"""Finds the one landscape in a table: one system, shape, version, buffer placement and condition."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ncclt.errors import LandscapeError
from ncclt.measure.simulated.landscape_rows import LandscapeReading, LandscapeRow

_MOST_CHOICES = 12
"""Choices listed by an error message."""

_COLUMNS = ("system", "gpus", "nodes", "gpus_per_node", "interconnect", "nccl_version")
"""What must be the same in one landscape, beside condition and in_place."""


def pick_one(rows: Sequence[LandscapeRow], *, name: str) -> LandscapeReading:
    """Return the rows of the only landscape, and notes on how they were chosen.

    Rows without a condition are preferred if some of them have forced settings, and out-of-place rows to in-place ones.

    Raises:
        LandscapeError: more than one remains; the hint gives the options to choose by.
    """
    groups = _split(rows, lambda row: tuple(str(getattr(row, column)) for column in _COLUMNS))
    if len(groups) > 1:
        raise _ambiguous(
            name, "landscapes", [(_distinguishing(key, list(groups)), rows) for key, rows in groups.items()]
        )
    notes: list[str] = []
    chosen, note = _one_condition(list(rows), name)
    notes += note
    chosen, note = _one_placement(chosen)
    return LandscapeReading(rows=tuple(chosen), notes=(*notes, *note))


def _distinguishing(key: tuple[str, ...], keys: Sequence[tuple[str, ...]]) -> str:
    """Return the fewest options, in the order of the columns, that select only this one of the keys."""
    left, options = list(keys), []
    for index, column in enumerate(_COLUMNS):
        narrowed = [other for other in left if other[index] == key[index]]
        if len(narrowed) < len(left):
            options.append((column, key[index]))
            left = narrowed
    return _options(options)


def _one_condition(rows: list[LandscapeRow], name: str) -> tuple[list[LandscapeRow], list[str]]:
    groups = _split(rows, lambda row: (row.condition,))
    if len(groups) == 1:
        (condition,) = next(iter(groups))
        return rows, [f"condition: {condition}"] if condition else []
    plain = groups.get(("",), [])
    parts = {key[0]: set(re.split(r";\s*|,\s+", key[0])) for key in groups}
    common = min(parts, key=lambda condition: len(parts[condition]))
    if common and _replayable(groups[common,]) and all(parts[common] <= other for other in parts.values()):
        # All rows share it, as "CUDA graph"; the others add something to it.
        others = sorted(condition for condition in parts if condition != common)
        return groups[common,], [f"condition: {common}; there are also rows with {_some(others)}"]
    if any(not row.setting.is_default for row in plain):
        others = sorted(key[0] for key in groups if key[0])
        return plain, [f"only rows without a condition are used; there are also {_some(others)}"]
    raise _ambiguous(name, "conditions", [(_options([("other_env", key[0])]), found) for key, found in groups.items()])


def _one_placement(rows: list[LandscapeRow]) -> tuple[list[LandscapeRow], list[str]]:
    """Return the out-of-place rows if they make a landscape, else the in-place ones, else the unmarked."""
    groups = _split(rows, lambda row: (row.in_place,))
    if len(groups) == 1:
        return rows, ["in-place times"] if rows[0].in_place == "1" else []
    words = {"0": "out-of-place", "1": "in-place", "": "unmarked"}
    order = sorted(
        groups, key=lambda key: (not _replayable(groups[key]), list(words).index(key[0]) if key[0] in words else 9)
    )
    mine = order[0]
    others = ", ".join(words.get(key[0], key[0]) for key in order[1:])
    return groups[mine], [f"{words.get(mine[0], mine[0])} times are used; {others} ones are also there"]


def _replayable(rows: Sequence[LandscapeRow]) -> bool:
    return any(row.setting.is_default for row in rows) and any(not row.setting.is_default for row in rows)


def _split(
    rows: Sequence[LandscapeRow], key: Callable[[LandscapeRow], tuple[str, ...]]
) -> dict[tuple[str, ...], list[LandscapeRow]]:
    groups: dict[tuple[str, ...], list[LandscapeRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _options(pairs: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"--where {_quoted(f'{column}={value}')}" for column, value in pairs)


def _quoted(text: str) -> str:
    """Quote for a POSIX shell."""
    plain = all(c.isalnum() or c in "_-=./:" for c in text)
    return text if plain else "'" + text.replace("'", "'\"'\"'") + "'"


def _some(texts: Sequence[str]) -> str:
    return "; ".join(repr(text) for text in texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")


def _ambiguous(name: str, what: str, choices: Sequence[tuple[str, Sequence[LandscapeRow]]]) -> LandscapeError:
    # Replayable ones first, then those with most rows.
    ordered = sorted(choices, key=lambda choice: (not _replayable(choice[1]), -len(choice[1])))
    lines = []
    for options, rows in ordered[:_MOST_CHOICES]:
        forced = {row.setting for row in rows if not row.setting.is_default}
        default = "with" if any(row.setting.is_default for row in rows) else "without"
        lines.append(f"  {options}   ({len(rows)} rows, {len(forced)} forced settings, {default} default)")
    if len(ordered) > _MOST_CHOICES:
        lines.append(f"  ... and {len(ordered) - _MOST_CHOICES} more")
    return LandscapeError(f"{name} holds {len(choices)} {what}; choose one", hint="add one of\n" + "\n".join(lines))

"""Reads the rows of a table of recorded measurements (tidy CSV, one measurement per row)."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, bus_factor
from ncclt.core.setting import MAX_CHANNELS, Setting
from ncclt.errors import LandscapeError, reason
from ncclt.nccl.parameters import CATALOGUE

_ANNOTATIONS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"spread\s+[\d.]+\s*%?|(?:std|stdev|sd|cv|iqr|n|iters|warmups?)\s*[=:]?\s*[\d.]+\s*(?:%|us|µs|ms)?",
        r"(?:repeat|run|rep|trial|iteration)?[\s_]*(?:iteration|run|rep|trial|repeat)[_\s#-]*\d+",
        r"r\d+\s+(?:avg|mean|median|min|max)",
        r"(?:avg|average|mean|median|p\d\d|min)(?:\s+(?:of|over)\s+[\w/]+(?:\s+(?:runs?|iters?|iterations?|busbw|samples?))?)?",
        r"p\d\d\s+median\s+multi-run\b.*",
        r"defaults?(?:\s+chose\b.*|\s+unforced|\s*\(.*\)(?:\s*:.*)?)?",
        r"unforced|[nr]ccl\s+ran\b.*",
        r"automatic(?:\s+choice)?|default\s+choice|nccl(?:'s)?\s+(?:own\s+)?choice|rccl\s+default|forced",
        r"gpu\s+compute\s+contention(?:\s+none)?",
    )
)
"""Pieces that describe how a figure was taken or what the library chose, not a condition. From the public tables;
anything else is treated as a condition, which is safe: it splits a landscape and never mixes two."""

SIMULATED = "SIMULATED"
"""In other_env: the time is of a simulated cluster, as an export of such a study says."""

_WRONG = re.compile(r"\bWRONG\s*=\s*(\d+)", re.IGNORECASE)
_SPREAD = re.compile(r"\bspread\s+([\d.]+)\s*%", re.IGNORECASE)
_RAN = re.compile(r"\b[NR]CCL\s+ran\s+(\w+)/(\w+)", re.IGNORECASE)
_PARAMETER = re.compile(r"NCCL_([A-Z0-9_]+)=(\d+)")
_OWN_CHOICE_NOTE = re.compile(
    r"(?:defaults?|automatic)(?:\s+choice)?(?:\s+unforced|\s*\(.*\)(?:\s*:.*)?)?|unforced|defaults?\s+chose\b.*",
    re.IGNORECASE,
)
_OWN_CHOICE = re.compile(r"(?:default|unforced|auto(?:matic)?|none)\b.*", re.IGNORECASE)

SEARCHED = frozenset(parameter.name for parameter in CATALOGUE if parameter.ladder)
"""Parameters that a study can set: `NCCL_NAME=value` in `other_env` is then part of the setting, not a condition."""

REQUIRED = ("system", "gpus", "nodes", "collective", "size_bytes", "algo", "proto", "nchannels", "time_us")
"""Columns that every table must have."""

OPTIONAL = (
    "gpus_per_node", "interconnect", "nccl_version", "dtype", "buffsize", "nthreads", "other_env",
    "algbw_gbps", "busbw_gbps", "in_place", "source", "licence",
)  # fmt: skip
"""Columns that may be absent and are then read as blank."""


_FORCED_COLUMNS = ("algo", "proto", "nchannels")

PARAMETER_COLUMNS = {"buffsize": "BUFFSIZE", "nthreads": "NTHREADS"}
"""Columns of process-wide parameters -> their names; the others are in `other_env`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeRow:
    """One measurement.

    Attributes:
        number: line of the file, for error messages; the header is line 1.
        system, interconnect, nccl_version, in_place, source: as written.
        gpus, nodes, gpus_per_node: shape of the job.
        collective, size_bytes: what was sent.
        setting: what was forced; empty = NCCL's own choice.
        condition: the part of `other_env` that changes the measurement; empty = none.
        time_us: time of one call, µs.
        spread: range of the runs behind the time, as a share of it; 0 = not given.
        listed: `algo` names several algorithms that the library chose from; empty = it does not.
    """

    number: int
    system: str
    interconnect: str
    nccl_version: str
    in_place: str
    gpus: int
    nodes: int
    gpus_per_node: int
    collective: Collective
    size_bytes: int
    setting: Setting
    condition: str
    time_us: float
    spread: float
    source: str
    listed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeReading:
    """Rows of a file, and notes on how they were chosen."""

    rows: tuple[LandscapeRow, ...]
    notes: tuple[str, ...]


_Name = TypeVar("_Name")
_COLLECTIVES = {c.value.replace("_", ""): c for c in Collective}
_ALGORITHMS = {a.value.replace("_", ""): a for a in Algorithm}
_PROTOCOLS = {p.value: p for p in Protocol}


def read_rows(path: Path, where: Mapping[str, str], *, is_growing: bool = False) -> LandscapeReading:
    """Read the rows that match `where`.

    Args:
        path: the CSV file.
        where: column -> value or glob pattern; `other_env` also matches only the condition.
        is_growing: a last line without its end was cut short, and is not read.

    Raises:
        LandscapeError: the file cannot be read, lacks a column, has an invalid row, or no matching row.
    """
    table = list(_lines(path, is_growing=is_growing))
    if not table:
        raise LandscapeError(f"{path.name} has no rows", hint="the first line names the columns, then one row each")
    _check_where(where, path)
    kept = [(number, line) for number, line in table if _matches(line, where)]
    if not kept:
        wanted = " ".join(f"{column}={value}" for column, value in where.items())
        raise LandscapeError(f"no row of {path.name} has {wanted}", hint=_values_hint(table, where))
    rows: list[LandscapeRow] = []
    dropped: Counter[str] = Counter()
    for number, line in kept:
        gap = _gap(line)
        if gap:
            dropped[gap] += 1
        else:
            rows.append(_row(number, line, path))
    rows, listed = _without_lists(rows)
    notes = (*(f"{count} rows with {why} were left out" for why, count in dropped.items()), *listed)
    if not rows:
        raise LandscapeError(f"no row of {path.name} can be used: {'; '.join(notes)}", hint="choose other rows")
    return LandscapeReading(rows=tuple(rows), notes=notes)


def _lines(path: Path, *, is_growing: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> stripped text)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = (line for line in file if line.endswith("\n") or not is_growing)
            reader = csv.DictReader(lines, strict=True)
            if not reader.fieldnames:
                raise LandscapeError(f"{path.name} is empty", hint=f"its first line names {', '.join(REQUIRED)}")
            twice = [column for column, count in Counter(reader.fieldnames).items() if count > 1]
            if twice:
                raise LandscapeError(
                    f"{path.name}, line 1: the column {twice[0]!r} is there twice", hint="keep one of them"
                )
            missing = [column for column in REQUIRED if column not in reader.fieldnames]
            if missing:
                raise LandscapeError(
                    f"{path.name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
                    hint=f"needed are {', '.join(REQUIRED)}",
                )
            for raw in reader:
                if None in raw:
                    raise LandscapeError(
                        f"{path.name}, line {reader.line_num}: more fields than columns",
                        hint="quote fields that contain a comma",
                    )
                line = {column: (raw.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
                # With such a note, the columns say what the library chose, not what was forced.
                noted = any(_OWN_CHOICE_NOTE.fullmatch(piece) for piece in re.split(r"\s*[;|,]\s*", line["other_env"]))
                line |= {c: "" for c in _FORCED_COLUMNS if noted or _OWN_CHOICE.fullmatch(line[c])}
                if any(line.values()):
                    yield reader.line_num, line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LandscapeError(
            f"{path} cannot be read as CSV: {reason(error)}", hint="give a readable table in UTF-8 with --landscape"
        ) from error


def _check_where(where: Mapping[str, str], path: Path) -> None:
    unknown = [column for column in where if column not in REQUIRED + OPTIONAL]
    if unknown:
        raise LandscapeError(
            f"{path.name} has no column {unknown[0]!r} to choose by", hint=f"one of {', '.join(REQUIRED + OPTIONAL)}"
        )


def _matches(line: Mapping[str, str], where: Mapping[str, str]) -> bool:
    return all(
        any(text == wanted or fnmatchcase(text, wanted) for text in _texts(line, column))
        for column, wanted in where.items()
    )


def _texts(line: Mapping[str, str], column: str) -> tuple[str, ...]:
    if column == "other_env":
        return line[column], condition_of(line[column])
    return (line[column],)


def _values_hint(table: list[tuple[int, dict[str, str]]], where: Mapping[str, str]) -> str:
    column = next((c for c, v in where.items() if not any(_matches(line, {c: v}) for _, line in table)), None)
    if column is None:
        return "each of these is there, but not together"
    values = sorted({line[column] for _, line in table})
    return f"{column} is one of: " + "; ".join(repr(v) for v in values[:8]) + ("; ..." if len(values) > 8 else "")


def _gap(line: Mapping[str, str]) -> str:
    """Return why a row cannot be used, empty where it can: blanks are what the source does not give."""
    if is_wrong(line["other_env"]):
        return "failed validation"
    if _is_substituted(line):
        return "another choice of the library than the one asked for"
    for column, words in (("size_bytes", "no size"), ("gpus", "no number of GPUs"), ("nodes", "no number of nodes")):
        if not line[column]:
            return words
    # A bandwidth of 0.00 was rounded down to nothing.
    bandwidths = [text for text in (line["algbw_gbps"], line["busbw_gbps"]) if text and text.strip("0.")]
    return "" if line["time_us"] or bandwidths else "neither a time nor a bandwidth"


def _row(number: int, line: Mapping[str, str], path: Path) -> LandscapeRow:
    where = f"{path.name}, line {number}"
    gpus = _whole(line, "gpus", where)
    nodes = _whole(line, "nodes", where)
    collective = _known(line, "collective", _COLLECTIVES, where)
    listed = line["algo"] if "," in line["algo"] else ""
    spread = _SPREAD.search(line["other_env"])
    size_bytes = _whole(line, "size_bytes", where)
    return LandscapeRow(
        number=number,
        system=line["system"],
        interconnect=line["interconnect"],
        nccl_version=line["nccl_version"],
        in_place=line["in_place"],
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=_whole(line, "gpus_per_node", where) if line["gpus_per_node"] else max(1, gpus // nodes),
        collective=collective,
        size_bytes=size_bytes,
        setting=_setting({**line, "algo": "" if listed else line["algo"]}, where),
        condition=condition_of(line["other_env"]),
        time_us=_time_us(line, collective, size_bytes, gpus, where),
        spread=float(spread[1]) / 100 if spread else 0.0,
        source=line["source"],
        listed=listed,
    )


def _without_lists(rows: list[LandscapeRow]) -> tuple[list[LandscapeRow], tuple[str, ...]]:
    """Return the rows, those with a list of algorithms as the default where there is no other, and a note on them.

    No setting expresses such a list. Where it names all that the machine has, as `Ring,Tree` does without NVLS, its
    times are those of the library's own choice.
    """
    listed = [row for row in rows if row.listed]
    if not listed:
        return rows, ()
    names = " and ".join(sorted({row.listed for row in listed}))
    if any(row.setting.is_default and not row.listed for row in rows):
        return [row for row in rows if not row.listed], (
            f"{len(listed)} rows with several algorithms ({names}) were left out: no setting forces a list",
        )
    return rows, (f"no row is without {names}: it is taken as the library's own choice",)


def _setting(line: Mapping[str, str], where: str) -> Setting:
    channels = _whole(line, "nchannels", where) if line["nchannels"] else None
    if channels is not None and channels > MAX_CHANNELS:
        raise LandscapeError(f"{where}: nchannels is {channels}", hint=f"NCCL has at most {MAX_CHANNELS}")
    parameters = {
        found[1]: int(found[2])
        for piece in re.split(r"[;|,]\s*", line["other_env"])
        if (found := _PARAMETER.fullmatch(piece.strip())) and found[1] in SEARCHED
    }
    for column, name in PARAMETER_COLUMNS.items():
        if line[column]:
            parameters[name] = _whole(line, column, where)
    return Setting(
        algorithm=_known(line, "algo", _ALGORITHMS, where) if line["algo"] else None,
        protocol=_known(line, "proto", _PROTOCOLS, where) if line["proto"] else None,
        channels=channels,
        parameters=tuple(parameters.items()),
    )


def _known(line: Mapping[str, str], column: str, names: Mapping[str, _Name], where: str) -> _Name:
    name = re.sub(r"[_\-\s]", "", line[column].lower())
    if name not in names:
        raise LandscapeError(f"{where}: unknown {column} {line[column]!r}", hint=f"one of {', '.join(names)}")
    return names[name]


def _number(line: Mapping[str, str], column: str, where: str) -> float:
    try:
        value = float(line[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise LandscapeError(
            f"{where}: {column} is {line[column]!r}, which is not a number above 0", hint="correct or remove the row"
        )
    return value


def _whole(line: Mapping[str, str], column: str, where: str) -> int:
    value = _number(line, column, where)
    if value != int(value):
        raise LandscapeError(
            f"{where}: {column} is {line[column]!r}, which is not a whole number", hint="correct the row"
        )
    return int(value)


def _time_us(line: Mapping[str, str], collective: Collective, size_bytes: int, gpus: int, where: str) -> float:
    """Return the time, or if it is blank that of the bandwidth: bytes / algbw, busbw = algbw x factor."""
    if line["time_us"]:
        return _number(line, "time_us", where)
    if line["busbw_gbps"].strip("0."):
        # A bandwidth column with few digits is coarse; busbw has more of them than algbw.
        algbw = _number(line, "busbw_gbps", where) / bus_factor(collective, gpus)
    else:
        algbw = _number(line, "algbw_gbps", where)
    return size_bytes / algbw / 1e3


def condition_of(other_env: str) -> str:
    """Return the part of the text that is a condition; empty where all of it describes the figure.

    >>> condition_of("default chose TREE/LL; spread 0.4%"), condition_of("GPU compute contention low")
    ('', 'GPU compute contention low')
    """
    kept = []
    for part in re.split(r"\s*[;|]\s*", other_env.strip()):
        pieces = [piece for piece in re.split(r"\s*,\s+", part) if not _is_annotation(piece)]
        if pieces:
            kept.append(", ".join(pieces))
    return "; ".join(kept)


def is_wrong(other_env: str) -> bool:
    """Return whether the row is marked as failing validation (`WRONG=n`, n above 0)."""
    found = _WRONG.search(other_env)
    return found is not None and int(found[1]) > 0


def _is_substituted(line: Mapping[str, str]) -> bool:
    """Return whether the library ran something else than was forced, as a note in `other_env` says."""
    ran = _RAN.search(line["other_env"])
    forced = [(line["algo"], ran[1]), (line["proto"], ran[2])] if ran else []
    asked = line["algo"] or line["proto"] or line["nchannels"]
    differs = any(wanted and wanted.lower() not in ("", used.lower()) for wanted, used in forced)
    return bool(asked) and ("SUBSTITUTED" in line["other_env"].upper() or differs)


def _is_annotation(piece: str) -> bool:
    text = piece.strip()
    parameter = _PARAMETER.fullmatch(text)
    return (
        not text
        or any(pattern.fullmatch(text) for pattern in _ANNOTATIONS)
        or bool(_WRONG.fullmatch(text))
        or (parameter is not None and parameter[1] in SEARCHED)
    )

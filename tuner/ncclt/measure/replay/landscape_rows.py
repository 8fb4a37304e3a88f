"""Reads and writes the table of a landscape: strict CSV, one measurement per row (docs/cluster-admin/landscapes.md)."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import MOST_BYTES, Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import Setting
from ncclt.errors import InputError, NccltError, SettingError, reason
from ncclt.nccl.parameters import parameter

SIMULATED = "SIMULATED"
"""In `source`: the time comes from NCCL's own cost model."""

_SAME = ("system", "gpus", "nodes", "gpus_per_node", "nccl_version", "in_place")
"""Columns with one value in the whole table."""

_HINT = "columns: docs/cluster-admin/landscapes.md; `ncclt landscape import` writes them from nccl-tests outputs"
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
MAX_TIME_US = 1e12
"""Eleven days, and its reciprocal is the smallest time: sums and ratios of times stay finite."""
_MAX_SPREAD_PERCENT = 1000.0
_PARAMETER = re.compile(r"([A-Z][A-Z0-9_]*)=(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeRow:
    """One measurement.

    Attributes:
        number: line of the file, for messages; the header is line 1, 0 = of no file.
        system: name of the machine.
        gpus, nodes, gpus_per_node: shape of the job.
        nccl_version: loaded by the job.
        collective, dtype, size_bytes: the message; dtype may be empty.
        setting: forced; empty = the NCCL default.
        repetition: of the same message and setting, from 1.
        time_us: time of one call, µs.
        spread: range of the runs behind the time, as a share of it; 0 = not recorded.
        in_place: None = not known.
        source: origin of the time.
    """

    number: int = 0
    system: str
    gpus: int
    nodes: int
    gpus_per_node: int
    nccl_version: str
    collective: Collective
    dtype: str
    size_bytes: int
    setting: Setting
    repetition: int = 1
    time_us: float
    spread: float = 0.0
    in_place: bool | None = None
    source: str

    @property
    def is_simulated(self) -> bool:
        """Return True if the time comes from NCCL's own cost model."""
        return SIMULATED in self.source


_FIELDS = frozenset(field.name for field in fields(LandscapeRow))


def build_row(cluster: Cluster, **measured: Any) -> LandscapeRow:
    """Return a row of a job on a whole cluster, of which `measured` has the other fields."""
    return LandscapeRow(
        system=f"{cluster.gpus_per_node}x {cluster.gpu} ({cluster.name})",
        gpus=cluster.world_size,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nccl_version=str(cluster.version),
        **measured,
    )


def read_rows(path: Path, *, is_growing: bool = False) -> tuple[LandscapeRow, ...]:
    """Read the table of one landscape.

    Args:
        is_growing: skip a last line without its end, and accept a table without rows.

    Raises:
        InputError: the file is not such a table; the message names file and line.
    """
    rows: list[LandscapeRow] = []
    points: dict[tuple[object, ...], int] = {}
    for number, line in _lines(path, is_growing=is_growing):
        try:
            row = _parse_row(number, line)
            first = rows[0] if rows else row
            for column in _SAME:
                _require(
                    getattr(row, column) == getattr(first, column),
                    f"{column} is {line[column]!r}, unlike in line {first.number}",
                    hint="a table holds one landscape: write the others to files of their own",
                )
            mixed = f"simulated and measured times are mixed, see source in line {first.number}"
            _require(row.is_simulated == first.is_simulated, mixed, hint="write them to files of their own")
            point = (row.collective, row.dtype, row.size_bytes, row.setting, row.repetition)
            earlier = points.setdefault(point, number)
            twice = f"repetition {row.repetition} of line {earlier} is there twice"
            _require(earlier == number, twice, hint="number the repetitions of a point 1, 2, 3")
        except InputError as error:
            raise InputError(f"{path.name}, line {number}: {error.message}", hint=error.hint) from error
        rows.append(row)
    if not rows and not is_growing:
        raise InputError(f"{path.name} has no rows", hint=_HINT)
    return tuple(rows)


def write_rows(rows: Iterable[LandscapeRow], file: TextIO, *, header: bool = True) -> None:
    """Write rows as `read_rows` reads them."""
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        setting = row.setting
        writer.writerow(
            {
                **{column: getattr(row, column) for column in COLUMNS if column in _FIELDS},
                "collective": row.collective.value,
                "algo": setting.algorithm or "",
                "proto": setting.protocol or "",
                "nchannels": setting.channels or "",
                "parameters": " ".join(f"{name}={value}" for name, value in setting.parameters),
                "is_default": int(setting.is_default),
                "spread_percent": f"{100 * row.spread:.10g}" if row.spread else "",
                "in_place": "" if row.in_place is None else int(row.in_place),
            }
        )


def _lines(path: Path, *, is_growing: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> stripped text)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = (line for line in file if line.endswith("\n") or not is_growing)
            reader = csv.DictReader(lines, strict=True)
            if not reader.fieldnames:
                raise InputError(f"{path.name} is empty", hint=_HINT)
            columns = list(reader.fieldnames)
            for fault, names in (
                ("missing", [column for column in COLUMNS if column not in columns]),
                ("duplicate", [column for column in dict.fromkeys(columns) if columns.count(column) > 1]),
                ("unknown", [column for column in columns if column not in COLUMNS]),
            ):
                if names:
                    plural = "s" * (len(names) > 1)
                    raise InputError(f"{path.name}, line 1: {fault} column{plural} {', '.join(names)}", hint=_HINT)
            for line in reader:
                if None in line or None in line.values():
                    raise InputError(
                        f"{path.name}, line {reader.line_num}: {'more' if None in line else 'fewer'} fields than "
                        "columns",
                        hint="quote fields that contain a comma",
                    )
                yield reader.line_num, {column: text.strip() for column, text in line.items()}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}", hint="name the CSV file of a landscape") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {reason(error)}", hint=_HINT) from error


def _parse_row(number: int, line: Mapping[str, str]) -> LandscapeRow:
    cells = {column: parse(column, line[column]) for column, parse in _CELLS.items()}
    gpus, nodes, gpus_per_node = (cells[column] for column in ("gpus", "nodes", "gpus_per_node"))
    _require(gpus == nodes * gpus_per_node, f"{gpus} gpus are not {nodes} nodes x {gpus_per_node}")
    try:
        setting = Setting(
            algorithm=cells["algo"],
            protocol=cells["proto"],
            channels=cells["nchannels"],
            parameters=cells["parameters"],
        )
    except SettingError as error:
        raise InputError(f"nchannels: {error.message}", hint="correct the row") from error
    _require(
        cells["is_default"] == setting.is_default,
        f"is_default is {line['is_default']}, and the row forces {setting.label}",
        hint="is_default is 1 where algo, proto, nchannels and parameters are blank, else 0",
    )
    own = {column: value for column, value in cells.items() if column in _FIELDS}
    return LandscapeRow(number=number, setting=setting, spread=(cells["spread_percent"] or 0.0) / 100, **own)


def _require(holds: bool, problem: str, *, hint: str = "correct or remove the row") -> None:
    if not holds:
        raise InputError(problem, hint=hint)


def _words(column: str, text: str) -> str:
    _require(bool(text), f"{column} is blank", hint="name the machine, and where the time comes from")
    return text


def _version(column: str, text: str) -> str:
    try:
        return str(NcclVersion.parse(text))
    except NccltError as error:
        raise InputError(f"{column}: {error.message}", hint="for example 2.28.9") from error


def _parameters(column: str, text: str) -> tuple[tuple[str, int], ...]:
    parameters: dict[str, int] = {}
    for word in text.split():
        match = _PARAMETER.fullmatch(word)
        if match is None or match[1] in parameters:
            raise InputError(f"{column} is {text!r}", hint="for example BUFFSIZE=8388608 NTHREADS=256")
        try:
            is_known = parameter(match[1]).name == match[1]
        except SettingError as error:
            raise InputError(f"{column}: {error.message}", hint=error.hint) from error
        _require(is_known, f"{column} is {text!r}", hint="leave out NCCL_")
        parameters[match[1]] = int(match[2])
    return tuple(parameters.items())


def _flag(column: str, text: str) -> bool:
    _require(text in ("0", "1"), f"{column} is {text!r}, neither 0 nor 1")
    return text == "1"


def _member(names: type[StrEnum], column: str, text: str) -> StrEnum:
    _require(text in list(names), f"unknown {column} {text!r}", hint=f"one of {', '.join(names)}")
    return names(text)


def _number(most: float, column: str, text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    is_valid = 1 / MAX_TIME_US <= value <= most
    _require(is_valid, f"{column} is {text!r}, which is not a number above 0 and up to {most:g}")
    return value


def _whole(column: str, text: str) -> int:
    is_valid = re.fullmatch(r"0*[1-9]\d{0,17}", text, re.ASCII) is not None
    _require(is_valid, f"{column} is {text!r}, which is not a whole number above 0")
    return int(text)


def _size(column: str, text: str) -> int:
    size_bytes = _whole(column, text)
    _require(size_bytes <= MOST_BYTES, f"{column} is {size_bytes}, above 2^53")
    return size_bytes


def _optional(parse: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda column, text: parse(column, text) if text else None


_CELLS: Mapping[str, Callable[[str, str], Any]] = {
    "system": _words,
    "gpus": _whole,
    "nodes": _whole,
    "gpus_per_node": _whole,
    "nccl_version": _version,
    "collective": partial(_member, Collective),
    "dtype": lambda _column, text: text,
    "size_bytes": _size,
    "algo": _optional(partial(_member, Algorithm)),
    "proto": _optional(partial(_member, Protocol)),
    "nchannels": _optional(_whole),
    "parameters": _parameters,
    "is_default": _flag,
    "repetition": _whole,
    "time_us": partial(_number, MAX_TIME_US),
    "spread_percent": _optional(partial(_number, _MAX_SPREAD_PERCENT)),
    "in_place": _optional(_flag),
    "source": _words,
}
"""Parser of each column, of (column, text)."""

COLUMNS = tuple(_CELLS)
"""All of them are needed, in any order."""

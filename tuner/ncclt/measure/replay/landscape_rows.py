"""Reads and writes the table of a landscape: strict CSV, one measurement per row (docs/cluster-admin/landscapes.md)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import MOST_BYTES, Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import Setting
from ncclt.errors import InputError, NccltError, SettingError, reason
from ncclt.nccl.parameters import parameter

COLUMNS = (
    "system",
    "gpus",
    "nodes",
    "gpus_per_node",
    "nccl_version",
    "collective",
    "dtype",
    "size_bytes",
    "algo",
    "proto",
    "nchannels",
    "parameters",
    "is_default",
    "repetition",
    "time_us",
    "spread_percent",
    "in_place",
    "source",
)
"""All of them are needed, in any order."""

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
_ALGORITHMS = {algorithm.value: algorithm for algorithm in Algorithm}
_PROTOCOLS = {protocol.value: protocol for protocol in Protocol}
_COLLECTIVES = {collective.value: collective for collective in Collective}
_Name = TypeVar("_Name")


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
        where = f"{path.name}, line {number}"
        row = _row(number, line, where)
        first = rows[0] if rows else row
        for column in _SAME:
            if getattr(row, column) != getattr(first, column):
                raise InputError(
                    f"{where}: {column} is {line[column]!r}, unlike in line {first.number}",
                    hint="a table holds one landscape: write the others to files of their own",
                )
        if row.is_simulated != first.is_simulated:
            raise InputError(
                f"{where}: simulated and measured times are mixed, see source in line {first.number}",
                hint="write them to files of their own",
            )
        point = (row.collective, row.dtype, row.size_bytes, row.setting, row.repetition)
        if point in points:
            raise InputError(
                f"{where}: repetition {row.repetition} of line {points[point]} is there twice",
                hint="number the repetitions of a point 1, 2, 3",
            )
        points[point] = number
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
                **{column: getattr(row, column) for column in COLUMNS if hasattr(row, column)},
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
            _check_header(reader.fieldnames, path)
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


def _check_header(columns: Iterable[str], path: Path) -> None:
    columns = list(columns)
    faults = (
        ("missing", [column for column in COLUMNS if column not in columns]),
        ("duplicate", [column for column in columns if columns.count(column) > 1]),
        ("unknown", [column for column in columns if column not in COLUMNS]),
    )
    for fault, names_at_fault in faults:
        if names_at_fault:
            names = ", ".join(dict.fromkeys(names_at_fault))
            raise InputError(f"{path.name}, line 1: {fault} column{'s' * (', ' in names)} {names}", hint=_HINT)


def _row(number: int, line: Mapping[str, str], where: str) -> LandscapeRow:
    gpus, nodes, gpus_per_node = (_whole(line, column, where) for column in ("gpus", "nodes", "gpus_per_node"))
    if gpus != nodes * gpus_per_node:
        raise InputError(f"{where}: {gpus} gpus are not {nodes} nodes x {gpus_per_node}", hint="correct the row")
    for column in ("system", "source"):
        if not line[column]:
            raise InputError(f"{where}: {column} is blank", hint="name the machine, and where the time comes from")
    try:
        version = str(NcclVersion.parse(line["nccl_version"]))
    except NccltError as error:
        raise InputError(f"{where}: nccl_version: {error.message}", hint="for example 2.28.9") from error
    size_bytes = _whole(line, "size_bytes", where)
    if size_bytes > MOST_BYTES:
        raise InputError(f"{where}: size_bytes is {size_bytes}, above 2^53", hint="correct or remove the row")
    placed = line["in_place"]
    return LandscapeRow(
        number=number,
        system=line["system"],
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nccl_version=version,
        collective=_known(line, "collective", _COLLECTIVES, where),
        dtype=line["dtype"],
        size_bytes=size_bytes,
        setting=_setting(line, where),
        repetition=_whole(line, "repetition", where),
        time_us=_number(line, "time_us", where, most=MAX_TIME_US),
        spread=_number(line, "spread_percent", where, most=_MAX_SPREAD_PERCENT) / 100
        if line["spread_percent"]
        else 0.0,
        in_place=_flag(line, "in_place", where) if placed else None,
        source=line["source"],
    )


def _setting(line: Mapping[str, str], where: str) -> Setting:
    parameters: dict[str, int] = {}
    for word in line["parameters"].split():
        match = _PARAMETER.fullmatch(word)
        if match is None or match[1] in parameters:
            raise InputError(
                f"{where}: parameters is {line['parameters']!r}", hint="for example BUFFSIZE=8388608 NTHREADS=256"
            )
        try:
            is_known = parameter(match[1]).name == match[1]
        except SettingError as error:
            raise InputError(f"{where}: parameters: {error.message}", hint=error.hint) from error
        if not is_known:
            raise InputError(f"{where}: parameters is {line['parameters']!r}", hint="leave out NCCL_")
        parameters[match[1]] = int(match[2])
    try:
        setting = Setting(
            algorithm=_known(line, "algo", _ALGORITHMS, where) if line["algo"] else None,
            protocol=_known(line, "proto", _PROTOCOLS, where) if line["proto"] else None,
            channels=_whole(line, "nchannels", where) if line["nchannels"] else None,
            parameters=tuple(parameters.items()),
        )
    except SettingError as error:
        raise InputError(f"{where}: nchannels: {error.message}", hint="correct the row") from error
    if _flag(line, "is_default", where) != setting.is_default:
        raise InputError(
            f"{where}: is_default is {line['is_default']}, and the row forces {setting.label}",
            hint="is_default is 1 where algo, proto, nchannels and parameters are blank, else 0",
        )
    return setting


def _flag(line: Mapping[str, str], column: str, where: str) -> bool:
    if line[column] not in ("0", "1"):
        raise InputError(f"{where}: {column} is {line[column]!r}, neither 0 nor 1", hint="correct the row")
    return line[column] == "1"


def _known(line: Mapping[str, str], column: str, names: Mapping[str, _Name], where: str) -> _Name:
    if line[column] not in names:
        raise InputError(f"{where}: unknown {column} {line[column]!r}", hint=f"one of {', '.join(names)}")
    return names[line[column]]


def _number(line: Mapping[str, str], column: str, where: str, *, most: float) -> float:
    value = float(line[column]) if _NUMBER.fullmatch(line[column]) else 0.0
    if not 1 / MAX_TIME_US <= value <= most:
        raise InputError(
            f"{where}: {column} is {line[column]!r}, which is not a number above 0 and up to {most:g}",
            hint="correct or remove the row",
        )
    return value


def _whole(line: Mapping[str, str], column: str, where: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,17}", line[column], re.ASCII):
        raise InputError(
            f"{where}: {column} is {line[column]!r}, which is not a whole number above 0",
            hint="correct or remove the row",
        )
    return int(line[column])

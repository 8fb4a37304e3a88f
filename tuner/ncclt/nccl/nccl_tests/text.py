"""The table that nccl-tests prints, in the forms of all its releases.

Source: nccl-tests src/util.cu (writeResultHeader, writeBenchmarkLine*, writeResultFooter) of 2.19.6 and the outputs of
older releases. The column names are taken from the header of each table, because they differ: releases before 2.10 omit
`redop` and `root` where they do not apply (11 to 13 columns), or leave them blank below their name, `-I 1` adds
four columns to each half, a bitwise check one, `-S 1` a time stamp of two words, and `-C 1` calls the time `cputime`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclt.errors import BenchmarkError
from ncclt.nccl.log.lines import parse_float
from ncclt.nccl.nccl_tests.reason import failure_reason, named_reason
from ncclt.nccl.nccl_tests.result import (
    NcclTest,
    NcclTestRow,
    NcclTestTiming,
    count_hosts,
    find_collective,
    ranks_of_rows,
)
from ncclt.nccl.run_facts import RunFacts, RunFactsReader, logged_variable, logged_version

_VERSION = re.compile(r"#\s*nccl-tests version\s+(\S+)")
_LIBRARY = re.compile(r".*\bnccl-library=(\d{4,6})\b")
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_SETUP = re.compile(r"#\s*nThread\s+\d+")
_RANK = re.compile(r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s)?")  # older ones name no groups
_PLACE = re.compile(r".*\bon\s+(\S+)\s+device\s+(\d+\s+\[[^\]\s]*\])\s+(\S.*)")
_HEADER = re.compile(r"#\s+size\s+count\s+type\s")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})\b")
_COMMAND = re.compile(r"_perf(?:_mpi)?\s+-\w")  # put above a table by hand, as a comment
_PIECE_OF_ROW = re.compile(r"(?m)^\s*\d+\s+\d+\s+[a-z]\w*\s")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")


def parse_text(text: str, *, errors: str = "") -> tuple[NcclTest, ...]:
    """Read every test of an output; log lines in between are skipped.

    Args:
        text: standard output, or a file of it; without prefixes (`ncclt.launch.prefixes`).
        errors: standard error, which has no rows but possibly the reason for their absence.

    Returns:
        The tests in order. One that ended without a row is among them if another has rows.

    Raises:
        BenchmarkError: there is no row at all; the message says why, as far as the output shows it.
    """
    tests = _Tests()
    for line in text.splitlines():
        tests.read_line(line)
    finished = tests.finish()
    if not any(test.rows for test in finished):
        broken = sum(test.unreadable_lines for test in finished)
        output = f"{text}\n{errors}"
        reason = failure_reason(output)
        if broken and _PIECE_OF_ROW.search(text):
            torn = f"none of the {broken} lines of its table can be read, for something else was printed into them"
            reason = named_reason(output) or torn
        raise BenchmarkError(
            f"nccl-tests measured nothing: {reason}",
            hint="run the same command by hand; `ncclt doctor` looks for the usual causes",
        )
    return finished


@dataclass(slots=True)
class _OpenTest:
    """A test whose end has not been read yet."""

    program: str | None = None
    version: str | None = None
    nccl: str = ""
    stated: RunFacts = field(default_factory=RunFacts)  # by the lines above
    variables: dict[str, str] = field(default_factory=dict)
    set_up: bool = False
    groups: list[str | None] = field(default_factory=list)  # of each rank
    places: list[tuple[str, str, str]] = field(default_factory=list)  # host, device and GPU of ranks of the first group
    columns: list[str] = field(default_factory=list)
    in_table: bool = False
    rows: list[NcclTestRow] = field(default_factory=list)
    average: float | None = None
    out_of_bounds: int | None = None
    unreadable: int = 0

    def close(self) -> NcclTest:
        ranks = self.groups.count(self.groups[0]) if self.groups else 0
        collective = find_collective(self.program or self.stated.program, self.rows, ranks)
        return NcclTest(
            program=self.program,
            command=self.stated.program,
            version=self.version,
            collective=collective,
            ranks=ranks or ranks_of_rows(self.rows, collective) or self.stated.ranks,
            rows=tuple(self.rows),
            avg_busbw_gbps=self.average,
            out_of_bounds=self.out_of_bounds,
            unreadable_lines=self.unreadable,
            hosts=count_hosts([(host, device) for host, device, _ in self.places]),
            gpu=self.places[0][2].strip() if self.places else "",
            nccl=self.nccl,
            variables=tuple(sorted((dict(self.stated.variables) | self.variables).items())),
            is_ambiguous=self.stated.is_ambiguous,
        )


class _Tests:
    """Collects the tests of one output line by line."""

    def __init__(self) -> None:
        self._closed: list[NcclTest] = []
        self._open = _OpenTest()
        self._facts = RunFactsReader()
        self._continued = ""

    def read_line(self, line: str) -> None:
        stripped = self._continued + line.strip()
        self._continued = ""
        if stripped.endswith("\\") and not stripped.startswith("#"):
            self._continued = f"{stripped[:-1]} "
            return
        if variable := logged_variable(stripped):
            self._open.variables |= (variable,)
        self._open.nccl = self._open.nccl or logged_version(stripped)
        if stripped.startswith("#"):
            self._read_comment(stripped)
            return
        in_table = bool(stripped) and self._open.in_table
        row = _row(self._open.columns, stripped.split()) if in_table else None
        if row is not None:
            self._open.rows.append(row)
        else:
            self._open.unreadable += in_table
            self._facts.read(stripped)

    def finish(self) -> tuple[NcclTest, ...]:
        self._begin()
        return tuple(self._closed)

    def _begin(self) -> None:
        """Begin the next test, and close the one before."""
        if self._open.set_up or self._open.columns:
            self._closed.append(self._open.close())
        self._open = _OpenTest()

    def _read_comment(self, line: str) -> None:
        # The three lines that open a test come in this order, and older releases leave out the first two.
        if match := _VERSION.match(line):
            self._begin()
            self._open.version = match[1]
            self._open.nccl = library[1] if (library := _LIBRARY.match(line)) else ""
        elif match := _STARTING.match(line):
            if self._open.program or self._open.set_up:
                self._begin()
            self._open.program = match[1]
        elif _SETUP.match(line):
            if self._open.set_up:
                self._begin()
            self._open.set_up = True
            self._open.stated = self._facts.take()
        elif match := _RANK.match(line):
            self._open.groups.append(match[1])
            if match[1] == self._open.groups[0] and (place := _PLACE.match(line)):
                self._open.places.append((place[1], place[2], place[3]))
        elif _HEADER.match(line):
            if self._open.columns:
                self._begin()
            if not self._open.set_up:
                self._open.stated = self._facts.take()
            self._open.columns, self._open.in_table = line.removeprefix("#").split(), True
        elif match := _OUT_OF_BOUNDS.match(line):
            self._open.out_of_bounds, self._open.in_table = int(match[1]), False
        elif match := _AVERAGE.match(line):
            self._open.average, self._open.in_table = parse_float(match[1]), False
        elif _COMMAND.search(line):
            self._facts.read(line.lstrip("# "))


def _row(columns: list[str], words: list[str]) -> NcclTestRow | None:
    """Read one row, or return None where the line is not a row or was broken by other output."""
    if columns and columns[-1] == "timestamp":
        columns, words = columns[:-1], words[:-2]
    time_name = "cputime" if "cputime" in columns else "time"
    columns, blank = _without_blanks(columns, words)
    if len(words) != len(columns) or columns.count(time_name) != 2:
        return None
    first = columns.index(time_name)
    second = columns.index(time_name, first + 1)
    head = dict(zip(columns[:first], words[:first], strict=True))
    try:
        return NcclTestRow(
            size_bytes=_count(head["size"]),
            count=_count(head["count"]),
            dtype=head["type"],
            redop=head.get("redop", "" if "redop" in blank else None),
            root=int(head["root"]) if "root" in head else None,
            out_of_place=_timing(dict(zip(columns[first:second], words[first:second], strict=True)), time_name),
            in_place=_timing(dict(zip(columns[second:], words[second:], strict=True)), time_name),
        )
    except (ValueError, OverflowError, KeyError):  # an invalid number, or a header without one of the names
        return None


def _without_blanks(columns: list[str], words: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns that a row fills, and those that it leaves blank.

    Releases before 2.10 print no word for the operation of an alltoall below `redop`, and so do forks for `root`. What
    follows the type is then a number; in a row that has lost one of its words to another line it is `sum`.
    """
    optional: list[str] = [name for name in ("redop", "root") if name in columns]
    lacking = len(columns) - len(words)
    number = len(words) > 3 and parse_float(words[3]) is not None
    if not (number and 0 < lacking <= len(optional)):
        return columns, []
    blank = optional[:lacking]
    return [name for name in columns if name not in blank], blank


def _timing(half: Mapping[str, str], time_name: str) -> NcclTestTiming:
    wrong = half.get("#wrong", "N/A")
    return NcclTestTiming(
        time_us=float(half[time_name]),
        algbw_gbps=float(half["algbw"]),
        busbw_gbps=float(half["busbw"]),
        wrong=None if wrong == "N/A" else _count(str(int(float(wrong)))),  # printed with %6g: `1e+06`
    )


def _count(word: str) -> int:
    value = int(word)
    if value < 0:
        raise ValueError(word)
    return value

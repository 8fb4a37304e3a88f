"""The table as one word that fits into an environment variable, so that every rank gets it from its launcher.

    1:ID:NCCL:RANKS.NODES:SECTION_SECTION:FNV
    SECTION = ranks.nodes (0 = any), a letter for the collective, then rows, joined by +
    row     = [[start-]end], a letter for the algorithm, one for the protocol, [channels]

Sizes and channels are in base 36 (0-9a-z), letters are upper case. A row without start begins behind the row before it
in its section (the first at 0), one without end has none, and one without channels leaves them to NCCL. The checksum is
that of the table as CSV (`ncclt env --format tuner-csv`), so that both texts of one table have the same. No
character has a meaning for shells, `srun --export`, `mpirun -x` or Docker. plugin/table.c reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import InputError, NccltError
from ncclt.nccl.tuner_table import (
    ALGORITHMS,
    ANY,
    COLUMNS,
    FUNCTIONS,
    NO_UPPER_END,
    PROTOCOLS,
    table_checksum,
    table_text,
)

TABLE_VARIABLE = "NCCLT_TABLE"
"""Holds the table itself."""

POLICY_VARIABLE, CHECKSUM_VARIABLE = "NCCLT_POLICY", "NCCLT_POLICY_CHECKSUM"
"""Path of a table that is too long for the environment, and the checksum that its rows must have."""

MOST_BYTES = 32 * 1024
"""Slurm copies the environment for every task, and Kubernetes counts it in the object; Linux allows 128 KiB."""

MOST_ROWS = 4096
"""Rows that the plugin holds."""

_AGAIN = "write it again with `ncclt env --format tuner-csv`"

_FORMAT = "1"
_FUNCTION_LETTERS, _ALGORITHM_LETTERS, _PROTOCOL_LETTERS = "BRGSA", "TRDCNVP", "LHS"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LARGEST = 2**64 - 1
_MOST_COUNT = 2**32 - 1

_HEAD = re.compile(
    r"# ncclt-table 1 id=(?P<id>[A-Za-z0-9._-]{1,64}) nccl=(?P<nccl>[0-9.]+) nodes=(?P<nodes>[0-9]+) "
    r"ranks=(?P<ranks>[0-9]+)(?: .*)?"
)
_COMPACT = re.compile(
    r"1:(?P<id>[A-Za-z0-9._-]{1,64}):(?P<nccl>[0-9.]+):(?P<ranks>[0-9]+)\.(?P<nodes>[0-9]+):(?P<sections>[^:]+):"
    r"(?P<fnv>[0-9a-f]{16})",
    re.ASCII,
)
_SECTION = re.compile(r"(?P<ranks>[0-9]+)\.(?P<nodes>[0-9]+)(?P<function>[A-Z])(?P<rows>.+)", re.ASCII)
_ROW = re.compile(
    r"(?:(?P<start>[0-9a-z]+)-)?(?P<end>[0-9a-z]+)?(?P<algorithm>[A-Z])(?P<protocol>[A-Z])(?P<channels>[0-9a-z]+)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRow:
    """One row in NCCL's lower-case words; `ANY` for nodes, ranks or channels that are not said."""

    function: str
    first: int
    last: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int

    @property
    def section(self) -> str:
        """Return the beginning of a section of such rows."""
        return f"{max(self.ranks, 0)}.{max(self.nodes, 0)}{_FUNCTION_LETTERS[FUNCTIONS.index(self.function)]}"

    def text(self) -> str:
        """Return the row of a CSV table."""
        fields = (
            self.function,
            self.first,
            self.last,
            self.algorithm,
            self.protocol,
            self.channels,
            self.nodes,
            self.ranks,
        )
        return ",".join(map(str, fields))


def table_environment(text: str, file: Path) -> dict[str, str]:
    """Return the variables that give a job a table: the table itself, or where it is too long, its path and checksum.

    Args:
        text: the table as `ncclt env --format tuner-csv` writes it; empty = there is none.
        file: where the same text lies, on every node; only used for a table above `MOST_BYTES`.

    Raises:
        InputError: not a table of ncclt, or a damaged one.
    """
    if not text:
        return {}
    compact = encode_table(text)
    return {TABLE_VARIABLE: compact} if len(compact) <= MOST_BYTES else table_file_environment(text, file)


def table_file_environment(text: str, file: Path) -> dict[str, str]:
    """Return the variables that name a table in a file, whatever its length, with its checksum.

    Raises:
        InputError: as for `table_environment`.
    """
    return {POLICY_VARIABLE: str(file), CHECKSUM_VARIABLE: encode_table(text).rpartition(":")[2]}


def encode_table(text: str) -> str:
    """Return the compact text of a table, whatever its length.

    Raises:
        InputError: not a table of ncclt, or a damaged one.
    """
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise InputError(
            "not a table of ncclt: its first line is not `# ncclt-table 1 ...`",
            hint=_AGAIN,
        )
    rows = [_parse_row(line) for line in lines if line and not line.startswith("#")]
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(f"a table has 1 to {MOST_ROWS:,} rows, not {len(rows):,}", hint=_AGAIN)
    fnv = table_checksum(row.text() for row in rows)
    if f" fnv1a={fnv:016x}" not in lines[0] or f" rows={len(rows)} " not in lines[0]:
        raise InputError(
            "the rows of the table do not fit its first line: it was cut off or edited", hint="write it again"
        )
    sections = "_".join(
        section + "+".join(_encode_rows(list(part))) for section, part in groupby(rows, key=lambda row: row.section)
    )
    return f"{_FORMAT}:{head['id']}:{head['nccl']}:{head['ranks']}.{head['nodes']}:{sections}:{fnv:016x}"


def decode_table(compact: str) -> str:
    """Return the CSV table that a compact text stands for, without comments.

    Raises:
        InputError: it is damaged.
    """
    found = _COMPACT.fullmatch(compact)
    if found is None:
        raise InputError("the compact table is damaged: it is not 1:ID:NCCL:RANKS.NODES:SECTIONS:CHECKSUM")
    rows = [row.text() for part in found["sections"].split("_") for row in _decode_section(part)]
    if len(rows) > MOST_ROWS or table_checksum(rows) != int(found["fnv"], 16):
        raise InputError("the compact table is damaged: its rows do not fit its checksum")
    try:
        version = NcclVersion.parse(found["nccl"])
    except NccltError as error:
        raise InputError(f"the compact table is damaged: {error.message}") from error
    return table_text(rows, table_id=found["id"], version=version, nodes=int(found["nodes"]), ranks=int(found["ranks"]))


def _parse_row(line: str) -> CompactRow:
    fields = line.split(",")
    try:
        if len(fields) != len(COLUMNS):
            raise ValueError(f"{len(fields)} fields instead of {len(COLUMNS)}")
        function, first, last, algorithm, protocol, *numbers = fields
        channels, nodes, ranks = map(int, numbers)
        row = CompactRow(
            function=function,
            first=int(first),
            last=int(last),
            algorithm=algorithm,
            protocol=protocol,
            channels=channels,
            nodes=nodes,
            ranks=ranks,
        )
        words = (function in FUNCTIONS, algorithm in ALGORITHMS, protocol in PROTOCOLS)
        numbers_fit = all(count == ANY or 1 <= count <= _MOST_COUNT for count in (channels, nodes, ranks))
        if not all(words) or not numbers_fit or not 0 <= row.first <= row.last <= _LARGEST or row.text() != line:
            raise ValueError("an unknown word, or a number out of range")
    except ValueError as error:
        raise InputError(f"no row of a table: {line[:80]}: {error}", hint=_AGAIN) from error
    return row


def _encode_rows(rows: list[CompactRow]) -> Iterator[str]:
    expected = 0
    for row in rows:
        start = "" if row.first == expected else f"{_base36(row.first)}-"
        end = "" if row.last == NO_UPPER_END else _base36(row.last)
        channels = "" if row.channels == ANY else _base36(row.channels)
        letters = _ALGORITHM_LETTERS[ALGORITHMS.index(row.algorithm)] + _PROTOCOL_LETTERS[PROTOCOLS.index(row.protocol)]
        yield f"{start}{end}{letters}{channels}"
        expected = row.last + 1


def _decode_section(text: str) -> Iterator[CompactRow]:
    section = _SECTION.fullmatch(text)
    if section is None or section["function"] not in _FUNCTION_LETTERS:
        raise InputError(f"the compact table is damaged at {text[:40]!r}")
    expected = 0
    for part in section["rows"].split("+"):
        found = _ROW.fullmatch(part)
        if found is None or found["algorithm"] not in _ALGORITHM_LETTERS or found["protocol"] not in _PROTOCOL_LETTERS:
            raise InputError(f"the compact table is damaged at {part[:40]!r}")
        row = CompactRow(
            function=FUNCTIONS[_FUNCTION_LETTERS.index(section["function"])],
            first=expected if found["start"] is None else int(found["start"], 36),
            last=NO_UPPER_END if found["end"] is None else int(found["end"], 36),
            algorithm=ALGORITHMS[_ALGORITHM_LETTERS.index(found["algorithm"])],
            protocol=PROTOCOLS[_PROTOCOL_LETTERS.index(found["protocol"])],
            channels=ANY if found["channels"] is None else int(found["channels"], 36),
            nodes=int(section["nodes"]) or ANY,
            ranks=int(section["ranks"]) or ANY,
        )
        yield _parse_row(row.text())
        expected = row.last + 1


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits

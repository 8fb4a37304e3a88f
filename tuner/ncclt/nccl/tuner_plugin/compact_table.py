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
from itertools import groupby
from pathlib import Path

from ncclt.errors import InputError
from ncclt.nccl.tuner_table import (
    ALGORITHMS,
    ANY,
    COLUMNS,
    FUNCTIONS,
    NO_UPPER_END,
    PROTOCOLS,
    PluginRow,
    table_checksum,
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
        raise InputError("not a table of ncclt: its first line is not `# ncclt-table 1 ...`", hint=_AGAIN)
    rows = [_parse_row(line) for line in lines if line and not line.startswith("#")]
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(f"a table has 1 to {MOST_ROWS:,} rows, not {len(rows):,}", hint=_AGAIN)
    fnv = table_checksum(row.text() for row in rows)
    if f" fnv1a={fnv:016x}" not in lines[0] or f" rows={len(rows)} " not in lines[0]:
        raise InputError(
            "the rows of the table do not fit its first line: it was cut off or edited", hint="write it again"
        )
    sections = "_".join(
        section + "+".join(_encode_rows(list(part)))
        for section, part in groupby(
            rows, key=lambda row: f"{row.ranks}.{row.nodes}{_FUNCTION_LETTERS[FUNCTIONS.index(row.collective)]}"
        )
    )
    return f"{_FORMAT}:{head['id']}:{head['nccl']}:{head['ranks']}.{head['nodes']}:{sections}:{fnv:016x}"


def _parse_row(line: str) -> PluginRow:
    fields = line.split(",")
    try:
        if len(fields) != len(COLUMNS):
            raise ValueError(f"{len(fields)} fields instead of {len(COLUMNS)}")
        function, first, last, algorithm, protocol, *numbers = fields
        channels, nodes, ranks = map(int, numbers)
        first_bytes, last_bytes = int(first), int(last)
        row = PluginRow(
            collective=function,
            algorithm=algorithm,
            protocol=protocol,
            first_bytes=first_bytes,
            last_bytes=None if last_bytes == NO_UPPER_END else last_bytes,
            channels=max(channels, 0),
            nodes=max(nodes, 0),
            ranks=max(ranks, 0),
        )
        words = (function in FUNCTIONS, algorithm in ALGORITHMS, protocol in PROTOCOLS)
        numbers_fit = all(count == ANY or 1 <= count <= _MOST_COUNT for count in (channels, nodes, ranks))
        if not all(words) or not numbers_fit or not 0 <= first_bytes <= last_bytes <= _LARGEST or row.text() != line:
            raise ValueError("an unknown word, or a number out of range")
    except ValueError as error:
        raise InputError(f"no row of a table: {line[:80]}: {error}", hint=_AGAIN) from error
    return row


def _encode_rows(rows: list[PluginRow]) -> Iterator[str]:
    expected = 0
    for row in rows:
        start = "" if row.first_bytes == expected else f"{_base36(row.first_bytes)}-"
        end = "" if row.last_bytes is None else _base36(row.last_bytes)
        channels = _base36(row.channels) if row.channels else ""
        letters = _ALGORITHM_LETTERS[ALGORITHMS.index(row.algorithm)] + _PROTOCOL_LETTERS[PROTOCOLS.index(row.protocol)]
        yield f"{start}{end}{letters}{channels}"
        expected = (NO_UPPER_END if row.last_bytes is None else row.last_bytes) + 1


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits

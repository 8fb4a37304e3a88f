"""A SQLite export of Nsight Systems, opened so that nothing in it can write, run code or run forever."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ncclt.errors import TraceError
from ncclt.profile.source import open_regular

_MAGIC = b"SQLite format 3\0"
_MARKS = frozenset({"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT"})
"""Tables of which every export has one."""

_STEP = 100_000
_OPERATIONS_PER_BYTE = 20
"""Operations of SQLite's virtual machine allowed for each byte of the file; a scan needs about one. A statement that
recurses forever, or a join without end, meets this bound instead."""

_CELL_BYTES = 1 << 20
"""Largest cell read; payloads of NCCL have 56 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """An open export.

    Attributes:
        label: the file's name.
        connection: read-only.
        columns: table -> its columns; real tables alone, no views.
    """

    label: str
    connection: sqlite3.Connection
    columns: Mapping[str, frozenset[str]]

    def select(self, table: str, *columns: str, joined: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table; a column that it lacks is NULL, and a table that is missing has no rows.

        Args:
            table: one of the names that the caller knows; never text from outside.
            columns: names of columns, or expressions that begin with a bracket.
            joined: what follows the table's name.
        """
        if table not in self.columns:
            return iter(())
        known = self.columns[table]
        shown = ", ".join(c if c in known or c.startswith("(") else "NULL" for c in columns)
        # Names of tables and columns are literals of this package: nothing of the file gets into the statement.
        return iter(self.connection.execute(" ".join(("SELECT", shown, "FROM", table, joined))))

    def names(self) -> dict[int, str]:
        """Return the strings with NCCL's name in them, by the number under which rows refer to them."""
        return self._strings("WHERE value GLOB '*nccl*'")

    def kernel_names(self) -> dict[int, str]:
        """Return the names of all kernels, of an export that has them, by the same number."""
        return self._strings("WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL)")

    def _strings(self, where: str) -> dict[int, str]:
        rows = self.select("StringIds", "id", "value", joined=where)
        return {key: value for key, value in rows if isinstance(key, int) and isinstance(value, str)}

    def facts(self) -> dict[str, str]:
        """Return how the file was exported: name -> value."""
        rows = self.select("META_DATA_EXPORT", "name", "value", joined="WHERE name GLOB 'EXPORT_*'")
        return {str(key): str(value) for key, value in rows}


def is_export(path: Path) -> bool:
    """Return whether a file is a SQLite export of Nsight Systems; never raises."""
    try:
        with open_regular(path, error=TraceError) as raw:
            if raw.read(len(_MAGIC)) != _MAGIC:
                return False
        with opened(path) as export:
            return bool(_MARKS & export.columns.keys())
    except (OSError, TraceError):
        return False


@contextmanager
def opened(path: Path) -> Iterator[Export]:
    """Open an export for reading.

    Raises:
        TraceError: it cannot be opened, is not an SQLite file, is damaged, or takes too long to read; also
            raised for reads inside the `with` block.
    """
    try:
        with open_regular(path, error=TraceError) as raw:  # SQLite itself waits for a pipe's writer
            size_bytes = os.fstat(raw.fileno()).st_size
        # immutable: no lock and no journal is made beside the file, which may be on a read-only file system.
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            _bound(connection, size_bytes)
            yield Export(label=path.name, connection=connection, columns=_columns(connection))
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path and who may read it"
        ) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Of a damaged schema, SQLite quotes bytes in its message that Python's sqlite3 fails to decode.
        raise TraceError(
            f"{path.name} is damaged, cut off or not an SQLite export: {error}",
            hint="copy the file again, or export the report again with nsys export --type sqlite",
        ) from error


def _bound(connection: sqlite3.Connection, size_bytes: int) -> None:
    budget = 300 + size_bytes * _OPERATIONS_PER_BYTE // _STEP
    used = 0

    def is_over() -> bool:
        nonlocal used
        used += 1
        return used > budget

    connection.set_progress_handler(is_over, _STEP)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    query = (
        "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c "
        "WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'"
    )
    found: dict[str, set[str]] = {}
    for table, column in connection.execute(query):
        found.setdefault(table, set()).add(column)
    return {table: frozenset(columns) for table, columns in found.items()}

"""A whole store as one file: to move it between SQLite and PostgreSQL, and to keep a copy.

Lines of JSON, gzipped: a head with the migration, a line per row, and an end with the number of rows of each table, so
that a file that was cut off is noticed before anything is stored.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, insert, select, text

from ncclt.errors import InputError, StoreError, UsageError, reason
from ncclt.store.database import Database
from ncclt.store.location import Location, prepare_file
from ncclt.store.migrate import migrate, migration
from ncclt.store.schema import HEAD, require_current
from ncclt.store.tables import metadata

_FORMAT = 1
_CHUNK = 1000
_NEVER = ("leases",)
"""Tables of what runs now."""

_WRITTEN_BY = "`ncclt admin store export FILE` writes one"

_SECRET = ("keys", "secrets")
"""Tables that only a backup holds; it is a copy of the whole file."""


def export_store(location: Location, path: Path) -> dict[str, int]:
    """Write every row but those of keys and leases to a new file, or nothing; return the rows per table.

    All rows are of one moment, whatever is written meanwhile.

    Raises:
        UsageError: the file exists, or cannot be written.
        StoreError: the store cannot be read, or its tables are of another version of ncclt.
    """
    with opened(location) as database, _new_file(path) as file, gzip.open(file, "wt", encoding="utf-8") as lines:
        head = {"ncclt_store": _FORMAT, "migration": HEAD}
        lines.write(json.dumps(head) + "\n")
        counts: dict[str, int] = {}
        with database.reading() as connection:
            for table in _tables():
                counts[table.name] = 0
                rows = connection.execution_options(yield_per=_CHUNK).execute(select(table))
                for row in rows:
                    lines.write(json.dumps([table.name, list(row)]) + "\n")
                    counts[table.name] += 1
        lines.write(json.dumps({"rows": counts}) + "\n")
    return counts


def import_store(location: Location, path: Path) -> dict[str, int]:
    """Store every row of an export, all of them or none; return the rows per table.

    The store is made, or brought up to this version, once the file is known to be good.

    Raises:
        UsageError: the store is not empty.
        InputError: the file is no export, is damaged, or is of another version of ncclt.
        StoreError: the store cannot be written.
    """
    expected = _checked(path)
    prepare_file(location, create=True)
    created = Database(location)
    try:
        migrate(created)
    finally:
        created.close()
    with opened(location) as database:
        counts: Counter[str] = Counter()
        with database.alone() as connection:
            for table in _tables():
                if connection.execute(select(func.count()).select_from(table)).scalar():
                    raise UsageError(
                        f"the store {database.shown} has {table.name} already",
                        hint="import into a new one: --storage URL",
                    )
            lines = (line for line in _lines(path) if isinstance(line, list))
            for name, group in groupby(lines, key=lambda line: line[0]):
                table = metadata.tables[name]
                names = [column.name for column in table.columns]
                rows = (dict(zip(names, values, strict=True)) for _name, values in group)
                while chunk := list(islice(rows, _CHUNK)):
                    connection.execute(insert(table), chunk)
                    counts[name] += len(chunk)
                if database.schema is not None and "sequence" in names:
                    # PostgreSQL numbers the next row after those that were stored with their numbers.
                    query = "SELECT setval(pg_get_serial_sequence(:name, 'sequence'), (SELECT max(sequence) FROM {}))"
                    connection.execute(text(query.format(name)), {"name": name})  # a name of ours
        assert {name: count for name, count in expected.items() if count} == counts
    return expected


def back_up(location: Location, path: Path) -> None:
    """Copy the file of an SQLite store, keys included, while it is in use.

    Raises:
        UsageError: the store is PostgreSQL, or the file exists or cannot be written.
        StoreError: the store cannot be read.
    """
    if location.path is None:
        raise UsageError(
            "PostgreSQL has its own backups", hint="pg_dump, or `ncclt admin store export` for the rows of ncclt alone"
        )
    with opened(location), _new_file(path) as file:
        try:
            source = sqlite3.connect(location.sqlite_uri("ro"), uri=True)
            with contextlib.closing(source), contextlib.closing(sqlite3.connect(file.name)) as copy:
                source.backup(copy)
        except sqlite3.Error as error:
            raise StoreError(f"the store {location.path} cannot be copied: {error}") from error


@contextlib.contextmanager
def opened(location: Location) -> Iterator[Database]:
    """Open a store whose tables are of this version.

    Raises:
        StoreError: they are not, or there is no store.
    """
    prepare_file(location, create=False)
    database = Database(location)
    try:
        require_current(migration(database), f"the store {database.shown}")
        database.require_sound()
        yield database
    finally:
        database.close()


def _tables() -> list[Table]:
    return [table for table in metadata.sorted_tables if table.name not in (*_NEVER, *_SECRET)]


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Any]:
    """Open a file beside the path, which gets its name at the end of the block.

    Raises:
        UsageError: something is there already, or it cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists", hint="name a new file")
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).rename(path)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason(error)}", hint="name another file") from error


def _lines(path: Path) -> Iterator[Any]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except gzip.BadGzipFile as error:
        raise InputError(f"{path} is not an export of a store", hint=_WRITTEN_BY) from error
    except (EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path} is not a complete export of a store: {reason(error)}", hint="export it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason(error)}", hint="check the path") from error


def _checked(path: Path) -> dict[str, int]:
    """Read a file to its end, and return the rows per table that it has.

    Raises:
        InputError: it is no export, is damaged, or is of another version of ncclt.
    """
    first, last, counts = None, None, Counter[str]()
    columns = {table.name: len(table.columns) for table in _tables()}
    for line in _lines(path):
        if isinstance(line, list):
            name, values = line if len(line) == 2 else ("", None)
            if not (isinstance(name, str) and isinstance(values, list) and columns.get(name) == len(values)):
                raise InputError(f"{path} has a row of an unknown table: {ascii(name)[:60]}", hint="export it again")
            counts[name] += 1
        elif first is None:
            first = line
        last = line
    if not isinstance(first, dict) or first.get("ncclt_store") != _FORMAT:
        raise InputError(f"{path} is not an export of a store", hint=_WRITTEN_BY)
    if first.get("migration") != HEAD:
        raise InputError(
            f"{path} is of migration {first.get('migration')}, this ncclt is at {HEAD}",
            hint="migrate the store that it came from (`ncclt admin store migrate`) and export it again",
        )
    rows: dict[str, int] = last.get("rows", {}) if isinstance(last, dict) else {}
    if not rows or {name: count for name, count in rows.items() if count} != counts:
        raise InputError(f"{path} was cut off or changed", hint="export it again")
    return rows

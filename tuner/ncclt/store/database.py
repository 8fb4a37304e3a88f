"""Connections and transactions, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from ncclt.errors import StoreError, UsageError
from ncclt.store.failures import translated
from ncclt.store.location import BUSY_TIMEOUT_S, URL_HINT, Location, locate
from ncclt.store.schema import OPTUNA_SCHEMA, POSTGRESQL_SCHEMA
from ncclt.store.tables import workloads

CONNECT_TIMEOUT_S = 5
"""libpq waits for ever by default; a URL with its own connect_timeout keeps it."""

_LOCK_KEY = 0x6E63636C74
"""PostgreSQL's advisory locks are numbers shared by the whole database; this one spells `ncclt` in ASCII."""

_ALONE = "ncclt_alone"


class Database:
    """An engine whose failures are StoreErrors; close it after use.

    Attributes:
        shown: the URL for messages, without password.
        schema: of our tables, None on SQLite.
        is_patient: repeat what may be repeated when PostgreSQL was away for some seconds.
    """

    def __init__(self, location: Location, *, busy_timeout_s: float = BUSY_TIMEOUT_S, is_patient: bool = True) -> None:
        self.location = location
        self.is_patient = is_patient
        if location.path is not None:
            self.shown = str(location.path)
            self.schema = None
            self._url = URL.create("sqlite", database=str(location.path))
            self._engine = _sqlite_engine(location, busy_timeout_s=busy_timeout_s)
            self._readers = self._engine
        else:
            try:
                self._url = make_url(location.url)
            # ValueError: a port that is not a number.
            except (ArgumentError, ValueError) as error:
                raise UsageError("the storage URL cannot be read", hint=URL_HINT) from error
            self.shown = self._url.difference_update_query(("password", "options")).render_as_string()
            self.schema = POSTGRESQL_SCHEMA
            self._engine = create_engine(_in_schema(self._url, POSTGRESQL_SCHEMA), pool_pre_ping=True)
            # With its default a later query sees what an earlier one did not: a trial without its measurements.
            self._readers = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def optuna_url(self) -> str:
        """Return the URL for Optuna: a file or a schema beside ours; may hold the password."""
        if self.location.optuna_path is not None:
            return f"sqlite:///{self.location.optuna_path}"
        return _in_schema(self._url, OPTUNA_SCHEMA).render_as_string(hide_password=False)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads; all its queries see one state, despite concurrent writers."""
        with translated(self.shown), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, conflict: str = "") -> Iterator[Connection]:
        """Open a transaction that is committed at the end of the block, or not at all.

        Args:
            conflict: the message for a row that violates a constraint.
        """
        with translated(self.shown, conflict=conflict), self._engine.connect() as connection:
            connection = connection.execution_options(**{_ALONE: True})
            with connection.begin():
                yield connection

    @contextmanager
    def alone(self, *, conflict: str = "") -> Iterator[Connection]:
        """Open a writing transaction while no other process is in one of these, for read-then-write."""
        with self.writing(conflict=conflict) as connection:
            if self.schema is not None:  # SQLite has one writer anyway
                connection.execute(text("SET LOCAL lock_timeout = '30s'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            yield connection

    def require_sound(self) -> None:
        """Raise StoreError if the pages of an SQLite file are damaged; PostgreSQL checks its own.

        Called before writing, not before each reading: it reads the whole file, about 1 ms per MB.
        """
        if self.schema is not None:
            return
        with self.reading() as connection:
            answer = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if answer != "ok":
            raise StoreError(
                f"the store {self.shown} is damaged: {' '.join(str(answer or 'no answer').split())}",
                hint="restore a backup or name another store with --storage",
            )

    def try_writing(self) -> None:
        """Write a row and roll it back.

        An empty transaction would prove nothing: only the first row makes SQLite use its folder and PostgreSQL check
        this user's rights.
        """
        with self.writing() as connection, connection.begin_nested() as attempt:
            connection.execute(insert(workloads).values(name="", document=""))
            attempt.rollback()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def now_s(connection: Connection) -> float:
    """Return the Unix time, in s, by the clock of the database's machine, so that the clocks of two hosts may differ.

    With SQLite it is this machine's clock.
    """
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def _in_schema(url: URL, schema: str) -> URL:
    """Return the URL with `schema` as the only one searched (libpq's `options`), in addition to its own options."""
    own = url.query.get("options", ())
    options = " ".join([own] if isinstance(own, str) else own)
    merged = f"{options} -csearch_path={schema}".strip()
    return url.update_query_dict(
        {"connect_timeout": url.query.get("connect_timeout", str(CONNECT_TIMEOUT_S)), "options": merged}
    )


def engine_alone(url: str, *, busy_timeout_s: float) -> Engine | None:
    """Return an engine of a database that is SQLite's: each of its transactions is alone from its beginning.

    For a library that reads and then writes by what it has read. Python's sqlite3 begins at the first write, so two
    processes could both have read before either writes.
    """
    location = locate(url)
    if location.path is None:
        return None
    return _sqlite_engine(location, busy_timeout_s=busy_timeout_s).execution_options(**{_ALONE: True})


def _sqlite_engine(location: Location, *, busy_timeout_s: float) -> Engine:
    engine = create_engine(f"sqlite:///{location.path}", connect_args={"timeout": busy_timeout_s})

    # The journal stays SQLite's rollback journal with synchronous=FULL. WAL would be faster, but it keeps its index
    # in memory shared between processes: it does not work over a network file system (sqlite.org/wal.html), and the
    # home of an HPC user, where this file is by default, is one; nor can it be read where its folder is not writable.
    # FULL makes a commit survive the loss of power as well as kill -9. Both cost a few ms per trial, and a trial takes
    # seconds.
    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # Python's sqlite3 begins too late to protect a read before a write
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a reader that turns writer fails instead of waiting.
        alone = connection.get_execution_options().get(_ALONE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if alone else "BEGIN")

    return engine

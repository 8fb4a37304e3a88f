"""The fast way to what was published: one SELECT by the standard library, for `ncclt env`.

Importing SQLAlchemy costs about 320 ms (measured on the 2-core machine of development), twice what the whole
command may take; the contract test of the store proves that both ways give the same.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from ncclt.core.recommendation import Recommendation, recommendation_from_document
from ncclt.errors import StoreError
from ncclt.store.documents import stored
from ncclt.store.location import Location, locate
from ncclt.store.revisions import VERSION_QUERY, known_revision

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process that is just writing."""

_RECOVERY_NEEDED = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)


def published(url: str | None, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    """Return what was published for a model on a cluster, newest first; empty where there is no store yet.

    Raises:
        UsageError: the text is no URL of a database that ncclt can use.
        StoreError: the store cannot be read, or its schema is not ours.
    """
    location = locate(url)
    if location.path is None:
        return _by_sqlalchemy(location, cluster=cluster, model=model)
    try:
        location.path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StoreError(f"{location.path} cannot be read: {error.strerror}", hint="check its permissions") from error
    with stored("a recommendation"):
        return tuple(
            recommendation_from_document(json.loads(text))
            for text in _documents(location, cluster=cluster, model=model)
        )


def _by_sqlalchemy(location: Location, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    from ncclt.store import open_store

    with open_store(location.url, migrate=False) as store:
        if not store.migration().current:
            return ()
        return store.recommendations(cluster=cluster, model=model)


def _documents(location: Location, *, cluster: str, model: str) -> tuple[str, ...]:
    try:
        try:
            return _select(location, "ro", cluster=cluster, model=model)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _RECOVERY_NEEDED:
                raise
            # A process was killed while it wrote: only a connection that may write can undo what it left half done.
            return _select(location, "rw", cluster=cluster, model=model)
    except (sqlite3.Error, UnicodeEncodeError) as error:
        raise StoreError(
            f"{location.path} cannot be read as a store of ncclt: {error}",
            hint="check the path and its permissions, or name another store with --storage",
        ) from error


def _select(location: Location, mode: str, *, cluster: str, model: str) -> tuple[str, ...]:
    uri = location.sqlite_uri(mode)
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        if not _revision(location, connection):
            return ()
        rows = connection.execute(
            "SELECT document FROM recommendations WHERE cluster = ? AND model = ? ORDER BY sequence DESC",
            (cluster, model),
        )
        return tuple(text for (text,) in rows)


def _revision(location: Location, connection: sqlite3.Connection) -> str:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    def read() -> str | None:
        row = connection.execute(VERSION_QUERY).fetchone()
        return row and str(row[0])

    return known_revision(str(location.path), tables=tables, read=read)

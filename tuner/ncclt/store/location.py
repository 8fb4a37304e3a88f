"""Locations of stores: database URLs, read without SQLAlchemy so that `ncclt env` stays fast."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ncclt.errors import StoreError, UsageError
from ncclt.user_dirs import user_folder

URL_HINT = "write sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"

BUSY_TIMEOUT_S = 10.0
"""Max wait for another process that is writing."""

_SMALLEST_DATABASE = 512
"""Bytes of the smallest page, which every SQLite file has at least one of (sqlite.org/fileformat2.html)."""

_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database URL that ncclt can use.

    Attributes:
        url: in SQLAlchemy's spelling; PostgreSQL always with the driver psycopg 3. May hold a password.
        path: the file of an SQLite store, None for PostgreSQL.
        is_default: it is the user's own, not a named one, and need not exist yet.
    """

    url: str
    path: Path | None
    is_default: bool = False

    def __repr__(self) -> str:
        """Omit the URL, which may hold a password."""
        return f"Location(path={self.path!r})"

    def sqlite_uri(self, mode: str) -> str:
        """Return the file as SQLite's own URI, opened `ro` or `rw`: neither creates it.

        Source: sqlite.org/uri.html.
        """
        assert self.path is not None
        return f"file:{quote(os.fsencode(self.path))}?mode={mode}"

    def require_database_file(self) -> None:
        """Refuse a pipe, which SQLite would wait for, and a file so short that SQLite would take it for an empty one.

        Raises:
            StoreError: it is neither a database nor empty, or cannot be looked at.
        """
        assert self.path is not None
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}", hint="check its permissions") from error
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{self.path} is not a file", hint="name another store with --storage")
        if 0 < status.st_size < _SMALLEST_DATABASE:
            raise StoreError(
                f"{self.path} has {status.st_size} bytes and is not a database",
                hint="the file is damaged; restore a backup or name another store with --storage",
            )

    @property
    def optuna_path(self) -> Path | None:
        """Return the file beside an SQLite store in which Optuna keeps its tables."""
        return self.path and self.path.with_name(f"{self.path.stem}.optuna.db")


def default_url() -> str:
    """Return the URL of the user's own store; its folder is made when it is opened."""
    return f"sqlite:///{user_folder('XDG_DATA_HOME', '.local/share') / 'ncclt' / 'ncclt.db'}"


def locate(url: str | None) -> Location:
    """Read a database URL; None = the user's own store.

    Raises:
        UsageError: it is not a URL, or of a database that is not supported or would keep nothing.
    """
    text = default_url() if url is None else url.strip()
    scheme, separator, address = text.partition("://")
    if not separator:
        raise UsageError(f"{text!r} is not a database URL", hint=URL_HINT)
    if scheme in ("sqlite", "sqlite+pysqlite"):
        name = address.removeprefix("/")
        if not address.startswith("/") or name in ("", ":memory:") or name.startswith("file:"):
            raise UsageError(f"{text!r} names no file, so nothing would be kept", hint=URL_HINT)
        if "?" in name:
            raise UsageError(f"{text!r}: an SQLite URL takes no options here", hint=URL_HINT)
        return Location(url=f"sqlite:///{name}", path=Path(name), is_default=url is None)
    if scheme in _POSTGRESQL:
        return Location(url=f"postgresql+psycopg://{address}", path=None)
    raise UsageError(f"{scheme!r} is not supported: use SQLite or PostgreSQL", hint=URL_HINT)


def no_store(location: Location) -> StoreError:
    """Return the error for a named store that does not exist: reading does not create it."""
    where = location.path or "this PostgreSQL database"
    return StoreError(
        f"there is no store at {where}", hint="check --storage; `ncclt tune` and `ncclt admin store migrate` make one"
    )


def prepare_file(location: Location, *, create: bool) -> None:
    """Make the folder of an SQLite file, or check that the file exists; it may be empty."""
    if location.path is None:
        return
    location.require_database_file()
    if not create and not location.path.exists():
        raise StoreError(f"there is no store at {location.path}", hint="open it once with migration to create it")
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {location.path.parent} cannot be made: {error.strerror}",
            hint="name a store that can be written with --storage",
        ) from error

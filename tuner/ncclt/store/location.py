"""Where a store lies: database URLs, read without SQLAlchemy so that `ncclt env` stays fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ncclt.errors import UsageError
from ncclt.home import user_folder

URL_HINT = "write sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"

_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database URL that ncclt can use.

    Attributes:
        url: in SQLAlchemy's spelling; PostgreSQL always with the driver psycopg 3. May hold a password.
        path: the file of an SQLite store, None for PostgreSQL.
    """

    url: str
    path: Path | None

    def __repr__(self) -> str:
        """Leave out the URL: it may hold a password."""
        return f"Location(path={self.path!r})"

    def sqlite_uri(self, mode: str) -> str:
        """Return the file as SQLite's own URI, opened `ro` or `rw`: neither creates it.

        Source: sqlite.org/uri.html.
        """
        assert self.path is not None
        return f"file:{quote(str(self.path))}?mode={mode}"

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
        UsageError: it is no URL, of another database, or of one that would keep nothing.
    """
    text = default_url() if url is None else url.strip()
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise UsageError(f"{text!r} is no database URL", hint=URL_HINT)
    if scheme in ("sqlite", "sqlite+pysqlite"):
        return _sqlite(text, rest)
    if scheme in _POSTGRESQL:
        return Location(url=f"postgresql+psycopg://{rest}", path=None)
    raise UsageError(f"ncclt keeps nothing in {scheme!r}; it knows SQLite and PostgreSQL", hint=URL_HINT)


def _sqlite(text: str, rest: str) -> Location:
    name = rest.removeprefix("/")
    if not rest.startswith("/") or name in ("", ":memory:") or name.startswith("file:"):
        raise UsageError(f"{text!r} names no file, so nothing would be kept", hint=URL_HINT)
    if "?" in name:
        raise UsageError(f"{text!r}: an SQLite URL takes no options here", hint=URL_HINT)
    return Location(url=f"sqlite:///{name}", path=Path(name))

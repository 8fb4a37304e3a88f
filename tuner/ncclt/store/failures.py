"""The one place where a database's exceptions become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from ncclt.errors import StoreError

# Words in SQLite's and PostgreSQL's messages, and what a person can do about it; the first that fits is taken.
_HINTS: tuple[tuple[str, str], ...] = (
    ("database is locked", "another process has been writing for too long; see what it is doing and try again"),
    # Before SQLite's word: the class of PostgreSQL's exception is ReadOnlySqlTransaction.
    ("read-only", "no writes are taken here; connect to the primary, as a user who may write"),
    ("readonly", "give this user the right to write the file and its folder, or name another store with --storage"),
    ("disk is full", "make room on the disk, or name another store with --storage"),
    ("no space left", "make room on the server's disk"),
    ("not a database", "the file is no SQLite database; name another one with --storage"),
    ("malformed", "the file is damaged; restore a backup or name another store with --storage"),
    ("unable to open database file", "check that the folder exists and can be written"),
    # SQLite needs working fcntl locks (sqlite.org/faq.html, 5); Lustre has them only when mounted with -o flock.
    ("locking protocol", "this file system has no locks; put the store on a local disk or use PostgreSQL"),
    ("disk i/o error", "if this is a network file system, put the store on a local disk or use PostgreSQL"),
    ("no such table", "the tables are missing; open the store once with migration"),
    ("no such column", "the tables are behind this ncclt; open the store once with migration"),
    ("undefinedtable", "the tables are missing; open the store once with migration"),
    ("undefinedcolumn", "the tables are behind this ncclt; open the store once with migration"),
    ("permission denied for table", "grant this user the rights to read and write the tables in the schema ncclt"),
    ("permission denied", "grant this user the right to create schemas in the database, or create them for it"),
    ("authentication", "check user and password in the storage URL"),
    ("does not exist", "check user and database in the storage URL, and that both were created"),
    ("connection", "check host and port in the storage URL, and that the server runs"),
)  # fmt: skip

_NO_HINT = "check the storage URL, or name another store with --storage"


@contextmanager
def translated(shown: str, *, conflict: str = "") -> Iterator[None]:
    """Turn every failure of the database inside the block into a StoreError.

    Args:
        shown: the store, for people; without password.
        conflict: what it means if a row clashes with one that is there.
    """
    try:
        yield
    except IntegrityError as error:
        message = conflict or f"the store {shown} refused a row: {_one_line(error)}"
        raise StoreError(message, hint="two processes may be working on the same study; stop one") from error
    # UnicodeEncodeError: a name that is no text (broken UTF-8 in an argument) fails before it reaches the database.
    except (SQLAlchemyError, UnicodeEncodeError) as error:
        raise StoreError(f"the store {shown} cannot be used: {_one_line(error)}", hint=_hint(error)) from error


def _one_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__


def _hint(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = f"{type(cause).__name__} {cause}".lower()
    return next((hint for words, hint in _HINTS if words in text), _NO_HINT)

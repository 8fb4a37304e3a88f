"""Turns a database's exceptions into ours, and repeats what may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from ncclt.errors import StoreError, UsageError

_MISSING = "the tables are missing: run `ncclt admin store migrate` with the same --storage"
_BEHIND = "the tables are behind this ncclt: run `ncclt admin store migrate` with the same --storage"

# Words in SQLite's and PostgreSQL's messages, and what a user can do about it; the first match counts.
_HINTS: tuple[tuple[str, str], ...] = (
    ("database is locked", "another process has been writing for too long; see what it is doing and try again"),
    # Before SQLite's `readonly`: the class of PostgreSQL's exception is ReadOnlySqlTransaction.
    ("read-only", "no writes are taken here; connect to the primary, as a user who may write"),
    ("readonly", "give this user the right to write the file and its folder, or name another store with --storage"),
    ("disk is full", "make room on the disk, or name another store with --storage"),
    ("no space left", "make room on the server's disk"),
    ("not a database", "the file is not an SQLite database; name another one with --storage"),
    ("malformed", "the file is damaged; restore a backup or name another store with --storage"),
    ("unable to open database file", "check that the folder exists and can be written"),
    # SQLite needs working fcntl locks (sqlite.org/faq.html, 5); Lustre has them only when mounted with -o flock.
    ("locking protocol", "this file system has no locks; put the store on a local disk or use PostgreSQL"),
    # What SQLite says of everything but a full disk: a quota (EDQUOT), a limit of the process (EFBIG), a lost mount.
    (
        "disk i/o error",
        "make room: the quota of this user may be used up; on a network file system without one, put the store "
        "on a local disk or use PostgreSQL",
    ),
    ("no such table", _MISSING),
    ("no such column", _BEHIND),
    ("undefinedtable", _MISSING),
    ("undefinedcolumn", _BEHIND),
    ("permission denied for table", "grant this user the rights to read and write the tables in the schema ncclt"),
    ("permission denied", "grant this user the right to create schemas in the database, or create them for it"),
    ("authentication", "check user and password in the storage URL"),
    ("does not exist", "check user and database in the storage URL, and that both were created"),
    ("connection", "check host and port in the storage URL, and that the server runs"),
)

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each repetition; a restart of PostgreSQL takes some seconds."""

_TRANSIENT_STATES = ("08", "40", "53", "57P")
"""SQLSTATE classes of transient failures: connection, rollback (deadlock, serialization), resources, shutdown.

Source: postgresql.org/docs/current/errcodes-appendix.html.
"""

Owner = TypeVar("Owner", bound=Any)
Given = ParamSpec("Given")
Answer = TypeVar("Answer")

IMPOSSIBLE_VALUES = (DataError, UnicodeEncodeError)
"""Raised for text with broken UTF-8 or, in PostgreSQL, a NUL, and for a number that no column can hold."""

_NO_HINT = "check the storage URL, or name another store with --storage"


class LostTransactionError(StoreError):
    """PostgreSQL ended the transaction for a transient reason; whether it was committed may not be known."""


def repeatable(method: Callable[Concatenate[Owner, Given], Answer]) -> Callable[Concatenate[Owner, Given], Answer]:
    """Repeat a method, after growing pauses, when its transaction was lost and its owner `is_patient`.

    Reading is safe to repeat; a writing method must find out whether it was committed before the answer was lost.
    """

    @wraps(method)
    def repeated(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        for pause_s in _PAUSES_S if self.is_patient else ():
            try:
                return method(self, *args, **kwargs)
            except LostTransactionError:
                time.sleep(pause_s)
        return method(self, *args, **kwargs)

    return repeated


@contextmanager
def translated(shown: str, *, conflict: str = "") -> Iterator[None]:
    """Turn every failure of the database inside the block into a StoreError, or a UsageError where a value is at fault.

    Args:
        shown: the store for messages, without password.
        conflict: the message for a row that violates a constraint.
    """
    try:
        yield
    except IntegrityError as error:
        message = conflict or f"the store {shown} refused a row: {one_line(error)}"
        raise StoreError(message, hint="two processes may be working on the same study; stop one") from error
    except IMPOSSIBLE_VALUES as error:
        raise impossible_value(error) from error
    except SQLAlchemyError as error:
        kind = LostTransactionError if _is_transient(error) else StoreError
        raise kind(f"the store {shown} cannot be used: {one_line(error)}", hint=hint_for(error)) from error


def impossible_value(error: Exception) -> UsageError:
    """Return the error for a value that no column can hold; the store itself is well."""
    return UsageError(f"no store can hold such a value: {one_line(error)}", hint="check names, ids and numbers")


def _is_transient(error: Exception) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else None
    if not type(cause).__module__.startswith("psycopg"):
        return False  # SQLite itself waits for as long as makes sense
    state: str | None = getattr(cause, "sqlstate", None)
    # A broken or refused connection has no state.
    return state.startswith(_TRANSIENT_STATES) if state else type(cause).__name__ == "OperationalError"


def one_line(error: Exception) -> str:
    """Return the message of the database's driver, without SQLAlchemy's additions."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__


def hint_for(error: Exception) -> str:
    """Return the hint for a failure of the database."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = f"{type(cause).__name__} {cause}".lower()
    return next((hint for words, hint in _HINTS if words in text), _NO_HINT)

"""JSON as it is stored.

Documents are kept in text columns and never as a database's own JSON type: text comes back bit for bit (floats
included), may hold NaN, and is the same for the standard library's sqlite3 and for SQLAlchemy. Everything outside
ASCII is escaped, so output of a crashed program with NUL or broken UTF-8 in it can be stored too: PostgreSQL
refuses both in plain text columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ncclt.core.documents import Documented
from ncclt.errors import NccltError, StoreError

Record = TypeVar("Record", bound=Documented)


def to_text(document: Any) -> str:
    """Write a document as compact ASCII."""
    return json.dumps(document, separators=(",", ":"))


def read_stored(record: type[Record], name: str, text: str, /, **columns: object) -> Record:
    """Return the record of a stored document and of the fields that are columns; see `stored`."""
    with stored(name):
        return record.from_document(json.loads(text) | columns)


@contextmanager
def stored(name: str) -> Iterator[None]:
    """Turn whatever is wrong with a stored document into one StoreError that names it."""
    try:
        yield
    except StoreError:
        raise  # the store itself says better what is wrong with it
    except (NccltError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{name} in the store cannot be read: {error}",
            hint="it was changed by hand or written by a newer ncclt; update ncclt or restore a backup",
        ) from error

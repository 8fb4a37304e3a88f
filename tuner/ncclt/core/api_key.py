"""Keys of the service: who may do what, on which clusters, and until when. The secret itself is never kept."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import UsageError

PREFIX = "ncclt_"
"""Secret scanners find a key by it."""

USUAL_DAYS = 365
"""Life of a key, unless another one is requested."""

MOST_DAYS = 99999

MOST_NOTE = 200
"""Max characters of a note."""

_SECRET_BYTES = 32


class Role(StrEnum):
    """Permissions of a key; each role includes those before it.

    `env` is for launchers: it fetches answers and reports for the jobs that were given them, and reads nothing else.
    """

    ENV = "env"
    READ = "read"
    TUNE = "tune"
    APPROVE = "approve"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Return True if this role has all permissions of the other."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Documented):
    """A key as it is stored.

    Attributes:
        id: short, public; `user NAME` is not a key but a person whom a proxy has signed in.
        role: permissions of the key.
        clusters: names of those it is for; empty = all.
        note: user or purpose of the key.
        created: ISO time.
        expires: ISO time; empty = never.
        revoked: ISO time; empty = it is valid.
    """

    SHAPE: ClassVar = Shape(schema=1)

    id: str
    role: Role
    clusters: tuple[str, ...] = ()
    note: str = ""
    created: str = ""
    expires: str = ""
    revoked: str = ""

    @property
    def is_user(self) -> bool:
        """Return True if it stands for a person signed in by a proxy."""
        return self.id.startswith("user ")

    @property
    def holder(self) -> str:
        """Return the holder of the key: `key ID`, or `user NAME`."""
        return self.id if self.is_user else f"key {self.id}"

    def invalid(self, now: str) -> str:
        """Return the reason why the key is not valid; empty = it is.

        Args:
            now: ISO time in UTC, as the others.
        """
        if self.revoked:
            return f"the {self.holder} was revoked"
        return f"the {self.holder} has expired" if self.expires and self.expires <= now else ""


def new_key(
    digest: str, role: Role, *, clusters: Collection[str] = (), note: str = "", now: str, days: int | None
) -> ApiKey:
    """Return a new key.

    Args:
        digest: hash of its secret, which its id comes from.
        role, clusters, note: as of `ApiKey`.
        now: ISO time in UTC.
        days: until it expires; None = never.

    Raises:
        UsageError: the note is too long or not printable.
    """
    if len(note) > MOST_NOTE or not note.isprintable():
        raise UsageError(f"a note has at most {MOST_NOTE} printable characters", hint="shorten it to one line")
    end = None if days is None else datetime.fromisoformat(now) + timedelta(days=days)
    return ApiKey(
        id=digest[:12],
        role=role,
        clusters=tuple(sorted(set(clusters))),
        note=note,
        created=now,
        expires=end.isoformat(timespec="milliseconds") if end else "",
    )


def new_secret() -> str:
    """Return a new secret of 32 random bytes."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return the stored form of a secret, its SHA-256; random bytes need no slower hash."""
    return hashlib.sha256(secret.encode()).hexdigest()

"""Keys of the service as rows, found by the hash of their secret."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import insert, select, update

from ncclt.core.api_key import ApiKey
from ncclt.core.revision import Action, Actor, shorten_reason
from ncclt.errors import NotFoundError
from ncclt.store.documents import read_stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.history import note_event
from ncclt.store.part import StorePart
from ncclt.store.tables import keys
from ncclt.user_dirs import account_name


class Keys(StorePart):
    """The keys of the service."""

    @repeatable
    def add(self, key: ApiKey, *, digest: str, by: Actor | None = None) -> None:
        """Store a key under the hash of its secret, once, with its entry in the history.

        Args:
            digest: hash of its secret.
            by: its creator; None = the user of this process.

        Raises:
            StoreError: another key has its id.
        """
        with self._database.alone(conflict=f"the key {key.id} is already stored") as connection:
            row = {"id": key.id, "digest": digest, "document": to_text(key.to_document())}
            equal = [keys.c[name] == value for name, value in row.items()]
            if connection.execute(select(keys.c.id).where(*equal)).first() is None:
                connection.execute(insert(keys).values(**row))
                why = ", ".join(filter(None, (f"{key.id}: {key.role}", *key.clusters, key.note)))
                actor = Actor(who=by.who if by else account_name(), why=shorten_reason(why))
                note_event(connection, Action.KEY_CREATED, actor, self._clock())

    @repeatable
    def find(self) -> dict[str, ApiKey]:
        """Return every key by the hash of its secret, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(keys).order_by(keys.c.sequence)).all()
        return {row.digest: _read(row.id, row.document) for row in rows}

    @repeatable
    def revoke(self, id: str, *, now: str, by: Actor | None = None) -> ApiKey:
        """Revoke a key, from `now` on, and return it; one that was revoked before stays as it is.

        Args:
            now: ISO time.
            by: actor; None = the user of this process.

        Raises:
            NotFoundError: there is no key of this id.
        """
        with self._database.alone() as connection:
            document = connection.execute(select(keys.c.document).where(keys.c.id == id)).scalar()
            if document is None:
                raise NotFoundError(f"there is no key {id!r}", hint="`ncclt admin keys list` shows all")
            key = _read(id, document)
            if not key.revoked:
                key = replace(key, revoked=now)
                connection.execute(update(keys).where(keys.c.id == id).values(document=to_text(key.to_document())))
                actor = Actor(who=by.who if by else account_name(), why=id)
                note_event(connection, Action.KEY_REVOKED, actor, self._clock())
        return key


def _read(id: str, document: str) -> ApiKey:
    return read_stored(ApiKey, f"the key {id}", document)

"""Preflights as rows."""

from __future__ import annotations

import json

from sqlalchemy import Connection, insert, select

from ncclt.core.fabric import Preflight, preflight_from_document
from ncclt.store.documents import stored, to_text
from ncclt.store.tables import preflights


def add_preflight(connection: Connection, preflight: Preflight) -> None:
    """Store a preflight."""
    connection.execute(
        insert(preflights).values(
            id=preflight.id,
            cluster=preflight.cluster,
            simulated=preflight.simulated,
            state=preflight.state.value,
            created=preflight.created,
            document=to_text(preflight.to_document()),
        )
    )


def find_preflights(connection: Connection, *, cluster: str | None, limit: int) -> tuple[Preflight, ...]:
    """Return preflights, newest first; None = of any cluster."""
    table = preflights.c
    query = select(table.id, table.document).order_by(table.sequence.desc()).limit(limit)
    if cluster is not None:
        query = query.where(table.cluster == cluster)
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def _read(id: str, text: str) -> Preflight:
    with stored(f"the preflight {id}"):
        return preflight_from_document(json.loads(text))

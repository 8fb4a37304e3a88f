"""Preflights as rows."""

from __future__ import annotations

import json

from sqlalchemy import Connection, insert, select, text

from ncclt.core.preflight import Preflight, preflight_from_document
from ncclt.store.documents import is_stored, stored, to_text
from ncclt.store.revisions import FIRST_WITH_PREFLIGHTS, VERSION_QUERY
from ncclt.store.tables import preflights


def add_preflight(connection: Connection, preflight: Preflight) -> None:
    """Store a preflight, unless it is there already."""
    document = to_text(preflight.to_document())
    if is_stored(connection, preflights, preflight.id, document):
        return
    connection.execute(
        insert(preflights).values(
            id=preflight.id,
            cluster=preflight.cluster,
            simulated=preflight.simulated,
            state=preflight.state.value,
            created=preflight.created,
            document=document,
        )
    )


def find_preflights(connection: Connection, *, cluster: str | None, limit: int) -> tuple[Preflight, ...]:
    """Return preflights, newest first; None = of any cluster.

    A store that is opened without migration may be older than the preflights.
    """
    if (connection.execute(text(VERSION_QUERY)).scalar() or "") < FIRST_WITH_PREFLIGHTS:
        return ()
    table = preflights.c
    query = select(table.id, table.document).order_by(table.sequence.desc()).limit(limit)
    if cluster is not None:
        query = query.where(table.cluster == cluster)
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def _read(id: str, document: str) -> Preflight:
    with stored(f"the preflight {id}"):
        return preflight_from_document(json.loads(document))

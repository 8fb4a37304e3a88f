"""Attestations as rows."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, insert, select, text

from ncclt.core.attestation import Attestation, attestation_from_document
from ncclt.store.documents import stored, to_text
from ncclt.store.revisions import FIRST_WITH_ATTESTATIONS, VERSION_QUERY
from ncclt.store.tables import attestations


def add_attestation(connection: Connection, attestation: Attestation) -> bool:
    """Store an attestation unless the same finding is there already; tell whether it was new."""
    table = attestations.c
    if connection.execute(select(table.id).where(table.id == attestation.id)).first() is not None:
        return False
    connection.execute(
        insert(attestations).values(
            id=attestation.id,
            recommendation=attestation.recommendation,
            effect=attestation.effect.value,
            created=attestation.created,
            document=to_text(attestation.to_document()),
        )
    )
    return True


def find_attestations(
    connection: Connection, recommendations: Collection[str], *, limit: int
) -> tuple[Attestation, ...]:
    """Return attestations of some recommendations, newest first.

    A store that is opened without migration may be older than the attestations.
    """
    if not recommendations or (connection.execute(text(VERSION_QUERY)).scalar() or "") < FIRST_WITH_ATTESTATIONS:
        return ()
    table = attestations.c
    query = (
        select(table.id, table.document)
        .where(table.recommendation.in_(list(recommendations)))
        .order_by(table.sequence.desc())
        .limit(limit)
    )
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def newest_effects(connection: Connection, recommendations: Collection[str]) -> dict[str, str]:
    """Return the word of the newest attestation of each recommendation that has one."""
    if not recommendations or (connection.execute(text(VERSION_QUERY)).scalar() or "") < FIRST_WITH_ATTESTATIONS:
        return {}
    table = attestations.c
    query = select(table.recommendation, table.effect).where(table.recommendation.in_(list(recommendations)))
    return {row.recommendation: row.effect for row in connection.execute(query.order_by(table.sequence))}


def _read(id: str, document: str) -> Attestation:
    with stored(f"the attestation {id}"):
        return attestation_from_document(json.loads(document))

"""Verifications as rows."""

from __future__ import annotations

import json

from sqlalchemy import Connection, insert, select, text

from ncclt.core.verification import Verification, verification_from_document
from ncclt.store.documents import is_stored, stored, to_text
from ncclt.store.revisions import FIRST_WITH_VERIFICATIONS, VERSION_QUERY
from ncclt.store.tables import verifications


def add_verification(connection: Connection, verification: Verification) -> None:
    """Store a verification, unless it is there already."""
    document = to_text(verification.to_document())
    if is_stored(connection, verifications, verification.id, document):
        return
    connection.execute(
        insert(verifications).values(
            id=verification.id,
            cluster=verification.cluster,
            model=verification.model,
            recommendation=verification.recommendation,
            decision=verification.verdict.decision.value,
            created=verification.created,
            document=document,
        )
    )


def find_verifications(
    connection: Connection,
    *,
    cluster: str | None,
    model: str | None,
    recommendation: str | None,
    limit: int | None,
) -> tuple[Verification, ...]:
    """Return verifications, newest first; None = any.

    A store that is opened without migration may be older than the verifications.
    """
    if (connection.execute(text(VERSION_QUERY)).scalar() or "") < FIRST_WITH_VERIFICATIONS:
        return ()
    table = verifications.c
    query = select(table.id, table.document).order_by(table.sequence.desc()).limit(limit)
    for column, wanted in (
        (table.cluster, cluster), (table.model, model), (table.recommendation, recommendation),
    ):  # fmt: skip
        if wanted is not None:
            query = query.where(column == wanted)
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def _read(id: str, document: str) -> Verification:
    with stored(f"the verification {id}"):
        return verification_from_document(json.loads(document))

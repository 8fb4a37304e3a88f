"""Checks as rows."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, func, insert, select, text

from ncclt.core.recheck import Check, check_from_document
from ncclt.store.documents import is_stored, stored, to_text
from ncclt.store.revisions import FIRST_WITH_CHECKS, VERSION_QUERY
from ncclt.store.tables import checks


def add_check(connection: Connection, check: Check) -> None:
    """Store a check, unless it is there already."""
    document = to_text(check.to_document())
    if is_stored(connection, checks, check.id, document):
        return
    connection.execute(
        insert(checks).values(
            id=check.id,
            recommendation=check.recommendation,
            freshness=check.freshness.value,
            created=check.created,
            document=document,
        )
    )


def find_checks(connection: Connection, *, recommendation: str) -> tuple[Check, ...]:
    """Return the checks of a recommendation, newest first."""
    table = checks.c
    query = select(table.id, table.document).where(table.recommendation == recommendation)
    return tuple(_read(row.id, row.document) for row in connection.execute(query.order_by(table.sequence.desc())))


def staleness_of(connection: Connection, recommendations: Collection[str]) -> dict[str, str]:
    """Return why recommendations are stale: only those whose newest check says so.

    A store that is opened without migration may be older than the checks.
    """
    if not recommendations or (connection.execute(text(VERSION_QUERY)).scalar() or "") < FIRST_WITH_CHECKS:
        return {}
    table = checks.c
    newest = (
        select(func.max(table.sequence))
        .where(table.recommendation.in_(list(recommendations)))
        .group_by(table.recommendation)
    )
    query = select(table.id, table.recommendation, table.document).where(
        table.sequence.in_(newest), table.freshness == "stale"
    )
    return {row.recommendation: _read(row.id, row.document).staleness for row in connection.execute(query)}


def _read(id: str, text: str) -> Check:
    with stored(f"the check {id}"):
        return check_from_document(json.loads(text))

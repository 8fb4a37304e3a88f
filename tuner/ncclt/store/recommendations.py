"""Recommendations as rows: publishing assigns the revision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection, func, insert, select

from ncclt.core.recommendation import Recommendation
from ncclt.errors import NotFoundError
from ncclt.store.documents import stored, to_text
from ncclt.store.tables import recommendations


def publish(connection: Connection, recommendation: Recommendation, *, now: str) -> Recommendation:
    """Store a recommendation under the next revision of its cluster, model and fingerprint; run it alone.

    An equal one that is already stored is returned as it was stored.
    """
    table = recommendations.c
    text = connection.execute(select(table.document).where(table.id == recommendation.id)).scalar()
    if text is not None:
        there = _read(recommendation.id, text)
        # A different one of the same id fails on the insert below.
        if there == replace(recommendation, revision=there.revision, created=recommendation.created or there.created):
            return there
    fingerprint = recommendation.fingerprint.digest()
    alike = (table.cluster == recommendation.cluster, table.model == recommendation.model)
    newest = connection.execute(
        select(func.max(table.revision)).where(*alike, table.fingerprint == fingerprint)
    ).scalar()
    numbered = replace(recommendation, revision=(newest or 0) + 1, created=recommendation.created or now)
    connection.execute(
        insert(recommendations).values(
            id=numbered.id,
            revision=numbered.revision,
            study=numbered.study,
            cluster=numbered.cluster,
            model=numbered.model,
            fingerprint=fingerprint,
            created=numbered.created,
            document=to_text(numbered.to_document()),
        )
    )
    return numbered


def find_recommendations(
    connection: Connection, *, cluster: str | None, model: str | None, study: str | None
) -> tuple[Recommendation, ...]:
    """Return recommendations, newest first; None = any."""
    table = recommendations.c
    query = select(table.id, table.document).order_by(table.sequence.desc())
    for column, wanted in ((table.cluster, cluster), (table.model, model), (table.study, study)):
        if wanted is not None:
            query = query.where(column == wanted)
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def newest_of(connection: Connection, study_ids: Iterable[str]) -> dict[str, Recommendation]:
    """Return the newest recommendation of each study that has one."""
    table = recommendations.c
    newest = select(func.max(table.sequence)).where(table.study.in_(list(study_ids))).group_by(table.study)
    query = select(table.study, table.id, table.document).where(table.sequence.in_(newest))
    return {row.study: _read(row.id, row.document) for row in connection.execute(query)}


def get_recommendation(connection: Connection, id: str) -> Recommendation:
    """Return one revision.

    Raises:
        NotFoundError: no recommendation has this id.
    """
    text = connection.execute(select(recommendations.c.document).where(recommendations.c.id == id)).scalar()
    if text is None:
        raise NotFoundError(f"there is no recommendation {id!r}", hint="`ncclt studies list` shows what was published")
    return _read(id, text)


def _read(id: str, text: str) -> Recommendation:
    with stored(f"the recommendation {id}"):
        return Recommendation.from_document(json.loads(text))

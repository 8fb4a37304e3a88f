"""Recommendations as rows: publishing assigns the revision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, func, insert, select, text

from ncclt.core.recommendation import Recommendation
from ncclt.errors import NotFoundError
from ncclt.store.documents import stored, to_text
from ncclt.store.revisions import FIRST_WITH_ORIGINS, VERSION_QUERY
from ncclt.store.tables import changes, recommendations


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What jobs are given differently since some number.

    Attributes:
        number: of the last change.
        pairs: (cluster, workload) whose recommendations changed; an empty cluster stands for all of them.
    """

    number: int
    pairs: frozenset[tuple[str, str]]


def publish(connection: Connection, recommendation: Recommendation, *, now: str) -> Recommendation:
    """Store a recommendation under the next revision of its cluster, model and fingerprint; run it alone.

    An equal one that is already stored is returned as it was stored.
    """
    table = recommendations.c
    held = connection.execute(select(table.document).where(table.id == recommendation.id)).scalar()
    if held is not None:
        there = _read(recommendation.id, held)
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
            origin=numbered.origin.value,
        )
    )
    note_change(connection, cluster=numbered.cluster, model=numbered.model)
    return numbered


def note_change(connection: Connection, *, cluster: str = "", model: str) -> None:
    """Note that what jobs are given may have changed, by default on every cluster; run it alone, with the change."""
    last = connection.execute(select(func.max(changes.c.number))).scalar() or 0
    connection.execute(delete(changes).where(changes.c.cluster == cluster, changes.c.model == model))
    connection.execute(insert(changes).values(cluster=cluster, model=model, number=last + 1))


def changes_since(connection: Connection, number: int) -> Changes | None:
    """Return what has changed after a number; None in a store that was not migrated to note it."""
    if not _has_origins(connection):
        return None
    found = connection.execute(select(changes).where(changes.c.number > number)).all()
    return Changes(
        number=max((row.number for row in found), default=number),
        pairs=frozenset((row.cluster, row.model) for row in found),
    )


def find_newest(connection: Connection, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    """Return the newest recommendation of each fingerprint and origin, newest first: all that a job can be given."""
    if not _has_origins(connection):
        return find_recommendations(connection, cluster=cluster, model=model, study=None)
    table = recommendations.c
    newest = (
        select(func.max(table.sequence))
        .where(table.cluster == cluster, table.model == model)
        .group_by(table.fingerprint, table.origin)
    )
    query = select(table.id, table.document).where(table.sequence.in_(newest)).order_by(table.sequence.desc())
    return tuple(_read(row.id, row.document) for row in connection.execute(query))


def _has_origins(connection: Connection) -> bool:
    return (connection.execute(text(VERSION_QUERY)).scalar() or "") >= FIRST_WITH_ORIGINS


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
    document = connection.execute(select(recommendations.c.document).where(recommendations.c.id == id)).scalar()
    if document is None:
        raise NotFoundError(f"there is no recommendation {id!r}", hint="`ncclt studies list` shows what was published")
    return _read(id, document)


def _read(id: str, document: str) -> Recommendation:
    with stored(f"the recommendation {id}"):
        return Recommendation.from_document(json.loads(document))

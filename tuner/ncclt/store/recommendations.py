"""Recommendations as rows: publishing assigns the revision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, union_all

from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import RevisionState
from ncclt.core.rollout import OPEN_STATES, RollOut
from ncclt.store.documents import stored, to_text
from ncclt.store.names import unknown_recommendation
from ncclt.store.tables import Names, changes, is_named, recommendations, rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What jobs are given differently since some number.

    Attributes:
        number: of the last change.
        pairs: (cluster, workload) whose recommendations changed; an empty cluster stands for all of them.
    """

    number: int
    pairs: frozenset[tuple[str, str]]


def find_equal(connection: Connection, recommendation: Recommendation) -> Recommendation | None:
    """Return an equal recommendation as it was stored; None where there is none of this id, or a different one."""
    table = recommendations.c
    held = connection.execute(select(table.document).where(table.id == recommendation.id)).scalar()
    if held is None:
        return None
    there = read_recommendation(recommendation.id, held)
    same = replace(recommendation, revision=there.revision, created=recommendation.created or there.created)
    return there if there == same else None


def publish(connection: Connection, recommendation: Recommendation, *, now: str) -> Recommendation:
    """Store a candidate under the next revision of its cluster, model and fingerprint; run it alone."""
    table = recommendations.c
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
            state=RevisionState.CANDIDATE.value,
            pinned=False,
            unverified=False,
        )
    )
    return numbered


def note_change(connection: Connection, *, cluster: str = "", model: str) -> None:
    """Note that what jobs are given may have changed, by default on every cluster; run it alone, with the change."""
    last = connection.execute(select(func.max(changes.c.number))).scalar() or 0
    connection.execute(delete(changes).where(changes.c.cluster == cluster, changes.c.model == model))
    connection.execute(insert(changes).values(cluster=cluster, model=model, number=last + 1))


def changes_since(connection: Connection, number: int) -> Changes:
    """Return what has changed after a number."""
    found = connection.execute(select(changes).where(changes.c.number > number)).all()
    return Changes(
        number=max((row.number for row in found), default=number),
        pairs=frozenset((row.cluster, row.model) for row in found),
    )


def find_newest(connection: Connection, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    """Return what jobs can be given, newest first: of each fingerprint and origin the active revision.

    Where there is none, the one that is rolled out to a share of the jobs.
    """
    table = recommendations.c
    of = (table.cluster == cluster, table.model == model)
    alone = (*_open(cluster, model), rollouts.c.control == "")
    wanted = union_all(
        select(table.sequence).where(*of, table.state == RevisionState.ACTIVE.value),
        select(table.sequence).where(*of, table.id.in_(select(rollouts.c.recommendation).where(*alone))),
    )
    query = select(table.id, table.document).where(table.sequence.in_(wanted)).order_by(table.sequence.desc())
    return tuple(read_recommendation(row.id, row.document) for row in connection.execute(query))


def find_rolled_out(connection: Connection, *, cluster: str, model: str) -> tuple[tuple[RollOut, Recommendation], ...]:
    """Return the open roll-outs of a pair, each with the revision that is rolled out."""
    joined = rollouts.join(recommendations, recommendations.c.id == rollouts.c.recommendation)
    columns = (recommendations.c.id, recommendations.c.document, rollouts.c.document.label("rollout"))
    found = []
    for row in connection.execute(select(*columns).select_from(joined).where(*_open(cluster, model))):
        with stored(f"a roll-out of {row.id}"):
            rollout = RollOut.from_document(json.loads(row.rollout))
        found.append((rollout, read_recommendation(row.id, row.document)))
    return tuple(found)


def _open(cluster: str, model: str) -> tuple[ColumnElement[bool], ...]:
    table = rollouts.c
    return (table.cluster == cluster, table.model == model, table.state.in_(OPEN_STATES))


def find_recommendations(
    connection: Connection, *, cluster: Names, model: str | None, study: str | None
) -> tuple[Recommendation, ...]:
    """Return recommendations, newest first; None = any."""
    table = recommendations.c
    where = (*is_named(table.cluster, cluster), *is_named(table.model, model), *is_named(table.study, study))
    query = select(table.id, table.document).where(*where).order_by(table.sequence.desc())
    return tuple(read_recommendation(row.id, row.document) for row in connection.execute(query))


def find_active(
    connection: Connection, *, model: str | None = None, cluster: str | None = None
) -> tuple[Recommendation, ...]:
    """Return the active revisions of a workload, of a cluster or of all; None = any."""
    table = recommendations.c
    query = select(table.id, table.document).where(table.state == RevisionState.ACTIVE.value)
    for column, wanted in ((table.model, model), (table.cluster, cluster)):
        if wanted is not None:
            query = query.where(column == wanted)
    return tuple(read_recommendation(row.id, row.document) for row in connection.execute(query))


def newest_of(connection: Connection, study_ids: Iterable[str]) -> dict[str, Recommendation]:
    """Return the newest recommendation of each study that has one."""
    table = recommendations.c
    newest = select(func.max(table.sequence)).where(table.study.in_(list(study_ids))).group_by(table.study)
    query = select(table.study, table.id, table.document).where(table.sequence.in_(newest))
    return {row.study: read_recommendation(row.id, row.document) for row in connection.execute(query)}


def get_recommendation(connection: Connection, id: str) -> Recommendation:
    """Return one revision.

    Raises:
        NotFoundError: no recommendation has this id.
    """
    document = connection.execute(select(recommendations.c.document).where(recommendations.c.id == id)).scalar()
    if document is None:
        raise unknown_recommendation(id)
    return read_recommendation(id, document)


def read_recommendation(id: str, document: str) -> Recommendation:
    """Return the recommendation of a stored document."""
    with stored(f"the recommendation {id}"):
        return Recommendation.from_document(json.loads(document))

"""Published recommendations: those that jobs can be given, why some are stale, and overviews of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, delete, func, insert, select, text

from ncclt.core.cluster import Cluster
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import SHAPE_PARTS, Recommendation, changed_cluster, replaced_workload
from ncclt.core.revision import RevisionState
from ncclt.core.rollout import RolledOut, RollOut, group_arms
from ncclt.core.trial import TimesOrigin
from ncclt.core.workload import Workload
from ncclt.store.documents import read_stored
from ncclt.store.failures import repeatable
from ncclt.store.leases import abandoned, is_running
from ncclt.store.names import unknown_recommendation
from ncclt.store.part import Shipped, StorePart, unscoped
from ncclt.store.readonly import NEWEST, ROLLED_OUT
from ncclt.store.tables import (
    Names,
    changes,
    clusters,
    is_named,
    recommendations,
    records,
    split_named,
    studies,
    workloads,
)

_PREFERRED = (TimesOrigin.MEASURED, TimesOrigin.RECORDED, TimesOrigin.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A workload on a cluster at a glance.

    Attributes:
        cluster, model: names.
        recommendation: the newest revision of the best origin, as a job would get it; None = none was published.
        shapes: fingerprints with a revision: other sizes of the job or releases of NCCL.
        running: studies that are running now.
    """

    cluster: str
    model: str
    recommendation: Recommendation | None
    shapes: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintPeriod:
    """Revisions of a cluster under one fingerprint, and their period.

    Attributes:
        fingerprint: its digest.
        revisions: how many were published.
        first, last: ISO times of the oldest and of the newest.
    """

    fingerprint: str
    revisions: int
    first: str
    last: str


class Recommendations(StorePart):
    """The published recommendations, each with the reason why it is stale, if it is."""

    @repeatable
    def get(self, id: str) -> Recommendation:
        """Return one published revision.

        Raises:
            NotFoundError: no recommendation has this id.
        """
        with self._database.reading() as connection:
            recommendation = get_recommendation(connection, id)
            if not self._is_visible(recommendation.cluster):
                raise unknown_recommendation(id)
            return with_staleness(connection, (recommendation,), self._shipped)[0]

    @repeatable
    def find(
        self,
        *,
        id: Names = None,
        cluster: Names = None,
        model: str | None = None,
        study: str | None = None,
        origin: TimesOrigin | None = None,
        since: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> tuple[Recommendation, ...]:
        """Return recommendations, newest first.

        Args:
            id: one or several; None = any.
            cluster, model: names; None = any.
            study: id of a study; None = any.
            origin: of their times; None = any.
            since: ISO time in UTC; those published earlier are left out.
            after: id of the last one of the page before; None = from the newest on.
            limit: how many at most; None = all.
        """
        table = recommendations.c
        where = (
            table.created >= since,
            *is_named(table.id, id),
            *is_named(table.cluster, self._within(cluster)),
            *is_named(table.model, model),
            *is_named(table.study, study),
            *is_named(table.origin, origin and origin.value),
        )
        query = select(table.id, table.document).where(*where).order_by(table.sequence.desc()).limit(limit)
        if after is not None:
            last = recommendations.alias()
            query = query.where(table.sequence < select(last.c.sequence).where(last.c.id == after).scalar_subquery())
        with self._database.reading() as connection:
            return self._read(connection, connection.execute(query).all())

    @repeatable
    def newest(self, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
        """Return the active recommendation of each fingerprint and origin, newest first; for `select`.

        Where none is active, those that are rolled out to shares of the jobs; `ncclt.deliver.variant` decides which
        of them a job gets.
        """
        if not self._is_visible(cluster):
            return ()
        query = text(f"SELECT r.id, r.document {NEWEST}")
        with self._database.reading() as connection:
            return self._read(connection, connection.execute(query, {"cluster": cluster, "model": model}).all())

    @repeatable
    def rolled_out(self, *, cluster: str, model: str) -> tuple[RolledOut, ...]:
        """Return the open roll-outs of a pair, each with the revisions of its arms."""
        if not self._is_visible(cluster):
            return ()
        query = text(f"SELECT r.id, r.document, o.document AS rollout {ROLLED_OUT}")
        with self._database.reading() as connection:
            rows = connection.execute(query, {"cluster": cluster, "model": model}).all()
            running = [read_stored(RollOut, "a roll-out", row.rollout) for row in rows]
            return group_arms(zip(running, self._read(connection, rows), strict=True))

    @unscoped
    @repeatable
    def changes(self, since: int) -> tuple[int, frozenset[tuple[str, str]]]:
        """Return the number of the last change, and the pairs whose answers changed since a number, 0 at first.

        A pair is (cluster, workload); an empty cluster stands for all of them.
        """
        with self._database.reading() as connection:
            rows = connection.execute(select(changes).where(changes.c.number > since)).all()
        newest = max((row.number for row in rows), default=since)
        return newest, frozenset((row.cluster, row.model) for row in rows)

    @repeatable
    def stale(self, *, cluster: Names = None) -> tuple[Recommendation, ...]:
        """Return the active revisions that are stale, newest first, but those that a newer revision replaces.

        A newer revision for the same jobs, active or a candidate, that is not stale needs nothing but approval.

        Args:
            cluster: name; None = any.
        """
        table, states = recommendations.c, (RevisionState.ACTIVE.value, RevisionState.CANDIDATE.value)
        query = select(table.id, table.document, table.state, table.origin).where(table.state.in_(states))
        query = query.where(*is_named(table.cluster, self._within(cluster)))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.sequence.desc())).all()
            published = self._read(connection, rows)
        outdated: list[Recommendation] = []
        renewed: set[tuple[object, ...]] = set()
        for row, recommendation in zip(rows, published, strict=True):
            shape = (getattr(recommendation.fingerprint, part) for part in SHAPE_PARTS)
            jobs = (recommendation.cluster, recommendation.model, row.origin, *shape)
            if recommendation.stale and row.state == RevisionState.ACTIVE.value and jobs not in renewed:
                outdated.append(recommendation)
            if not recommendation.stale:
                renewed.add(jobs)
        return tuple(outdated)

    @repeatable
    def newest_each(self, *, cluster: Names = None, model: str | None = None) -> tuple[Recommendation, ...]:
        """Return the newest revision of each cluster, workload, fingerprint and origin, newest first; None = any."""
        with self._database.reading() as connection:
            rows = connection.execute(newest_query(self._within(cluster), model))
            return with_staleness(connection, _read_all(connection, [row[-1] for row in rows]), self._shipped)

    @repeatable
    def pairs(self, *, cluster: Names = None, model: str | None = None) -> tuple[Pair, ...]:
        """Return every pair of cluster and workload with a recommendation or a running study, by names; None = any."""
        cluster = self._within(cluster)
        with self._database.reading() as connection:
            preferred, shapes = self._preferred(connection, cluster, model)
            running = running_query(cluster, model, dead=abandoned(connection))
            counts = {(name, of): count for name, of, count in connection.execute(running)}
        return tuple(
            Pair(
                cluster=pair[0],
                model=pair[1],
                recommendation=preferred.get(pair),
                shapes=len(shapes.get(pair, ())),
                running=counts.get(pair, 0),
            )
            for pair in sorted(preferred.keys() | counts.keys())
        )

    @repeatable
    def preferred_before(
        self, created: str, *, cluster: Names = None, model: str | None = None
    ) -> dict[tuple[str, str], Recommendation]:
        """Return the recommendation that `pairs` would have found at a time, ISO in UTC; with today's staleness."""
        table = recommendations.c
        with self._database.reading() as connection:
            until = connection.execute(select(func.max(table.sequence)).where(table.created <= created)).scalar()
            return self._preferred(connection, self._within(cluster), model, until or 0)[0]

    def _read(self, connection: Connection, rows: Iterable[Any]) -> tuple[Recommendation, ...]:
        """Return the revisions of rows, as jobs would get them."""
        published = [read_recommendation(row.id, row.document) for row in rows]
        return with_staleness(connection, published, self._shipped)

    def _preferred(
        self, connection: Connection, cluster: Names, model: str | None, until: int | None = None
    ) -> tuple[dict[tuple[str, str], Recommendation], dict[tuple[str, str], set[str]]]:
        """Return the newest revision of the best origin of each pair, and the fingerprints of each."""
        shapes: dict[tuple[str, str], set[str]] = defaultdict(set)
        best: dict[tuple[str, str], tuple[int, int]] = {}
        for name, of, fingerprint, origin, sequence in connection.execute(newest_query(cluster, model, until=until)):
            shapes[name, of].add(fingerprint)
            rank = (_PREFERRED.index(TimesOrigin(origin)), -sequence)
            best[name, of] = min(best.get((name, of), rank), rank)
        chosen = _read_all(connection, [-sequence for _, sequence in best.values()])
        served = {(r.cluster, r.model): r for r in with_staleness(connection, chosen, self._shipped)}
        return served, shapes

    @repeatable
    def fingerprint_periods(self, cluster: str) -> tuple[FingerprintPeriod, ...]:
        """Return the fingerprints under which something was published for a cluster, the newest first."""
        if not self._is_visible(cluster):
            return ()
        table = recommendations.c
        query = (
            select(table.fingerprint, func.count(), func.min(table.created), func.max(table.created))
            .where(table.cluster == cluster)
            .group_by(table.fingerprint)
            .order_by(func.max(table.sequence).desc())
        )
        with self._database.reading() as connection:
            return tuple(
                FingerprintPeriod(fingerprint=fingerprint, revisions=revisions, first=first, last=last)
                for fingerprint, revisions, first, last in connection.execute(query)
            )


def newest_query(cluster: Names = None, model: str | None = None, *, until: int | None = None) -> Select[Any]:
    """Return the query for the newest revision of each cluster, workload, fingerprint and origin.

    Args:
        cluster, model: names; None = any.
        until: the last number of arrival that counts; None = all do.
    """
    table = recommendations.c
    place = (table.cluster, table.model, table.fingerprint, table.origin)
    newest: ColumnElement[int] = func.max(table.sequence)
    if until is None:  # what jobs are given; where that is nothing, what waits for it
        newest = func.coalesce(func.max(case((table.state == RevisionState.ACTIVE.value, table.sequence))), newest)
    query = select(*place, newest.label("sequence")).group_by(*place)
    query = query.where(*is_named(table.cluster, cluster), *is_named(table.model, model))
    return query if until is None else query.where(table.sequence <= until)


def running_query(cluster: Names = None, model: str | None = None, *, dead: Collection[str] = ()) -> Select[Any]:
    """Return the query for the number of running studies of each pair that has one."""
    pair = (studies.c.cluster, studies.c.model)
    query = select(*pair, func.count()).where(is_running(dead)).group_by(*pair)
    return query.where(*is_named(studies.c.cluster, cluster), *is_named(studies.c.model, model))


def note_change(connection: Connection, *, cluster: str = "", model: str) -> None:
    """Note that what jobs are given may have changed, by default on every cluster; run it alone, with the change."""
    last = connection.execute(select(func.max(changes.c.number))).scalar() or 0
    connection.execute(delete(changes).where(changes.c.cluster == cluster, changes.c.model == model))
    connection.execute(insert(changes).values(cluster=cluster, model=model, number=last + 1))


def find_active(
    connection: Connection, *, model: str | None = None, cluster: str | None = None
) -> tuple[Recommendation, ...]:
    """Return the active revisions of a workload, of a cluster or of all; None = any."""
    table = recommendations.c
    query = select(table.id, table.document).where(
        table.state == RevisionState.ACTIVE.value, *is_named(table.model, model), *is_named(table.cluster, cluster)
    )
    return tuple(read_recommendation(row.id, row.document) for row in connection.execute(query))


def newest_by_study(connection: Connection, study_ids: Iterable[str]) -> dict[str, Recommendation]:
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


def _read_all(connection: Connection, sequences: Iterable[int]) -> tuple[Recommendation, ...]:
    """Return the revisions with some numbers of arrival, newest first."""
    table = recommendations.c
    by_sequence: dict[int, Recommendation] = {}
    for part in split_named(sequences):
        query = select(table.sequence, table.id, table.document).where(table.sequence.in_(part))
        by_sequence |= {row.sequence: read_recommendation(row.id, row.document) for row in connection.execute(query)}
    return tuple(by_sequence[sequence] for sequence in sorted(by_sequence, reverse=True))


@lru_cache(maxsize=2048)
def read_recommendation(id: str, document: str) -> Recommendation:
    """Return the recommendation of a stored document, which never changes; an overview needs hundreds of them."""
    return read_stored(Recommendation, f"the recommendation {id}", document)


def with_staleness(
    connection: Connection, published: Sequence[Recommendation], shipped: Shipped
) -> tuple[Recommendation, ...]:
    """Return recommendations with the reason why they are no longer served, in their order."""
    checked = {
        row.recommendation: read_stored(Recheck, f"the recheck {row.id}", row.document).staleness
        for row in newest_records(connection, "recheck", [r.id for r in published])
        if row.word == Freshness.STALE.value
    }
    digests = {
        name: _workload_digest(connection, shipped, name) for name in {r.model for r in published if r.source_digest}
    }
    added = clusters.c.name.in_(sorted({r.cluster for r in published}))  # shipped ones never change
    places = {
        name: read_stored(Cluster, f"the cluster {name!r}", document)
        for name, document in connection.execute(select(clusters.c.name, clusters.c.document).where(added))
    }
    shapes = {(r.cluster, r.fingerprint): r for r in published}
    changed = {shape: changed_cluster(r, places.get(r.cluster)) for shape, r in shapes.items()}
    answers = []
    for r in published:
        why = checked.get(r.id) or replaced_workload(r, digests.get(r.model, "")) or changed[r.cluster, r.fingerprint]
        answers.append(r if r.stale == why else replace(r, stale=why))
    return tuple(answers)


def newest_records(
    connection: Connection, kind: str, ids: Collection[str], *, cluster: Names = None
) -> Sequence[Row[Any]]:
    """Return the row of the newest record of a kind for each recommendation that has one."""
    if not ids:
        return ()
    of = records.c.recommendation
    wanted = (records.c.kind == kind, of.in_(list(ids)), *is_named(records.c.cluster, cluster))
    newest = select(func.max(records.c.sequence)).where(*wanted).group_by(of)
    return connection.execute(select(records).where(records.c.sequence.in_(newest))).all()


def _workload_digest(connection: Connection, shipped: Shipped, name: str) -> str:
    """Return the digest of a workload; empty for one that was removed, which is not a replacement."""
    if name in shipped.workloads:
        return shipped.workloads[name].digest()
    added = connection.execute(select(workloads.c.document).where(workloads.c.name == name)).scalar()
    return "" if added is None else read_stored(Workload, f"the workload {name!r}", added).digest()

"""What stands where at a glance: the map of clusters and workloads, running studies, and names by what is typed.

Few queries whatever the number of studies, each over an index; tests look at their plans.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, case, func, literal, not_, select, union_all

from ncclt.core.cluster import Cluster
from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import RevisionState
from ncclt.core.study import StudyState
from ncclt.core.trial import TimesOrigin
from ncclt.core.workload import Workload
from ncclt.store.database import Database
from ncclt.store.documents import stored
from ncclt.store.failures import repeatable
from ncclt.store.leases import abandoned
from ncclt.store.records import with_staleness
from ncclt.store.studies import studies_of
from ncclt.store.study_page import StudyEntry
from ncclt.store.summaries import summarised
from ncclt.store.tables import Names, clusters, is_named, recommendations, studies, workloads

MOST_FOUND = 8
"""Hits of one kind that a search by name returns."""

MOST_RUNNING = 20
"""Running studies that are listed."""

_MOST_NAMED = 500
"""Values in one query: PostgreSQL plans long lists slowly."""

_PREFERRED = (TimesOrigin.MEASURED, TimesOrigin.RECORDED, TimesOrigin.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What is known of one workload on one cluster.

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
class Hit:
    """Something that can be found by its name.

    Attributes:
        kind: `cluster`, `workload` or `study`.
        key: name of a cluster or workload, id of a study.
        name: as text.
    """

    kind: str
    key: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """The revisions of a cluster under one fingerprint.

    Attributes:
        fingerprint: its digest.
        revisions: how many were published.
        first, last: ISO times of the oldest and of the newest.
    """

    fingerprint: str
    revisions: int
    first: str
    last: str


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
    query = _of(select(*place, newest.label("sequence")).group_by(*place), recommendations, cluster, model)
    return query if until is None else query.where(table.sequence <= until)


def is_running(dead: Collection[str]) -> ColumnElement[bool]:
    """Return the condition of a running study.

    Args:
        dead: ids of those that are running by their state alone, as of `abandoned`.
    """
    running = studies.c.state == StudyState.RUNNING.value
    return and_(running, studies.c.id.not_in(dead)) if dead else running  # without ids the index is enough


def running_query(cluster: Names = None, model: str | None = None, *, dead: Collection[str] = ()) -> Select[Any]:
    """Return the query for the number of running studies of each pair that has one."""
    pair = (studies.c.cluster, studies.c.model)
    query = select(*pair, func.count()).where(is_running(dead)).group_by(*pair)
    return _of(query, studies, cluster, model)


def _of(query: Select[Any], table: Table, cluster: Names, model: str | None) -> Select[Any]:
    return query.where(*is_named(table.c.cluster, cluster), *is_named(table.c.model, model))


def newest_revisions(
    connection: Connection, shipped: Mapping[str, Workload], *, cluster: Names, model: str | None
) -> tuple[Recommendation, ...]:
    """Return the newest revision of each cluster, workload, fingerprint and origin, newest first."""
    found = _read_all(connection, [row[-1] for row in connection.execute(newest_query(cluster, model))])
    return with_staleness(connection, found, shipped)


def pairs_of(
    connection: Connection, shipped: Mapping[str, Workload], *, cluster: Names, model: str | None
) -> tuple[Pair, ...]:
    """Return every pair with a recommendation or a running study, by names."""
    found, shapes = _preferred(connection, shipped, cluster, model)
    running = running_query(cluster, model, dead=abandoned(connection))
    counts = {(name, of): count for name, of, count in connection.execute(running)}
    return tuple(
        Pair(
            cluster=pair[0],
            model=pair[1],
            recommendation=found.get(pair),
            shapes=len(shapes.get(pair, ())),
            running=counts.get(pair, 0),
        )
        for pair in sorted(found.keys() | counts.keys())
    )


def _preferred(
    connection: Connection,
    shipped: Mapping[str, Workload],
    cluster: Names,
    model: str | None,
    until: int | None = None,
) -> tuple[dict[tuple[str, str], Recommendation], dict[tuple[str, str], set[str]]]:
    """Return the newest revision of the best origin of each pair, and the fingerprints of each."""
    shapes: dict[tuple[str, str], set[str]] = defaultdict(set)
    best: dict[tuple[str, str], tuple[int, int]] = {}
    for name, of, fingerprint, origin, sequence in connection.execute(newest_query(cluster, model, until=until)):
        shapes[name, of].add(fingerprint)
        rank = (_PREFERRED.index(TimesOrigin(origin)), -sequence)
        best[name, of] = min(best.get((name, of), rank), rank)
    chosen = _read_all(connection, [-sequence for _, sequence in best.values()])
    served = {(r.cluster, r.model): r for r in with_staleness(connection, chosen, shipped)}
    return served, shapes


def preferred_before(
    connection: Connection, shipped: Mapping[str, Workload], *, created: str, cluster: Names, model: str | None
) -> dict[tuple[str, str], Recommendation]:
    """Return what `pairs_of` would have found at a time, ISO, by names; staleness is that of today."""
    table = recommendations.c
    until = connection.execute(select(func.max(table.sequence)).where(table.created <= created)).scalar()
    return _preferred(connection, shipped, cluster, model, until or 0)[0]


def eras_of(connection: Connection, *, cluster: str) -> tuple[Era, ...]:
    """Return the fingerprints under which something was published for a cluster, the newest first."""
    table = recommendations.c
    query = (
        select(table.fingerprint, func.count(), func.min(table.created), func.max(table.created))
        .where(table.cluster == cluster)
        .group_by(table.fingerprint)
        .order_by(func.max(table.sequence).desc())
    )
    return tuple(
        Era(fingerprint=fingerprint, revisions=revisions, first=first, last=last)
        for fingerprint, revisions, first, last in connection.execute(query)
    )


def names_like(
    connection: Connection, text: str, *, shipped: Mapping[str, Iterable[str]], cluster: Names
) -> tuple[Hit, ...]:
    """Return clusters, workloads and studies whose name, or id, contains a text; those that begin with it first.

    Args:
        connection: in a transaction.
        text: what was typed; upper and lower case are the same.
        shipped: names that come with ncclt, by `cluster` and `workload`.
        cluster: the only ones that may be found, and those of studies; None = any.
    """
    wanted = text.strip().casefold()
    if not wanted:
        return ()
    hits = [Hit(kind=kind, key=name, name=name) for kind, names in shipped.items() for name in names]
    rows = union_all(
        select(literal("cluster"), clusters.c.name, clusters.c.name),
        select(literal("workload"), workloads.c.name, workloads.c.name),
    )
    hits += [Hit(kind=kind, key=key, name=name) for kind, key, name in connection.execute(rows)]
    in_name = studies.c.name.icontains(wanted, autoescape=True) | studies.c.id.startswith(wanted, autoescape=True)
    newest: Select[Any] = (
        select(studies.c.id, studies.c.name).where(in_name).order_by(studies.c.sequence.desc()).limit(MOST_FOUND)
    )
    newest = _of(newest, studies, cluster, None)
    hits += [Hit(kind="study", key=id, name=name) for id, name in connection.execute(newest)]
    fitting = {(hit.kind, hit.key): hit for hit in hits if wanted in hit.name.casefold() or hit.kind == "study"}
    if cluster is not None:
        seen = {cluster} if isinstance(cluster, str) else set(cluster)
        fitting = {key: hit for key, hit in fitting.items() if hit.kind != "cluster" or hit.key in seen}
    found: list[Hit] = []
    for kind in ("cluster", "workload", "study"):
        mine = [hit for hit in fitting.values() if hit.kind == kind]
        if kind != "study":
            mine.sort(key=lambda hit: (not hit.name.casefold().startswith(wanted), hit.name))
        found += mine[:MOST_FOUND]
    return tuple(found)


def _read_all(connection: Connection, sequences: Iterable[int]) -> tuple[Recommendation, ...]:
    """Return the revisions with some numbers of arrival, newest first."""
    table = recommendations.c
    found: dict[int, Recommendation] = {}
    rest = iter(sequences)
    while part := list(islice(rest, _MOST_NAMED)):
        query = select(table.sequence, table.id, table.document).where(table.sequence.in_(part))
        found |= {row.sequence: _read(row.id, row.document) for row in connection.execute(query)}
    return tuple(found[sequence] for sequence in sorted(found, reverse=True))


@lru_cache(maxsize=2048)
def _read(id: str, document: str) -> Recommendation:
    """Read a published revision; its document never changes, and a map needs hundreds of them."""
    with stored(f"the recommendation {id}"):
        return Recommendation.from_document(json.loads(document))


class Overview:
    """The part of a store that gives overviews; see `Store`."""

    _database: Database
    is_patient: bool

    @property
    def _shipped_workloads(self) -> dict[str, Workload]:
        raise NotImplementedError("the store has read what is shipped")

    @property
    def _shipped_clusters(self) -> dict[str, Cluster]:
        raise NotImplementedError("the store has read what is shipped")

    @repeatable
    def pairs(self, *, cluster: Names = None, model: str | None = None) -> tuple[Pair, ...]:
        """Return every pair of cluster and workload with a recommendation or a running study; None = any."""
        with self._database.reading() as connection:
            return pairs_of(connection, self._shipped_workloads, cluster=cluster, model=model)

    @repeatable
    def recommended_before(
        self, created: str, *, cluster: Names = None, model: str | None = None
    ) -> dict[tuple[str, str], Recommendation]:
        """Return the recommendation of each pair (cluster, workload) as it was at a time, ISO in UTC; None = any."""
        with self._database.reading() as connection:
            return preferred_before(connection, self._shipped_workloads, created=created, cluster=cluster, model=model)

    @repeatable
    def newest_each(self, *, cluster: Names = None, model: str | None = None) -> tuple[Recommendation, ...]:
        """Return the newest revision of each cluster, workload, fingerprint and origin, newest first; None = any."""
        with self._database.reading() as connection:
            return newest_revisions(connection, self._shipped_workloads, cluster=cluster, model=model)

    @repeatable
    def eras(self, cluster: str) -> tuple[Era, ...]:
        """Return the fingerprints under which something was published for a cluster, the newest first."""
        with self._database.reading() as connection:
            return eras_of(connection, cluster=cluster)

    @repeatable
    def running_studies(self, *, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the studies that are running, newest first, `MOST_RUNNING` at most; None = any."""
        with self._database.reading() as connection:
            query = select(studies.c.sequence).where(is_running(abandoned(connection)))
            query = _of(query.order_by(studies.c.sequence.desc()).limit(MOST_RUNNING), studies, cluster, model)
            numbers = connection.execute(query).scalars().all()
            return summarised(connection, self._shipped_workloads, studies_of(connection, numbers))

    @repeatable
    def recent_studies(self, *, limit: int, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the newest studies that are not running; without their own times where they have a proof's."""
        with self._database.reading() as connection:
            query = select(studies.c.sequence).where(not_(is_running(abandoned(connection))))
            query = _of(query.order_by(studies.c.sequence.desc()).limit(limit), studies, cluster, model)
            found = studies_of(connection, connection.execute(query).scalars().all())
            return summarised(connection, self._shipped_workloads, found, proven_too=False)

    @repeatable
    def find(self, text: str, *, cluster: Names = None) -> tuple[Hit, ...]:
        """Return clusters, workloads and studies whose name contains a text, at most `MOST_FOUND` of each.

        Args:
            text: what was typed.
            cluster: the only ones that may be found, and those of studies; None = any.
        """
        shipped = {"cluster": tuple(self._shipped_clusters), "workload": tuple(self._shipped_workloads)}
        with self._database.reading() as connection:
            return names_like(connection, text, shipped=shipped, cluster=cluster)

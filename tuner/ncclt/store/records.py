"""What was found out about recommendations and clusters: checks, attestations, preflights, verifications.

All are rows of one table: a kind, the columns that are searched by, and the document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, Row, func, insert, select

from ncclt.core.attestation import Attestation
from ncclt.core.preflight import Preflight
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Recommendation, changed_cluster, replaced_workload
from ncclt.core.revision import Actor
from ncclt.core.ticket import Reporter, Ticket
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.errors import ConflictError, NotFoundError
from ncclt.store.catalogue import WORKLOADS, added_clusters
from ncclt.store.database import Database
from ncclt.store.documents import stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.life import verified, went_stale
from ncclt.store.recommendations import find_active, get_recommendation, note_change
from ncclt.store.tables import Names, attested_jobs, is_named, records
from ncclt.user_dirs import account_name

Record = TypeVar("Record", Recheck, Attestation, Preflight, Verification)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind(Generic[Record]):
    """One kind of record.

    Attributes:
        name: in the table and in messages.
        record: what a document of it becomes.
    """

    name: str
    record: type[Record]

    def add(self, connection: Connection, record: Record, **columns: str) -> None:
        """Store a record, unless it was stored before and only the answer was lost."""
        document = to_text(record.to_document())
        if self.document(connection, record.id) != document:
            row = {"kind": self.name, "id": record.id, "cluster": record.cluster, "created": record.created}
            connection.execute(insert(records).values(document=document, **row, **columns))

    def document(self, connection: Connection, id: str) -> str | None:
        """Return the document stored under an id."""
        query = select(records.c.document).where(records.c.kind == self.name, records.c.id == id)
        return connection.execute(query).scalar()

    def find(
        self,
        connection: Connection,
        *,
        of: Collection[str] | None = None,
        limit: int | None = None,
        **wanted: Names,
    ) -> tuple[Record, ...]:
        """Return records, newest first.

        Args:
            connection: in a transaction.
            of: ids of recommendations; None = any, or none at all.
            limit: how many at most; None = all.
            wanted: values of columns; None = any.
        """
        query = select(records.c.id, records.c.document).where(records.c.kind == self.name)
        if of is not None:
            query = query.where(records.c.recommendation.in_(list(of)))
        for column, names in wanted.items():
            query = query.where(*is_named(records.c[column], names))
        query = query.order_by(records.c.sequence.desc()).limit(limit)
        return tuple(self.read(row.id, row.document) for row in connection.execute(query))

    def newest(
        self, connection: Connection, recommendations: Collection[str], *, cluster: Names = None
    ) -> Iterable[Row[Any]]:
        """Return the row of the newest record of each recommendation, on some clusters, that has one."""
        if not recommendations:
            return ()
        of = records.c.recommendation
        mine = (records.c.kind == self.name, of.in_(list(recommendations)), *is_named(records.c.cluster, cluster))
        newest = select(func.max(records.c.sequence)).where(*mine).group_by(of)
        return connection.execute(select(records).where(records.c.sequence.in_(newest))).all()

    def read(self, id: str, document: str) -> Record:
        """Return the record of a stored document."""
        with stored(f"the {self.name} {id}"):
            return self.record.from_document(json.loads(document))


RECHECKS: RecordKind[Recheck] = RecordKind(name="recheck", record=Recheck)
ATTESTATIONS: RecordKind[Attestation] = RecordKind(name="attestation", record=Attestation)
PREFLIGHTS: RecordKind[Preflight] = RecordKind(name="preflight", record=Preflight)
VERIFICATIONS: RecordKind[Verification] = RecordKind(name="verification", record=Verification)


def with_staleness(
    connection: Connection, found: tuple[Recommendation, ...], shipped: Mapping[str, Workload]
) -> tuple[Recommendation, ...]:
    """Return recommendations with why they are no longer served: their newest check, a replaced workload or cluster.

    Args:
        connection: in a transaction.
        found: as published; their order is kept.
        shipped: the workloads that come with ncclt, by name.
    """
    newest = RECHECKS.newest(connection, [r.id for r in found])
    stale = [row for row in newest if row.word == Freshness.STALE.value]
    checked = {row.recommendation: RECHECKS.read(row.id, row.document).staleness for row in stale}
    digests = {name: _digest(connection, shipped, name) for name in {r.model for r in found if r.source_digest}}
    places = added_clusters(connection, {r.cluster for r in found})
    return tuple(
        replace(
            r,
            stale=checked.get(r.id, "")
            or replaced_workload(r, digests.get(r.model, ""))
            or changed_cluster(r, places.get(r.cluster)),
        )
        for r in found
    )


def fresh_state(connection: Connection, shipped: Mapping[str, Workload], found: Recommendation) -> Recommendation:
    """Return one recommendation with why it is no longer served; for arguments see `with_staleness`."""
    return with_staleness(connection, (found,), shipped)[0]


@contextmanager
def noting_stale(
    connection: Connection,
    shipped: Mapping[str, Workload],
    now: str,
    *,
    by: Actor | None = None,
    model: str | None = None,
    cluster: str | None = None,
) -> Iterator[None]:
    """Note in the history which active revisions the block makes stale, and that answers to jobs may have changed.

    Args:
        connection: in a transaction that is alone.
        shipped: as for `with_staleness`.
        now: ISO time.
        by: who does it; None = this account.
        model, cluster: whose revisions; None = any.
    """
    active = find_active(connection, model=model, cluster=cluster)
    fresh = {one.id for one in with_staleness(connection, active, shipped) if not one.stale}
    yield
    for pair in sorted({(one.cluster, one.model) for one in active}):
        note_change(connection, cluster=pair[0], model=pair[1])
    for one in with_staleness(connection, active, shipped):
        if one.stale and one.id in fresh:
            went_stale(connection, one.id, one.stale, by or Actor(who=account_name()), now=now)


def _digest(connection: Connection, shipped: Mapping[str, Workload], name: str) -> str:
    try:
        return WORKLOADS.entry(connection, shipped, name).digest()
    except NotFoundError:
        return ""  # a workload that was removed from the catalogue was not replaced


def _use_ticket(connection: Connection, ticket: Ticket, attestation: str, reporter: Reporter | None, now: str) -> None:
    query = select(attested_jobs.c.attestation).where(attested_jobs.c.ticket == ticket.id)
    before = connection.execute(query).scalar()
    if before is None:
        sender = reporter or Reporter(who=account_name(), address="")
        connection.execute(
            insert(attested_jobs).values(
                ticket=ticket.id,
                attestation=attestation,
                cluster=ticket.cluster,
                job=ticket.job,
                who=sender.who,
                address=sender.address,
                created=now,
            )
        )
    elif before != attestation:
        raise ConflictError(
            f"the job {ticket.job} was attested already, as {before}",
            hint="one attestation counts per start; attest all files of a job at once",
        )


class Records:
    """The part of a store that keeps records; see `Store`."""

    _database: Database
    _clock: Callable[[], str]
    is_patient: bool

    if TYPE_CHECKING:

        @cached_property
        def _shipped_workloads(self) -> dict[str, Workload]: ...

    @repeatable
    def add_recheck(self, recheck: Recheck, *, by: Actor | None = None) -> None:
        """Store a recheck of a recommendation, which decides from now on whether it is served.

        Args:
            recheck: to store.
            by: who made it; None = this account.

        Raises:
            NotFoundError: the recommendation does not exist.
            StoreError: another recheck of this id is already stored.
        """
        with self._database.alone(conflict=f"the recheck {recheck.id} is already stored") as connection:
            of = get_recommendation(connection, recheck.recommendation).id
            pair = {"model": recheck.model, "cluster": recheck.cluster}
            with noting_stale(connection, self._shipped_workloads, self._clock(), by=by, **pair):
                RECHECKS.add(connection, recheck, model=recheck.model, recommendation=of, word=recheck.freshness.value)
            note_change(connection, cluster=recheck.cluster, model=recheck.model)

    @repeatable
    def rechecks(self, recommendation: str) -> tuple[Recheck, ...]:
        """Return the rechecks of a recommendation by its id, newest first."""
        with self._database.reading() as connection:
            return RECHECKS.find(connection, of=[recommendation])

    @repeatable
    def add_attestation(
        self, attestation: Attestation, *, ticket: Ticket | None = None, reporter: Reporter | None = None
    ) -> bool:
        """Store whether a recommendation took effect in a job; return whether that finding is new.

        Args:
            attestation: to store.
            ticket: of the job; None = of a job on this machine, by whoever may write the store.
            reporter: its sender; None = this account.

        Raises:
            NotFoundError: the recommendation does not exist.
            ConflictError: the ticket came with another attestation before.
        """
        with self._database.alone() as connection:
            of = get_recommendation(connection, attestation.recommendation).id
            if ticket is not None:
                _use_ticket(connection, ticket, attestation.id, reporter, self._clock())
            if ATTESTATIONS.document(connection, attestation.id) is not None:
                return False
            word = attestation.effect.value
            ATTESTATIONS.add(connection, attestation, model=attestation.model, recommendation=of, word=word)
            return True

    @repeatable
    def attestations(
        self, of: Collection[str], *, cluster: Names = None, limit: int | None = None
    ) -> tuple[Attestation, ...]:
        """Return attestations of some recommendations, by their ids, newest first; `limit` at most, None = all."""
        with self._database.reading() as connection:
            return ATTESTATIONS.find(connection, of=of, limit=limit, cluster=cluster)

    @repeatable
    def effects(self, of: Collection[str], *, cluster: Names = None) -> dict[str, str]:
        """Return the word of the newest attestation of each recommendation that has one, by id."""
        with self._database.reading() as connection:
            return {row.recommendation: row.word for row in ATTESTATIONS.newest(connection, of, cluster=cluster)}

    @repeatable
    def add_preflight(self, preflight: Preflight) -> None:
        """Store a preflight; StoreError if another one of this id is already stored."""
        with self._database.alone(conflict=f"the preflight {preflight.id} is already stored") as connection:
            PREFLIGHTS.add(connection, preflight, model="", recommendation="", word=preflight.state.value)

    @repeatable
    def preflights(self, *, cluster: Names = None, limit: int = 20) -> tuple[Preflight, ...]:
        """Return the newest preflights, the newest first, of some clusters; None = of all."""
        with self._database.reading() as connection:
            return PREFLIGHTS.find(connection, cluster=cluster, limit=limit)

    @repeatable
    def add_verification(self, verification: Verification) -> None:
        """Store a verification, which a candidate may await; StoreError if another one of this id is already stored."""
        with self._database.alone(conflict=f"the verification {verification.id} is already stored") as connection:
            VERIFICATIONS.add(
                connection,
                verification,
                model=verification.model,
                recommendation=verification.recommendation,
                word=verification.verdict.decision.value,
            )
            verified(
                connection,
                verification,
                Actor(who=account_name()),
                refresh=partial(fresh_state, connection, self._shipped_workloads),
                now=verification.created,
            )

    @repeatable
    def verifications(
        self,
        *,
        cluster: Names = None,
        model: str | None = None,
        recommendation: str | None = None,
        limit: int | None = None,
    ) -> tuple[Verification, ...]:
        """Return verifications, newest first.

        Args:
            cluster, model: names; None = any.
            recommendation: id of the one that was verified; None = any.
            limit: how many at most; None = all.
        """
        of = None if recommendation is None else [recommendation]
        with self._database.reading() as connection:
            return VERIFICATIONS.find(connection, of=of, cluster=cluster, model=model, limit=limit)

"""Records about recommendations and clusters: rechecks, attestations, preflights and verifications.

All are rows of one table: a kind, the columns that are searched by, and the document.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from sqlalchemy import Connection, insert, select

from ncclt.core.attestation import Attestation
from ncclt.core.preflight import Preflight
from ncclt.core.recheck import Recheck
from ncclt.core.revision import Actor
from ncclt.core.ticket import Ticket
from ncclt.core.verification import Verification
from ncclt.errors import ConflictError
from ncclt.store.documents import read_stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.names import unknown_recommendation
from ncclt.store.part import StorePart, unscoped
from ncclt.store.recommendations import get_recommendation, newest_records, note_change
from ncclt.store.revisions import note_verified, noting_stale
from ncclt.store.tables import Names, attested_jobs, is_named, records
from ncclt.user_dirs import account_name

Record = TypeVar("Record", Recheck, Attestation, Preflight, Verification)

KINDS: dict[type, str] = {
    Recheck: "recheck",
    Attestation: "attestation",
    Preflight: "preflight",
    Verification: "verification",
}
"""Class of a record -> its kind in the table and in messages."""


class Records(StorePart):
    """The records about recommendations and clusters."""

    @repeatable
    def add_recheck(self, recheck: Recheck, *, by: Actor | None = None) -> None:
        """Store a recheck of a recommendation, which decides from now on whether it is served.

        Args:
            by: who made it; None = this account.

        Raises:
            NotFoundError: the recommendation does not exist.
            StoreError: another recheck of this id is already stored.
        """
        with self._database.alone(conflict=f"the recheck {recheck.id} is already stored") as connection:
            of = self._recommendation(connection, recheck.recommendation)
            pair = {"model": recheck.model, "cluster": recheck.cluster}
            with noting_stale(connection, self._shipped, self._clock(), by=by, **pair):
                _add(connection, recheck, model=recheck.model, recommendation=of, word=recheck.freshness.value)
            note_change(connection, cluster=recheck.cluster, model=recheck.model)

    @repeatable
    def rechecks(self, *of: str) -> tuple[Recheck, ...]:
        """Return the rechecks of some recommendations, by their ids, newest first."""
        with self._database.reading() as connection:
            return _find(connection, Recheck, of=of, cluster=self._within(None))

    @repeatable
    def add_attestation(
        self, attestation: Attestation, *, ticket: Ticket | None = None, who: str = "", address: str = ""
    ) -> bool:
        """Store whether a recommendation took effect in a job; return whether that finding is new.

        Args:
            ticket: of the job; None = of a job on this machine.
            who, address: of its sender; empty = this account, on this machine.

        Raises:
            NotFoundError: the recommendation does not exist.
            ConflictError: the ticket came with another attestation before.
        """
        with self._database.alone() as connection:
            of = self._recommendation(connection, attestation.recommendation)
            if ticket is not None:
                sent_by = {"who": who or account_name(), "address": address, "created": self._clock()}
                _use_ticket(connection, ticket, attestation.id, sent_by)
            if _document(connection, Attestation, attestation.id) is not None:
                return False
            word = attestation.effect.value
            _add(connection, attestation, model=attestation.model, recommendation=of, word=word)
            return True

    @repeatable
    def attestations(
        self, of: Collection[str], *, cluster: Names = None, limit: int | None = None
    ) -> tuple[Attestation, ...]:
        """Return attestations of some recommendations, by their ids, newest first; `limit` at most, None = all."""
        with self._database.reading() as connection:
            return _find(connection, Attestation, of=of, limit=limit, cluster=self._within(cluster))

    @repeatable
    def effects(self, of: Collection[str], *, cluster: Names = None) -> dict[str, str]:
        """Return the word of the newest attestation of each recommendation that has one, by id."""
        with self._database.reading() as connection:
            newest = newest_records(connection, "attestation", of, cluster=self._within(cluster))
            return {row.recommendation: row.word for row in newest}

    @repeatable
    def add_preflight(self, preflight: Preflight) -> None:
        """Store a preflight; StoreError if another one of this id is already stored."""
        self._require_visible(preflight.cluster)
        with self._database.alone(conflict=f"the preflight {preflight.id} is already stored") as connection:
            _add(connection, preflight, model="", recommendation="", word=preflight.state.value)

    @repeatable
    def preflights(self, *, cluster: Names = None, limit: int = 20) -> tuple[Preflight, ...]:
        """Return the newest preflights, the newest first, of some clusters; None = of all."""
        with self._database.reading() as connection:
            return _find(connection, Preflight, cluster=self._within(cluster), limit=limit)

    @unscoped
    @repeatable
    def add_verification(self, verification: Verification) -> None:
        """Store a verification, which a candidate may await; StoreError if another one of this id is already stored."""
        with self._database.alone(conflict=f"the verification {verification.id} is already stored") as connection:
            _add(
                connection,
                verification,
                model=verification.model,
                recommendation=verification.recommendation,
                word=verification.verdict.decision.value,
            )
            note_verified(
                connection,
                verification,
                Actor(who=account_name()),
                shipped=self._shipped,
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
            return _find(connection, Verification, of=of, cluster=self._within(cluster), model=model, limit=limit)

    def _recommendation(self, connection: Connection, id: str) -> str:
        """Return the id of a recommendation that may be seen."""
        if not self._is_visible(get_recommendation(connection, id).cluster):
            raise unknown_recommendation(id)
        return id


def _add(connection: Connection, record: Record, **columns: str) -> None:
    """Store a record, unless it was stored before and only the answer was lost."""
    document = to_text(record.to_document())
    if _document(connection, type(record), record.id) != document:
        row = {"kind": KINDS[type(record)], "id": record.id, "cluster": record.cluster, "created": record.created}
        connection.execute(insert(records).values(document=document, **row, **columns))


def _document(connection: Connection, kind: type, id: str) -> str | None:
    """Return the document stored under an id."""
    query = select(records.c.document).where(records.c.kind == KINDS[kind], records.c.id == id)
    return connection.execute(query).scalar()


def _find(
    connection: Connection,
    kind: type[Record],
    *,
    of: Collection[str] | None = None,
    limit: int | None = None,
    **wanted: Names,
) -> tuple[Record, ...]:
    """Return records of a kind, newest first.

    Args:
        of: ids of recommendations; None = any, or none at all.
        limit: how many at most; None = all.
        wanted: values of columns; None = any.
    """
    query = select(records.c.id, records.c.document).where(records.c.kind == KINDS[kind])
    if of is not None:
        query = query.where(records.c.recommendation.in_(list(of)))
    for column, names in wanted.items():
        query = query.where(*is_named(records.c[column], names))
    rows = connection.execute(query.order_by(records.c.sequence.desc()).limit(limit))
    return tuple(read_stored(kind, f"the {KINDS[kind]} {row.id}", row.document) for row in rows)


def _use_ticket(connection: Connection, ticket: Ticket, attestation: str, sent_by: dict[str, str]) -> None:
    query = select(attested_jobs.c.attestation).where(attested_jobs.c.ticket == ticket.id)
    before = connection.execute(query).scalar()
    if before is None:
        row = {"ticket": ticket.id, "attestation": attestation, "cluster": ticket.cluster, "job": ticket.job}
        connection.execute(insert(attested_jobs).values(**row, **sent_by))
    elif before != attestation:
        raise ConflictError(
            f"the job {ticket.job} was attested already, as {before}",
            hint="one attestation counts per start; attest all files of a job at once",
        )

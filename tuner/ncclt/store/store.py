"""The store: everything that is kept, behind the core's own dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import func, select

from ncclt.core.study import StudyState
from ncclt.store.catalogue import Clusters, Workloads
from ncclt.store.clock import utc_now
from ncclt.store.database import Database
from ncclt.store.failures import Answer, repeatable
from ncclt.store.jobs import Jobs
from ncclt.store.keys import Keys
from ncclt.store.leases import Leases, abandoned
from ncclt.store.location import Location, prepare_file
from ncclt.store.migrate import migrate as migrate_tables
from ncclt.store.migrate import migration
from ncclt.store.part import Shipped, unscoped
from ncclt.store.recommendations import Recommendations
from ncclt.store.records import Records
from ncclt.store.revisions import Revisions
from ncclt.store.studies import Studies
from ncclt.store.tables import recommendations, records, rollouts, secrets, studies, trials
from ncclt.store.trials import Trials


class Store:
    """An open store; use it in a `with` block or close it. Threads may share it.

    Every method raises StoreError if the database cannot be reached or fails, and nothing of SQLAlchemy.

    Attributes:
        workloads, clusters: those that come with ncclt and those that were added.
        studies, trials: the studies and their trials.
        leases: of the workers of a study; not within a scope.
        recommendations: for reading what was published.
        revisions: for publishing, and for changing which revision jobs get.
        records: rechecks, attestations, preflights and verifications.
        jobs: tuning jobs and their workers.
        keys: of the service; not within a scope.
        url: the database URL; may hold a password, unlike `shown`; not within a scope.
        optuna_url: where Optuna keeps its tables for this store; may hold a password; not within a scope.
        shown: the store for messages, without password.
        path: of the SQLite file, None on PostgreSQL.
    """

    leases: Leases
    keys: Keys
    url: str
    optuna_url: str

    def __init__(
        self,
        location: Location,
        *,
        migrate: bool,
        clock: Callable[[], str] | None,
        profiles: Path | None,
        is_patient: bool,
    ) -> None:
        prepare_file(location, create=migrate)
        self._whole = self
        self._database = Database(location, is_patient=is_patient)
        self.is_patient = is_patient
        self.url = location.url
        self.optuna_url = self._database.optuna_url
        self.shown = self._database.shown
        self.path = location.path
        self._shipped = Shipped(profiles)
        self._clock = clock or utc_now
        self._bind(frozenset())
        self.leases = Leases(self._database, self._shipped, self._clock)
        self.keys = Keys(self._database, self._shipped, self._clock)
        try:
            if migrate:
                self._database.require_sound()
                migrate_tables(self._database)
            else:
                migration(self._database)
        except BaseException:
            self.close()
            raise

    def _bind(self, scope: frozenset[str]) -> None:
        self._scope = scope
        shared = (self._database, self._shipped, self._clock, scope)
        self.workloads = Workloads(*shared)
        self.clusters = Clusters(*shared)
        self.studies = Studies(*shared)
        self.trials = Trials(*shared)
        self.recommendations = Recommendations(*shared)
        self.revisions = Revisions(*shared)
        self.records = Records(*shared)
        self.jobs = Jobs(*shared)

    def within(self, clusters: Collection[str]) -> Store:
        """Return this store with a scope: only these clusters and what belongs to them exist; empty = all.

        It lacks what knows no scope; `close` leaves the database open.
        """
        scoped = copy.copy(self)
        scoped._bind(frozenset(clusters))
        del scoped.leases, scoped.keys, scoped.url, scoped.optuna_url
        return scoped

    def __repr__(self) -> str:
        return f"Store({self.shown!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; may be called twice."""
        if self._whole is self:
            self._database.close()

    @unscoped
    @repeatable
    def alone(self, work: Callable[[], Answer]) -> Answer:
        """Do something short while no other process writes to this store, and again if the connection was lost.

        For tables beside ours: two Optunas that create theirs at once clash.
        """
        with self._database.alone():
            return work()

    @unscoped
    @repeatable
    def require_writable(self) -> None:
        """Raise StoreError unless a row can be written now; for callers that measure first and store at the end."""
        self._database.try_writing()

    @unscoped
    @repeatable
    def migration(self) -> str:
        """Return the revision of the tables (`ncclt.store.schema`), empty where there are none yet."""
        return migration(self._database)

    @repeatable
    def ticket_secret(self) -> str:
        """Return the secret that tickets are signed with: made with the store, kept in memory once it was read."""
        return self._whole._ticket_secret

    @cached_property
    def _ticket_secret(self) -> str:
        with self._database.reading() as connection:
            query = select(secrets.c.value).where(secrets.c.name == "tickets")
            return str(connection.execute(query).scalar_one())

    @unscoped
    @repeatable
    def counts(self) -> dict[str, dict[tuple[str, ...], int]]:
        """Return the rows of studies and roll-outs by (cluster, state), trials by (outcome,), recommendations by
        (cluster, origin) and records by (kind, result); those of the whole store.
        """
        with self._database.reading() as connection:
            columns = {
                "studies": (studies.c.cluster, studies.c.state),
                "trials": (trials.c.outcome,),
                "recommendations": (recommendations.c.cluster, recommendations.c.origin),
                "records": (records.c.kind, records.c.word),
                "rollouts": (rollouts.c.cluster, rollouts.c.state),
            }
            counts = {
                name: {tuple(row[:-1]): row[-1] for row in connection.execute(select(*by, func.count()).group_by(*by))}
                for name, by in columns.items()
            }
            running, interrupted = StudyState.RUNNING.value, StudyState.INTERRUPTED.value
            dead = (studies.c.state == running, studies.c.id.in_(abandoned(connection)))
            for (cluster,) in connection.execute(select(studies.c.cluster).where(*dead)):
                of = counts["studies"]
                of[cluster, running] -= 1
                of[cluster, interrupted] = of.get((cluster, interrupted), 0) + 1
            return counts

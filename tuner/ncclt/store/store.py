"""The store: everything that is kept, behind the core's own dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ncclt.core.cluster import Cluster
from ncclt.core.publication import Publication
from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import Actor, RevisionState
from ncclt.core.study import Study, StudyState, Trial
from ncclt.core.workload import Workload
from ncclt.errors import StoreError
from ncclt.store import life, recommendations, studies, summaries, trials
from ncclt.store.catalogue import CLUSTERS, WORKLOADS
from ncclt.store.clock import utc_now
from ncclt.store.database import Database
from ncclt.store.failures import repeatable
from ncclt.store.job_workers import JobWorkers
from ncclt.store.keys import Keys
from ncclt.store.leases import Leases, close_claim
from ncclt.store.lives import Lives
from ncclt.store.location import Location, prepare_file
from ncclt.store.migrate import Migration, migration
from ncclt.store.migrate import migrate as migrate_tables
from ncclt.store.overview import Overview
from ncclt.store.readonly import read_published
from ncclt.store.recommendations import Changes
from ncclt.store.records import Records, fresh_state, noting_stale, with_staleness
from ncclt.store.shipped import CatalogueEntry, named_clusters, profiles_folder, shipped_workloads
from ncclt.store.study_page import StudyPage
from ncclt.store.summaries import row_counts
from ncclt.store.tables import Names
from ncclt.store.trial_list import TrialLists
from ncclt.user_dirs import account_name

Answer = TypeVar("Answer")


class Store(Records, Lives, Leases, Keys, JobWorkers, Overview, trials.Outlines, TrialLists):
    """An open store; use it in a `with` block or close it. Threads may share it.

    Every method raises StoreError if the database cannot be reached or fails, and nothing of SQLAlchemy.

    Attributes:
        url: the database URL; may hold a password, unlike `shown`.
        optuna_url: where Optuna keeps its tables for this store; may hold a password.
        shown: the store for messages, without password.
        path: of the SQLite file, None on PostgreSQL.
        is_patient: repeat what may be repeated when PostgreSQL was away for some seconds.
    """

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
        self.is_patient = is_patient
        self._clock = clock or utc_now
        self._profiles = profiles
        self._database = Database(location)
        self.url = location.url
        self.optuna_url = self._database.optuna_url
        self.shown = self._database.shown
        self.path = location.path
        try:
            if migrate:
                self._database.require_sound()
                migrate_tables(self._database)
            else:
                migration(self._database)
        except BaseException:
            self.close()
            raise

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
        self._database.close()

    @repeatable
    def alone(self, work: Callable[[], Answer]) -> Answer:
        """Do something short while no other process writes to this store, and again if the connection was lost.

        For tables beside ours: two Optunas that create theirs at once clash.
        """
        with self._database.alone():
            return work()

    @repeatable
    def ping(self) -> None:
        """Query the database; StoreError if it cannot be reached."""
        migration(self._database)

    @repeatable
    def counts(self) -> dict[str, dict[tuple[str, ...], int]]:
        """Return how many rows there are, by what tells them apart; see `summaries.row_counts`."""
        with self._database.reading() as connection:
            return row_counts(connection)

    @repeatable
    def require_writable(self) -> None:
        """Raise StoreError unless a row can be written now; for callers that measure first and store at the end."""
        self._database.try_writing()

    @repeatable
    def migration(self) -> Migration:
        """Return the state of the tables."""
        return migration(self._database)

    # --- catalogue ---

    @cached_property
    def _shipped_workloads(self) -> dict[str, Workload]:
        return shipped_workloads(self._profiles or profiles_folder())

    @cached_property
    def _shipped_clusters(self) -> dict[str, Cluster]:
        return named_clusters(self._profiles or profiles_folder())

    @repeatable
    def workloads(self) -> tuple[CatalogueEntry[Workload], ...]:
        """Return every workload by name.

        Raises:
            InputError: a shipped file is broken.
        """
        with self._database.reading() as connection:
            return WORKLOADS.entries(connection, self._shipped_workloads)

    @repeatable
    def workload(self, name: str) -> Workload:
        """Return a workload by name.

        Raises:
            NotFoundError: the name is unknown; the hint gives close ones.
        """
        with self._database.reading() as connection:
            return WORKLOADS.entry(connection, self._shipped_workloads, name)

    def add_workload(self, workload: Workload, *, replace: bool = False) -> None:
        """Store a workload under its name.

        Raises:
            UsageError: one of this name is shipped, or was added before and `replace` is not set.
        """
        with self._database.alone() as connection:
            with noting_stale(connection, self._shipped_workloads, self._clock(), model=workload.name):
                WORKLOADS.add(connection, self._shipped_workloads, workload, replace=replace)
            recommendations.note_change(connection, model=workload.name)

    @repeatable
    def clusters(self) -> tuple[CatalogueEntry[Cluster], ...]:
        """Return every cluster by name.

        Raises:
            InputError: a shipped file is broken.
        """
        with self._database.reading() as connection:
            return CLUSTERS.entries(connection, self._shipped_clusters)

    @repeatable
    def cluster(self, name: str) -> Cluster:
        """Return a cluster by name.

        Raises:
            NotFoundError: the name is unknown; the hint gives close ones.
        """
        with self._database.reading() as connection:
            return CLUSTERS.entry(connection, self._shipped_clusters, name)

    def add_cluster(self, cluster: Cluster, *, replace: bool = False) -> None:
        """Store a cluster under its name; UsageError as for `add_workload`."""
        with (
            self._database.alone() as connection,
            noting_stale(connection, self._shipped_workloads, self._clock(), cluster=cluster.name),
        ):
            CLUSTERS.add(connection, self._shipped_clusters, cluster, replace=replace)

    # --- studies ---

    @repeatable
    def open_study(self, study: Study) -> Study:
        """Return the stored study of this name, or store this one.

        Raises:
            UsageError: the stored study of this name differs; the message says how.
            StoreError: another study has this id.
        """
        with self._database.alone(conflict=f"a study with the id {study.id!r} is already stored") as connection:
            return studies.open_study(connection, study, now=self._clock())

    @repeatable
    def study(self, key: str, *, cluster: Names = None) -> Study:
        """Return a study by id, name, or an unambiguous prefix of its id; those of other clusters do not exist.

        Raises:
            NotFoundError: there is no such study.
            UsageError: the prefix is ambiguous.
        """
        with self._database.reading() as connection:
            return studies.find_study(connection, key, cluster=cluster)

    @repeatable
    def studies(
        self, *, limit: int = 50, cursor: str | None = None, cluster: Names = None, model: str | None = None
    ) -> StudyPage:
        """Return a page of studies, newest first.

        Args:
            limit: most studies of the page, 1 to 500.
            cursor: `next_cursor` of the previous page.
            cluster, model: names; None = any.

        Raises:
            UsageError: a limit out of range, or an invalid cursor.
        """
        with self._database.reading() as connection:
            return summaries.study_page(
                connection, self._shipped_workloads, limit=limit, cursor=cursor, cluster=cluster, model=model
            )

    @repeatable
    def add_trial(self, study_id: str, trial: Trial, *, worker: str | None = None) -> Trial:
        """Store a trial with its measurements, all or nothing; when this returns, it survives kill -9.

        Args:
            study_id: of the study.
            trial: to store.
            worker: that claimed its number, None = it was not claimed. A worker that was assumed dead meanwhile gets
                another number.

        Raises:
            NotFoundError: there is no such study.
            StoreError: the study has a trial of this number.
        """
        conflict = f"trial {trial.number} of study {study_id} is already stored"
        with self._database.alone(conflict=conflict) as connection:
            if worker is not None:
                if (kept := trials.stored_number(connection, study_id, trial)) is not None:
                    return dataclasses.replace(trial, number=kept)
                number = close_claim(connection, study_id, trial.number, worker=worker)
                trial = dataclasses.replace(trial, number=number)
            trials.add_trial(connection, study_id, trial, now=self._clock())
        return trial

    @repeatable
    def new_trials(self, study_id: str, known: Collection[int]) -> tuple[Trial, ...]:
        """Return the trials of a study whose numbers are not known yet, by number."""
        with self._database.reading() as connection:
            return trials.all_trials(connection, study_id, without=known)

    @repeatable
    def trials(self, study_id: str) -> tuple[Trial, ...]:
        """Return the trials of a study by number, with their measurements; none for an unknown study."""
        with self._database.reading() as connection:
            return trials.all_trials(connection, study_id)

    @repeatable
    def trial_page(self, study_id: str, *, after: int = -1, limit: int) -> tuple[Trial, ...]:
        """Return the next trials of a study behind a number, with their measurements; `limit` at most."""
        with self._database.reading() as connection:
            return trials.trial_page(connection, study_id, after=after, limit=limit)

    @repeatable
    def set_state(self, study_id: str, state: StudyState, reason: str) -> None:
        """Store the state of a study and its reason.

        Raises:
            NotFoundError: there is no such study.
        """
        with self._database.alone() as connection:
            studies.set_state(connection, study_id, state, reason, now=self._clock())

    # --- recommendations ---

    @repeatable
    def publish(
        self, recommendation: Recommendation, *, by: Actor | None = None, unverified: bool = False
    ) -> Recommendation:
        """Store a recommendation and return it with its assigned revision; a revision in the argument is ignored.

        It becomes active, unless rules of its cluster, a pin or `unverified` make it wait, or its evidence is too weak
        to replace the active revision (`refuse_replacement`); it is read back as by jobs.

        Args:
            recommendation: what is published.
            by: who publishes it, and why; None = this account.
            unverified: jobs get it once `ncclt verify` has shown a gain of step time.

        Raises:
            StoreError: another one of this id is already published, or the file is damaged.
        """
        conflict = f"the recommendation {recommendation.id} is already published"
        self._database.require_sound()
        with self._database.alone(conflict=conflict) as connection:
            kept = recommendations.find_equal(connection, recommendation)
            if kept is None:
                now = self._clock()
                kept = recommendations.publish(connection, recommendation, now=now)
                refresh = partial(fresh_state, connection, self._shipped_workloads)
                life.enter(
                    connection, kept, by or Actor(who=account_name()), unverified=unverified, refresh=refresh, now=now
                )
        if not self._comes_back(kept):
            raise StoreError(
                f"the recommendation {kept.id} was stored in {self.shown} and does not come back as it was",
                hint="the store is damaged; restore a backup or name another store with --storage",
            )
        return kept

    @repeatable
    def publication(self, id: str) -> Publication:
        """Return the place of a revision among those of its jobs; NotFoundError where there is none of this id."""
        with self._database.reading() as connection:
            refresh = partial(fresh_state, connection, self._shipped_workloads)
            return life.publication_of(connection, id, refresh=refresh)

    def _comes_back(self, kept: Recommendation) -> bool:
        """Return whether a revision is read as it was published: an active one by jobs, or a later one in its place."""
        if self.status(kept.id).state not in (RevisionState.ACTIVE, RevisionState.STALE):
            return dataclasses.replace(self.recommendation(kept.id), stale="") == kept
        if self.path is None:
            served = self.newest(cluster=kept.cluster, model=kept.model)
        else:
            served = read_published(self._database.location, cluster=kept.cluster, model=kept.model)
        there = {(r.fingerprint, r.origin): r for r in served}.get((kept.fingerprint, kept.origin))
        return there is not None and (there.id != kept.id or dataclasses.replace(there, stale="") == kept)

    @repeatable
    def newest(self, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
        """Return the active recommendation of each fingerprint and origin, newest first; for `select`.

        Where none is active, the one that is rolled out; `ncclt.deliver.variant` decides what a job of it gets.

        Args:
            cluster, model: names.
        """
        with self._database.reading() as connection:
            found = recommendations.find_newest(connection, cluster=cluster, model=model)
            return with_staleness(connection, found, self._shipped_workloads)

    @repeatable
    def changes(self, since: int) -> Changes:
        """Return what jobs are given differently since a number, 0 at first."""
        with self._database.reading() as connection:
            return recommendations.changes_since(connection, since)

    @repeatable
    def recommendations(
        self, *, cluster: Names = None, model: str | None = None, study: str | None = None
    ) -> tuple[Recommendation, ...]:
        """Return recommendations, newest first.

        Args:
            cluster, model: names; None = any.
            study: id of a study; None = any.
        """
        with self._database.reading() as connection:
            found = recommendations.find_recommendations(connection, cluster=cluster, model=model, study=study)
            return with_staleness(connection, found, self._shipped_workloads)

    @repeatable
    def recommendation(self, id: str) -> Recommendation:
        """Return one published revision.

        Raises:
            NotFoundError: no recommendation has this id.
        """
        with self._database.reading() as connection:
            found = recommendations.get_recommendation(connection, id)
            return with_staleness(connection, (found,), self._shipped_workloads)[0]

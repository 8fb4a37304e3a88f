"""The part of a store that changes and shows the lives of revisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import exists, insert, select

from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import Actor, ClusterRules, HistoryEvent, RevisionState, RevisionStatus
from ncclt.core.rollout import JobDecision, JobStart, JobTime, RollOut, RollOutState
from ncclt.core.workload import Workload
from ncclt.errors import ConflictError, UsageError
from ncclt.store import life
from ncclt.store.database import Database
from ncclt.store.failures import repeatable
from ncclt.store.names import unknown_recommendation
from ncclt.store.recommendations import find_rolled_out, get_recommendation, read_recommendation
from ncclt.store.records import with_staleness
from ncclt.store.tables import (
    Names,
    history,
    is_named,
    job_decisions,
    job_starts,
    job_times,
    recommendations,
    rollouts,
    secrets,
)

MOST_LISTED = 500
"""Most rows of one answer."""


class Lives:
    """The part of a store that changes and shows the lives of revisions; see `Store`.

    What changes one raises NotFoundError for an unknown id, and ConflictError where its state does not allow it: of two
    that approve one candidate at once, the second one fails, with the name of the first.
    """

    _database: Database
    _clock: Callable[[], str]
    is_patient: bool

    if TYPE_CHECKING:

        @cached_property
        def _shipped_workloads(self) -> dict[str, Workload]: ...

    def approve(self, id: str, by: Actor, *, percent: int | None = None, loss_limit: float | None = None) -> str:
        """Approve a candidate and give it to jobs; return the id of its roll-out, empty where all jobs get it.

        Args:
            id: of the candidate.
            by: who approves, and why; where the cluster requires it, another person than the publisher.
            percent: of the jobs that get it; None = as the rules of its cluster say.
            loss_limit: loss of step time beyond which the roll-out ends, likewise.

        Raises:
            UsageError: a number is out of range.
        """
        checked = ClusterRules(cluster="", percent=percent or 100, loss_limit=loss_limit or 0.0)
        if percent is not None and percent != checked.percent:
            raise UsageError(f"a roll-out is for 1 to 100 % of the jobs, not {percent}")
        with self._database.alone() as connection:
            return life.approve(connection, id, by, percent=percent, loss_limit=loss_limit, now=self._clock())

    def activate(self, id: str, by: Actor) -> None:
        """Give a candidate that awaits nothing to all jobs, also in the middle of its roll-out."""
        with self._database.alone() as connection:
            life.activate(connection, id, by, now=self._clock())

    def roll_back(self, id: str, by: Actor) -> None:
        """Make an earlier revision active again."""
        with self._database.alone() as connection:
            found = with_staleness(connection, (get_recommendation(connection, id),), self._shipped_workloads)[0]
            if found.stale:
                raise ConflictError(
                    f"the revision {id} is stale: {found.stale}",
                    hint="`ncclt recheck` measures it again once that is repaired",
                )
            life.roll_back(connection, id, by, now=self._clock())

    def pin(self, id: str, by: Actor) -> None:
        """Give jobs this active or retired revision, whatever is published later."""
        with self._database.alone() as connection:
            life.pin(connection, id, by, now=self._clock())

    def unpin(self, id: str, by: Actor) -> None:
        """Let later revisions replace this one again."""
        with self._database.alone() as connection:
            life.unpin(connection, id, by, now=self._clock())

    def retire(self, id: str, by: Actor) -> None:
        """Give a revision to no job any more."""
        with self._database.alone() as connection:
            life.retire(connection, id, by, now=self._clock())

    @repeatable
    def rules(self, cluster: str) -> ClusterRules:
        """Return what a cluster requires before all jobs get what was published."""
        with self._database.reading() as connection:
            return life.rules_of(connection, cluster)

    def set_rules(self, rules: ClusterRules, by: Actor) -> None:
        """Store what a cluster requires, for what is published from now on."""
        with self._database.alone() as connection:
            life.set_rules(connection, rules, by, now=self._clock())

    @repeatable
    def history(
        self,
        *,
        cluster: Names = None,
        recommendation: str | None = None,
        before: int | None = None,
        limit: int = MOST_LISTED,
    ) -> tuple[HistoryEvent, ...]:
        """Return entries of the history, newest first.

        Args:
            cluster: name; None = any.
            recommendation: id of a revision; None = any.
            before: only entries with a lower number; None = from the newest one.
            limit: how many at most, up to `MOST_LISTED`.
        """
        query = select(history).order_by(history.c.sequence.desc()).limit(min(limit, MOST_LISTED))
        if before is not None:
            query = query.where(history.c.sequence < before)
        query = query.where(*is_named(history.c.cluster, cluster), *is_named(history.c.recommendation, recommendation))
        with self._database.reading() as connection:
            return tuple(life.read_event(row) for row in connection.execute(query))

    @repeatable
    def statuses(
        self, *, cluster: Names = None, model: str | None = None, id: str | None = None, limit: int = MOST_LISTED
    ) -> tuple[RevisionStatus, ...]:
        """Return revisions with their states, newest first.

        Args:
            cluster, model, id: names; None = any.
            limit: how many at most, up to `MOST_LISTED`.
        """
        query = select(recommendations).order_by(recommendations.c.sequence.desc()).limit(min(limit, MOST_LISTED))
        table = recommendations.c
        query = query.where(*is_named(table.cluster, cluster), *is_named(table.model, model), *is_named(table.id, id))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            found = tuple(read_recommendation(row.id, row.document) for row in rows)
            fresh = with_staleness(connection, found, self._shipped_workloads)
            states = [
                RevisionState.STALE if one.stale and row.state == RevisionState.ACTIVE else RevisionState(row.state)
                for row, one in zip(rows, fresh, strict=True)
            ]
            return tuple(
                RevisionStatus(
                    id=row.id,
                    revision=row.revision,
                    cluster=row.cluster,
                    model=row.model,
                    nodes=one.fingerprint.nodes,
                    gpus_per_node=one.fingerprint.gpus_per_node,
                    nccl_version=one.fingerprint.nccl_version,
                    origin=row.origin,
                    state=state,
                    stale=one.stale,
                    pinned=row.pinned,
                    unverified=row.unverified,
                    publisher=life.publisher_of(connection, row.id),
                    created=row.created,
                )
                for row, one, state in zip(rows, fresh, states, strict=True)
            )

    @repeatable
    def stale_recommendations(self, *, cluster: Names = None) -> tuple[Recommendation, ...]:
        """Return the active revisions that are stale, newest first, but those that a newer revision replaces.

        A newer revision for the same jobs, active or a candidate, that is not stale needs nothing but approval.

        Args:
            cluster: name; None = any.
        """
        table, states = recommendations.c, (RevisionState.ACTIVE.value, RevisionState.CANDIDATE.value)
        query = select(table.id, table.document, table.state, table.origin).where(table.state.in_(states))
        query = query.where(*is_named(table.cluster, cluster))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.sequence.desc())).all()
            published = tuple(read_recommendation(row.id, row.document) for row in rows)
            fresh = with_staleness(connection, published, self._shipped_workloads)
        found: list[Recommendation] = []
        renewed: set[tuple[object, ...]] = set()
        for row, one in zip(rows, fresh, strict=True):
            measured = one.fingerprint
            jobs = (
                one.cluster,
                one.model,
                measured.nodes,
                measured.gpus_per_node,
                measured.nccl_version,
                row.origin,
            )
            if one.stale and row.state == RevisionState.ACTIVE.value and jobs not in renewed:
                found.append(one)
            if not one.stale:
                renewed.add(jobs)
        return tuple(found)

    def status(self, id: str) -> RevisionStatus:
        """Return one revision with its state.

        Raises:
            NotFoundError: there is none of this id.
        """
        found = self.statuses(id=id)
        if not found:
            raise unknown_recommendation(id)
        return found[0]

    @repeatable
    def served_rollouts(self, *, cluster: str, model: str) -> tuple[tuple[RollOut, Recommendation], ...]:
        """Return the open roll-outs of a pair, each with the revision that is rolled out."""
        with self._database.reading() as connection:
            found = find_rolled_out(connection, cluster=cluster, model=model)
            fresh = with_staleness(connection, tuple(one for _, one in found), self._shipped_workloads)
            return tuple((rollout, one) for (rollout, _), one in zip(found, fresh, strict=True))

    @repeatable
    def rollout(self, id: str) -> RollOut:
        """Return a roll-out.

        Raises:
            NotFoundError: there is none of this id.
        """
        with self._database.reading() as connection:
            return life.get_rollout(connection, id)

    @repeatable
    def rollouts(
        self, *, cluster: Names = None, recommendation: str | None = None, limit: int = MOST_LISTED
    ) -> tuple[RollOut, ...]:
        """Return roll-outs, newest first; `limit` at most, up to `MOST_LISTED`."""
        query = select(rollouts).order_by(rollouts.c.sequence.desc()).limit(min(limit, MOST_LISTED))
        query = query.where(
            *is_named(rollouts.c.cluster, cluster), *is_named(rollouts.c.recommendation, recommendation)
        )
        with self._database.reading() as connection:
            return tuple(life.read_rollout(row.id, row.document) for row in connection.execute(query))

    @repeatable
    def add_job_time(self, time: JobTime) -> bool:
        """Store the step time of a job; return whether it is its first, which alone counts."""
        with self._database.alone() as connection:
            life.get_rollout(connection, time.rollout)
            of = (job_times.c.rollout == time.rollout, job_times.c.job == time.job)
            if connection.scalar(select(exists().where(*of))):
                return False
            connection.execute(
                insert(job_times).values(
                    rollout=time.rollout,
                    job=time.job,
                    recommendation=time.recommendation,
                    step_us=time.step_us,
                    steps=time.steps,
                    waited_s=time.waited_s,
                    who=time.who,
                    address=time.address,
                    created=self._clock(),
                )
            )
            return True

    @repeatable
    def job_times(self, rollout: str) -> tuple[JobTime, ...]:
        """Return the step times of a roll-out's jobs, in their order of arrival."""
        query = select(job_times).where(job_times.c.rollout == rollout).order_by(job_times.c.sequence)
        with self._database.reading() as connection:
            return tuple(
                JobTime(
                    rollout=row.rollout,
                    job=row.job,
                    recommendation=row.recommendation,
                    step_us=row.step_us,
                    steps=row.steps,
                    waited_s=row.waited_s,
                    who=row.who,
                    address=row.address,
                    created=row.created,
                )
                for row in connection.execute(query)
            )

    @repeatable
    def add_job_starts(self, starts: Sequence[JobStart]) -> None:
        """Store the starts of jobs; the first one of each job counts, and only while its roll-out is open."""
        with self._database.alone() as connection:
            ids = {start.rollout for start in starts}
            known = connection.execute(select(rollouts.c.id, rollouts.c.document).where(rollouts.c.id.in_(ids)))
            is_open = {row.id for row in known if life.read_rollout(row.id, row.document).is_open}
            for start in starts:
                of = (job_starts.c.rollout == start.rollout, job_starts.c.job == start.job)
                if start.rollout in is_open and not connection.scalar(select(exists().where(*of))):
                    connection.execute(
                        insert(job_starts).values(
                            rollout=start.rollout,
                            job=start.job,
                            recommendation=start.recommendation,
                            issued_s=start.issued_s,
                            created=self._clock(),
                        )
                    )

    @repeatable
    def job_starts(self, rollout: str) -> tuple[JobStart, ...]:
        """Return the jobs of a roll-out that got a ticket, by its time."""
        query = select(job_starts).where(job_starts.c.rollout == rollout)
        with self._database.reading() as connection:
            return tuple(
                JobStart(rollout=row.rollout, job=row.job, recommendation=row.recommendation, issued_s=row.issued_s)
                for row in connection.execute(query.order_by(job_starts.c.issued_s, job_starts.c.sequence))
            )

    @repeatable
    def keep_job_decision(self, decision: JobDecision) -> JobDecision:
        """Keep the answer for a job unless one is kept already, and return the kept one."""
        kept = job_decisions.c
        with self._database.alone() as connection:
            query = select(job_decisions).where(kept.cluster == decision.cluster, kept.job == decision.job)
            row = connection.execute(query).one_or_none()
            if row is not None:
                return JobDecision(cluster=row.cluster, job=row.job, question=row.question, document=row.document)
            connection.execute(
                insert(job_decisions).values(
                    cluster=decision.cluster,
                    job=decision.job,
                    question=decision.question,
                    document=decision.document,
                    created=self._clock(),
                )
            )
            return decision

    @repeatable
    def ticket_secret(self) -> str:
        """Return the secret that tickets are signed with: made with the store, kept in memory once it was read."""
        return self._ticket_secret

    @cached_property
    def _ticket_secret(self) -> str:
        with self._database.reading() as connection:
            query = select(secrets.c.value).where(secrets.c.name == "tickets")
            return str(connection.execute(query).scalar_one())

    def end_rollout(self, id: str, state: RollOutState, reason: str, by: Actor) -> bool:
        """End an open roll-out, as of `life.end`; return whether it was: of several that notice a loss, one ends it."""
        with self._database.alone() as connection:
            found = life.get_rollout(connection, id)
            if not found.is_open or found.state is state:
                return False
            life.end(connection, found, state, reason, by, self._clock())
            return True

"""Revisions: publishing, their states, roll-outs to a share of the jobs, the rules of clusters and the history.

What changes a revision runs in a transaction that is alone, so of two that change one the second sees the first; with
the change go its entry in the history and the note that answers changed.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, exists, func, insert, select, update

from ncclt.core.policy import Policy
from ncclt.core.publication import describe_publication, refuse_replacement
from ncclt.core.recommendation import SHAPE_PARTS, Decision, Recommendation
from ncclt.core.revision import (
    Action,
    Actor,
    ClusterRules,
    HistoryEvent,
    RevisionState,
    RevisionStatus,
    shorten_reason,
)
from ncclt.core.rollout import (
    MAX_COST,
    MOST_ARMS,
    OPEN_STATES,
    ArmState,
    JobStart,
    JobTime,
    PairedGain,
    RollOut,
    RollOutArm,
    RollOutState,
    find_same_start,
    prove_by_jobs,
    share_equally,
)
from ncclt.core.study import Study
from ncclt.core.verification import Verification
from ncclt.errors import ConflictError, StoreError, UsageError
from ncclt.store.documents import read_stored, stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.history import note_event
from ncclt.store.names import unknown_recommendation, unknown_rollout
from ncclt.store.part import Shipped, StorePart
from ncclt.store.readonly import read_published
from ncclt.store.recommendations import (
    Recommendations,
    find_active,
    get_recommendation,
    note_change,
    read_recommendation,
    with_staleness,
)
from ncclt.store.studies import open_study, write_state
from ncclt.store.tables import (
    Names,
    cluster_rules,
    history,
    is_named,
    job_decisions,
    job_starts,
    job_times,
    recommendations,
    rollout_arms,
    rollouts,
)
from ncclt.user_dirs import account_name

MOST_LISTED = 500
"""Most rows of one answer."""

_MADE_ACTIVE = (Action.ACTIVATED, Action.ROLLED_BACK)
_ARM_ENDINGS = {
    ArmState.LOST: Action.ROLL_OUT_LOST,
    ArmState.FUTILE: Action.ROLL_OUT_ENDED,
    ArmState.ENDED: Action.ROLL_OUT_ENDED,
}
_JOBS = ("cluster", "model", "fingerprint", "origin")
_STATUS_COLUMNS = ("id", "revision", "cluster", "model", "origin", "pinned", "unverified", "created")


@dataclass(frozen=True, slots=True)
class RevisionChange:
    """Change of revisions, in a transaction that is alone.

    Attributes:
        connection: of the transaction.
        shipped: what comes with ncclt.
        by: who makes it, and why.
        now: its ISO time.
    """

    connection: Connection
    shipped: Shipped
    by: Actor
    now: str

    def because(self, why: str) -> RevisionChange:
        """Return the change with another reason, of which only what an `Actor` takes is kept."""
        return replace(self, by=replace(self.by, why=shorten_reason(why)))


class Revisions(StorePart):
    """The states of revisions.

    What changes one raises NotFoundError for an unknown id, and ConflictError where its state does not allow it: of two
    that approve one candidate at once, the second one fails, with the name of the first.
    """

    @repeatable
    def publish(
        self,
        recommendation: Recommendation,
        *,
        by: Actor | None = None,
        unverified: bool = False,
        for_rollout: bool = False,
        study: Study | None = None,
    ) -> Recommendation:
        """Store a recommendation and return it with its assigned revision; a revision in the argument is ignored.

        It becomes active, unless rules of its cluster, a pin or `unverified` make it wait, or its evidence is too weak
        to replace the active revision (`refuse_replacement`); it is read back as by jobs.

        Args:
            by: who publishes it, and why; None = this account.
            unverified: jobs get it once `ncclt verify` has shown a gain of step time.
            for_rollout: it stays a candidate until `approve` makes it an arm of a roll-out.
            study: without trials, stored with it as it is, or neither is; None = it is stored already.

        Raises:
            UsageError: the stored study of this name differs.
            StoreError: another one of this id is already published, or the file is damaged.
        """
        self._require_visible(recommendation.cluster)
        conflict = f"the recommendation {recommendation.id} is already published"
        self._database.require_sound()
        with self._changing(by, conflict=conflict) as change:
            connection, now = change.connection, change.now
            if study is not None:
                write_state(connection, open_study(connection, study, now=now).id, study.state, study.reason, now=now)
            published = _find_equal(connection, recommendation)
            if published is None:
                unverified = unverified or _rules(connection, recommendation.cluster).require_verification
                published = _insert(connection, recommendation, unverified=unverified, now=now)
                row = _row(connection, published.id)
                _note(change, row, Action.PUBLISHED)
                if not for_rollout:
                    _go_on(change, row)
        if not self._comes_back(published):
            raise StoreError(
                f"the recommendation {published.id} was stored in {self._database.shown} "
                "and does not come back as it was",
                hint="the store is damaged; restore a backup or name another store with --storage",
            )
        return published

    def _comes_back(self, published: Recommendation) -> bool:
        """Read a revision back as jobs do, and compare; a later one may be in its place."""
        reading = Recommendations(self._database, self._shipped, self._clock, self._scope)
        if self.status(published.id).state not in (RevisionState.ACTIVE, RevisionState.STALE):
            return replace(reading.get(published.id), stale="") == published
        if self._database.location.path is None:
            served = reading.newest(cluster=published.cluster, model=published.model)
        else:
            served = read_published(self._database.location, cluster=published.cluster, model=published.model)
        current = {(r.fingerprint, r.origin): r for r in served}.get((published.fingerprint, published.origin))
        return current is not None and (current.id != published.id or replace(current, stale="") == published)

    @repeatable
    def publication(self, id: str) -> str:
        """Describe the publication of a revision; NotFoundError where there is none of this id."""
        with self._database.reading() as connection:
            row = self._row(connection, id)
            refusal = select(history.c.why).where(history.c.recommendation == id, history.c.action == Action.KEPT.value)
            gone = (history.c.action == Action.RETIRED.value, history.c.why == f"replaced by {id}")
            replaced = connection.execute(
                select(history.c.recommendation).where(*gone).order_by(history.c.sequence.desc()).limit(1)
            ).scalar()
            active = connection.scalar(_select_active(row))
            return describe_publication(
                id,
                RevisionState(row.state),
                kept=connection.execute(refusal.order_by(history.c.sequence.desc()).limit(1)).scalar() or "",
                active=_fresh(connection, active, self._shipped) if active and active != id else None,
                replaced=get_recommendation(connection, replaced) if replaced and active == id else None,
            )

    def approve(
        self,
        id: str,
        by: Actor,
        *,
        arms: Sequence[str] = (),
        percent: int | None = None,
        loss_limit: float | None = None,
        max_cost: float = MAX_COST,
    ) -> str:
        """Approve a candidate and give it to jobs; return the id of its roll-out, empty where all jobs get it.

        It is given as the rules say: to all jobs, or to a share of them. Several candidates for the same jobs become
        the arms of one roll-out, with equal shares; where the rules set none, the control gets as many jobs as an arm.

        Args:
            arms: ids of further candidates, up to `MOST_ARMS` together.
            by: who approves, and why; where the cluster requires it, another person than the publisher.
            percent: of the jobs that get one of them; None = as the rules of their cluster say.
            loss_limit: loss of step time beyond which an arm is dropped, likewise.
            max_cost: share of the GPU hours of the roll-out that its arms may cost.

        Raises:
            UsageError: a number is out of range, or the candidates are for different jobs.
        """
        wanted: dict[str, Any] = {"percent": percent, "loss_limit": loss_limit}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        ClusterRules(cluster="", **wanted)  # refuses a number out of range
        if len(arms) >= MOST_ARMS or len({id, *arms}) <= len(arms):
            raise UsageError(f"a roll-out has 1 to {MOST_ARMS} different revisions, not {len(arms) + 1}")
        with self._changing(by) as change:
            connection = change.connection
            rows = [self._candidate(connection, id) for id in (id, *arms)]
            rules = _rules(connection, rows[0].cluster)
            for row in rows:
                _require_approvable(connection, row, rules, by)
                if _jobs(row) != _jobs(rows[0]):
                    raise UsageError(
                        f"the revisions {rows[0].id} and {row.id} are for different jobs",
                        hint="the arms of a roll-out have one cluster, workload, size and NCCL version",
                    )
            if not arms and _promote_winner(change, rows[0], percent):
                return ""
            _require_no_rollout(connection, rows[0])
            if len(rows) > 1 and percent == 100:
                raise UsageError(
                    "several candidates need jobs without them to compare with",
                    hint="give them to less than 100 % of the jobs",
                )
            usual = share_equally(len(rows)) if len(rows) > 1 and rules.percent == 100 else rules.percent
            rules = replace(rules, **{"percent": usual, **wanted})
            for row in rows:
                _note(change, row, Action.APPROVED)
            if len(rows) == 1:
                return _give(change, rows[0], rules, max_cost=max_cost)
            return _roll_out(change, rows, rules, max_cost=max_cost)

    def activate(self, id: str, by: Actor) -> tuple[str, ...]:
        """Give a candidate that awaits nothing to all jobs; return the ids of the roll-outs that this ends."""
        with self._changing(by) as change:
            row = self._candidate(change.connection, id)
            if row.unverified:
                raise ConflictError(
                    f"the revision {id} must be verified before jobs get it", hint="see `ncclt verify --help`"
                )
            rules = _rules(change.connection, row.cluster)
            if rules.require_approval and not _has_done(change.connection, id, (Action.APPROVED,)):
                raise ConflictError(
                    f"the revision {id} is not approved",
                    hint=f"another person: `ncclt admin recommendations approve {id}`",
                )
            _require_no_pin(change.connection, row)
            return _activate(change, row, Action.ACTIVATED)

    def roll_back(self, id: str, by: Actor) -> tuple[str, ...]:
        """Make an earlier revision active again; return the ids of the roll-outs that this ends."""
        with self._changing_row(id, by) as (change, row):
            if stale := _fresh(change.connection, id, self._shipped).stale:
                raise ConflictError(
                    f"the revision {id} is stale: {stale}",
                    hint="`ncclt recheck` measures it again once that is repaired",
                )
            return _roll_back(change, row)

    def pin(self, id: str, by: Actor) -> tuple[str, ...]:
        """Give jobs this active or retired revision, whatever is published later; return the ids of ended roll-outs."""
        with self._changing_row(id, by) as (change, row):
            if row.state == RevisionState.CANDIDATE:
                raise ConflictError(
                    f"the revision {id} is a candidate", hint=f"first `ncclt admin recommendations approve {id}`"
                )
            if row.pinned:
                raise ConflictError(f"the revision {id} is pinned already")
            ended = _roll_back(change, row) if row.state == RevisionState.RETIRED else ()
            ended += _end_rollouts(change, row, f"{id} was pinned")
            _set(change.connection, row, pinned=True)
            _note(change, row, Action.PINNED)
            return ended

    def unpin(self, id: str, by: Actor) -> None:
        """Let later revisions replace this one again."""
        with self._changing_row(id, by) as (change, row):
            if not row.pinned:
                raise ConflictError(f"the revision {id} is not pinned")
            _set(change.connection, row, pinned=False)
            _note(change, row, Action.UNPINNED)

    def retire(self, id: str, by: Actor) -> tuple[str, ...]:
        """Give a revision to no job any more; return the ids of the roll-outs that this ends."""
        with self._changing_row(id, by) as (change, row):
            connection = change.connection
            if row.state == RevisionState.RETIRED:
                raise ConflictError(f"the revision {id} is retired already")
            if row.pinned:
                raise ConflictError(
                    f"the revision {id} is pinned", hint=f"first `ncclt admin recommendations pin {id} --off`"
                )
            ended = []
            for rollout in _open_rollouts(connection, row):
                ending, after = change.because(f"{id} was retired"), rollout
                if rollout.control == id:
                    after = _end_rollout(ending, rollout)
                for arm in rollout.arms:
                    if arm.recommendation == id and (arm.is_open or arm.is_served):
                        dropped = replace(arm, state=ArmState.ENDED, reason=ending.by.why)
                        after = _settle(ending, rollout, [dropped])
                ended += [] if after.is_open else [after.id]
            _set(connection, row, state=RevisionState.RETIRED.value)
            _note(change, row, Action.RETIRED)
            note_change(connection, cluster=row.cluster, model=row.model)
            return tuple(ended)

    @repeatable
    def rules(self, cluster: str) -> ClusterRules:
        """Return the conditions of a cluster before all jobs get what was published."""
        self._require_visible(cluster)
        with self._database.reading() as connection:
            return _rules(connection, cluster)

    @repeatable
    def switched_off(self) -> frozenset[str]:
        """Return the names of the clusters whose delivery is off."""
        visible = is_named(cluster_rules.c.cluster, self._within(None))
        with self._database.reading() as connection:
            rows = connection.execute(select(cluster_rules.c.cluster, cluster_rules.c.document).where(*visible)).all()
        return frozenset(row.cluster for row in rows if not _read_rules(row.cluster, row.document).delivery)

    def set_rules(self, rules: ClusterRules, by: Actor) -> None:
        """Store the conditions of a cluster for what is published from now on; delivery is switched at once."""
        self._require_visible(rules.cluster)
        with self._changing(by) as change:
            connection = change.connection
            document = to_text(rules.to_document())
            before = _rules(connection, rules.cluster)
            if rules == before:
                return
            updated = connection.execute(
                update(cluster_rules).where(cluster_rules.c.cluster == rules.cluster).values(document=document)
            )
            if not updated.rowcount:
                connection.execute(insert(cluster_rules).values(cluster=rules.cluster, document=document))
            summary = f"approval {'required' if rules.require_approval else 'not required'}, "
            summary += f"verification {'required' if rules.require_verification else 'not required'}, "
            summary += f"{rules.percent} % of jobs at first, "
            summary += f"loss limit {rules.loss_limit * 100:g} %, "
            summary += f"wins {'need approval' if rules.approve_wins else 'go to all jobs'}"
            if rules.delivery != before.delivery:
                summary = f"delivery switched {'on' if rules.delivery else 'off'}, {summary}"
                column = recommendations.c
                for model in connection.scalars(
                    select(column.model).where(column.cluster == rules.cluster).distinct()
                ).all():
                    note_change(connection, cluster=rules.cluster, model=model)
            actor = change.because(f"{summary}{f': {by.why}' if by.why else ''}").by
            note_event(connection, Action.RULES_CHANGED, actor, change.now, cluster=rules.cluster)

    @repeatable
    def history(
        self,
        *,
        cluster: Names = None,
        recommendation: Names = None,
        action: Action | None = None,
        before: int | None = None,
        limit: int = MOST_LISTED,
    ) -> tuple[HistoryEvent, ...]:
        """Return entries of the history, newest first.

        Args:
            cluster: name; None = any.
            recommendation: ids of revisions; None = any.
            action: None = any.
            before: only entries with a lower number; None = from the newest one.
            limit: how many at most.
        """
        query = select(history).where(
            *is_named(history.c.cluster, self._within(cluster)),
            *is_named(history.c.recommendation, recommendation),
            *is_named(history.c.action, action and action.value),
            *([] if before is None else [history.c.sequence < before]),
        )
        query = query.order_by(history.c.sequence.desc()).limit(limit)
        with self._database.reading() as connection:
            events = []
            for row in connection.execute(query):
                with stored(f"entry {row.sequence} of the history"):
                    document = {"schema": HistoryEvent.SHAPE.schema, **row._mapping, "number": row.sequence}
                    events.append(HistoryEvent.from_document(document))
            return tuple(events)

    @repeatable
    def statuses(
        self, *, cluster: Names = None, model: str | None = None, id: Names = None, limit: int = MOST_LISTED
    ) -> tuple[RevisionStatus, ...]:
        """Return revisions with their states, newest first.

        Args:
            cluster, model, id: names; None = any.
            limit: how many at most, up to `MOST_LISTED`.
        """
        table = recommendations.c
        where = (
            *is_named(table.cluster, self._within(cluster)),
            *is_named(table.model, model),
            *is_named(table.id, id),
        )
        query = select(recommendations).where(*where).order_by(table.sequence.desc()).limit(min(limit, MOST_LISTED))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            published = [read_recommendation(row.id, row.document) for row in rows]
            statuses = []
            for row, recommendation in zip(rows, with_staleness(connection, published, self._shipped), strict=True):
                is_stale = recommendation.stale and row.state == RevisionState.ACTIVE
                statuses.append(
                    RevisionStatus(
                        **{name: row._mapping[name] for name in _STATUS_COLUMNS},
                        **{part: getattr(recommendation.fingerprint, part) for part in SHAPE_PARTS},
                        state=RevisionState.STALE if is_stale else RevisionState(row.state),
                        stale=recommendation.stale,
                        publisher=_publisher(connection, row.id),
                    )
                )
            return tuple(statuses)

    def status(self, id: str) -> RevisionStatus:
        """Return one revision with its state.

        Raises:
            NotFoundError: there is none of this id.
        """
        statuses = self.statuses(id=id)
        if not statuses:
            raise unknown_recommendation(id)
        return statuses[0]

    @repeatable
    def rollout(self, id: str) -> RollOut:
        """Return a roll-out.

        Raises:
            NotFoundError: there is none of this id.
        """
        with self._database.reading() as connection:
            return self._rollout(connection, id)

    @repeatable
    def rollouts(
        self,
        *,
        cluster: Names = None,
        model: str | None = None,
        state: Names = None,
        recommendation: str | None = None,
        limit: int = MOST_LISTED,
        offset: int = 0,
    ) -> tuple[RollOut, ...]:
        """Return roll-outs, newest first.

        Args:
            cluster, model: names; None = any.
            state: one or several of `RollOutState`; None = any.
            recommendation: id of an arm; None = any.
            limit: how many at most, up to `MOST_LISTED`.
            offset: how many of the newest ones to leave out.
        """
        with_arm = select(rollout_arms.c.rollout).where(rollout_arms.c.recommendation == recommendation)
        query = select(rollouts).order_by(rollouts.c.sequence.desc()).limit(min(limit, MOST_LISTED)).offset(offset)
        query = query.where(
            *is_named(rollouts.c.cluster, self._within(cluster)),
            *is_named(rollouts.c.model, model),
            *is_named(rollouts.c.state, state),
            *([] if recommendation is None else [rollouts.c.id.in_(with_arm)]),
        )
        with self._database.reading() as connection:
            return tuple(_read_rollout(row.id, row.document) for row in connection.execute(query))

    def pause_rollout(self, id: str, by: Actor) -> None:
        """Pause a roll-out: jobs that start get the control until it is resumed; running jobs still report."""
        with self._changing(by) as change:
            _hold_rollout(change, self._rollout(change.connection, id).pause(by), Action.ROLL_OUT_PAUSED)

    def resume_rollout(self, id: str, by: Actor) -> None:
        """Resume a paused roll-out: its arms get their shares of the jobs again."""
        with self._changing(by) as change:
            _hold_rollout(change, self._rollout(change.connection, id).resume(), Action.ROLL_OUT_RESUMED)

    def settle_arms(self, id: str, arms: Sequence[RollOutArm], by: Actor, *, gain: PairedGain | None = None) -> RollOut:
        """Store what the guard found about arms of a roll-out, and return it: of several that notice a loss, one acts.

        A lost arm retires its revision, a futile one leaves it a candidate. A won one ends the other arms and awaits
        approval with its share, unless the rules promote it at once. An arm that was decided keeps its state, but a won
        one may still be lost. Without an arm the roll-out ends.

        Args:
            arms: in their new states; those that are left out stay.
        """
        with self._changing(by) as change:
            rollout = self._rollout(change.connection, id)
            return _settle(change, rollout, arms, gain) if rollout.is_open else rollout

    @repeatable
    def add_job_time(self, time: JobTime) -> bool:
        """Store the step time of a job; return whether it is its first, which alone counts."""
        with self._database.alone() as connection:
            self._rollout(connection, time.rollout)
            if _has_job(connection, job_times, time):
                return False
            connection.execute(insert(job_times).values(asdict(replace(time, created=self._clock()))))
            return True

    @repeatable
    def job_times(self, *of: str) -> tuple[JobTime, ...]:
        """Return the step times of the jobs of some roll-outs, by their ids, in their order of arrival."""
        columns = [job_times.c[field.name] for field in fields(JobTime)]
        query = select(*columns).where(job_times.c.rollout.in_(of)).order_by(job_times.c.sequence)
        with self._database.reading() as connection:
            self._require_roll_outs(connection, of)
            return tuple(JobTime(**row._asdict()) for row in connection.execute(query))

    @repeatable
    def claim_start(self, rollout: str, job: str, *, issued_s: float) -> JobStart | None:
        """Note that a job starts in a roll-out and return its start, with the arm by the states of this moment.

        A second request within `SAME_START_S` gets the first one's start, whatever changed since: ranks of one job
        never differ. None = the job has no part, because the roll-out is over or an earlier start had this name.

        Args:
            issued_s: Unix time.
        """
        with self._changing() as change:
            connection = change.connection
            current = self._rollout(connection, rollout)
            earlier = _find_start(connection, rollout, job)
            if earlier is not None:
                return find_same_start(earlier, issued_s)
            if not current.is_open:
                return None
            start = current.start(job, issued_s=issued_s)
            _add_start(change, start)
            _settle(change, current, ())
            return start

    @repeatable
    def find_start(self, rollout: str, job: str) -> JobStart | None:
        """Return the start of a job in a roll-out; None = none was noted."""
        with self._database.reading() as connection:
            self._rollout(connection, rollout)
            return _find_start(connection, rollout, job)

    @repeatable
    def add_job_starts(self, starts: Sequence[JobStart]) -> None:
        """Store the starts of jobs; the first one of each job counts, and only while its roll-out is open."""
        with self._changing() as change:
            connection = change.connection
            ids = {start.rollout for start in starts}
            if self._scope:
                for id in ids:
                    self._rollout(connection, id)
            rows = connection.execute(select(rollouts.c.id, rollouts.c.document).where(rollouts.c.id.in_(ids)))
            is_open = {row.id for row in rows if _read_rollout(row.id, row.document).is_open}
            for start in starts:
                if start.rollout in is_open and not _has_job(connection, job_starts, start):
                    _add_start(change, start)
            for id in is_open:
                _settle(change, self._rollout(connection, id), ())

    @repeatable
    def job_starts(self, *of: str) -> tuple[JobStart, ...]:
        """Return the jobs of some roll-outs, by their ids, that got a ticket, by its time."""
        query = select(job_starts).where(job_starts.c.rollout.in_(of))
        with self._database.reading() as connection:
            self._require_roll_outs(connection, of)
            rows = connection.execute(query.order_by(job_starts.c.issued_s, job_starts.c.sequence))
            return tuple(_read_start(row) for row in rows)

    @repeatable
    def newest_starts(
        self, *, cluster: str, model: str, before: int | None = None, limit: int = MOST_LISTED
    ) -> tuple[tuple[int, JobStart, str], ...]:
        """Return the job starts in roll-outs of one workload on one cluster, newest first: number, start, control.

        Args:
            before: only jobs with a lower number; None = from the newest one.
            limit: how many at most.
        """
        joined = job_starts.join(rollouts, rollouts.c.id == job_starts.c.rollout)
        query = select(job_starts, rollouts.c.control).select_from(joined)
        query = query.where(*is_named(rollouts.c.cluster, self._within(cluster)), rollouts.c.model == model)
        if before is not None:
            query = query.where(job_starts.c.sequence < before)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(job_starts.c.sequence.desc()).limit(limit))
            return tuple((row.sequence, _read_start(row), row.control) for row in rows)

    @repeatable
    def count_jobs(self, ids: Collection[str]) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the numbers of starts and of reports by roll-out and revision; an empty one is none."""
        with self._database.reading() as connection:
            return _count_jobs(connection, self._visible_rollouts(ids))

    @repeatable
    def keep_job_decision(self, cluster: str, job: str, *, question: str, document: str) -> tuple[str, str]:
        """Keep the answer for all nodes of a job, unless one is kept already; return the kept question and answer."""
        self._require_visible(cluster)
        with self._database.alone() as connection:
            if (decision := _find_job_decision(connection, cluster, job)) is not None:
                return decision
            values = {"cluster": cluster, "job": job, "question": question, "document": document}
            connection.execute(insert(job_decisions).values(**values, created=self._clock()))
            return question, document

    @repeatable
    def find_job_decision(self, cluster: str, job: str) -> tuple[str, str] | None:
        """Return the kept question and answer of a job; None = nothing is kept."""
        self._require_visible(cluster)
        with self._database.reading() as connection:
            return _find_job_decision(connection, cluster, job)

    @contextmanager
    def _changing(self, by: Actor | None = None, *, conflict: str = "") -> Iterator[RevisionChange]:
        """Open the transaction of a change, by default of this account."""
        with self._database.alone(conflict=conflict) as connection:
            yield RevisionChange(connection, self._shipped, by or Actor(who=account_name()), self._clock())

    @contextmanager
    def _changing_row(self, id: str, by: Actor) -> Iterator[tuple[RevisionChange, Row[Any]]]:
        """Open the transaction of a change of one revision, and read its row."""
        with self._changing(by) as change:
            yield change, self._row(change.connection, id)

    def _require_roll_outs(self, connection: Connection, ids: Collection[str]) -> None:
        """Raise NotFoundError for a roll-out that does not exist or may not be seen."""
        if missing := sorted({*ids} - {*connection.scalars(self._visible_rollouts(ids))}):
            raise unknown_rollout(missing[0])

    def _visible_rollouts(self, ids: Collection[str]) -> Select[Any]:
        return select(rollouts.c.id).where(rollouts.c.id.in_(ids), *is_named(rollouts.c.cluster, self._within(None)))

    def _row(self, connection: Connection, id: str) -> Row[Any]:
        row = _row(connection, id)
        if not self._is_visible(row.cluster):
            raise unknown_recommendation(id)
        return row

    def _candidate(self, connection: Connection, id: str) -> Row[Any]:
        row = self._row(connection, id)
        if row.state != RevisionState.CANDIDATE:
            of = select(history).where(history.c.recommendation == id).order_by(history.c.sequence.desc())
            last = connection.execute(of.limit(1)).first()
            change = f": {last.who} did that at {last.created}" if last else ""
            message = f"the revision {id} is {row.state} and no candidate any more{change}"
            raise ConflictError(message, hint=_name_next_command(row))
        return row

    def _rollout(self, connection: Connection, id: str) -> RollOut:
        document = connection.execute(select(rollouts.c.document).where(rollouts.c.id == id)).scalar()
        rollout = None if document is None else _read_rollout(id, document)
        if rollout is None or not self._is_visible(rollout.cluster):
            raise unknown_rollout(id)
        return rollout


def note_verified(connection: Connection, verification: Verification, by: Actor, *, shipped: Shipped, now: str) -> None:
    """Let a candidate that awaited its verification go on, where that showed a gain of step time."""
    row = connection.execute(select(recommendations).where(recommendations.c.id == verification.recommendation)).first()
    if row is None or not row.unverified or verification.verdict.decision is not Decision.TUNED:
        return
    _set(connection, row, unverified=False)
    change = RevisionChange(connection, shipped, by, now).because(f"verification {verification.id}")
    _note(change, row, Action.VERIFIED)
    if row.state == RevisionState.CANDIDATE:
        _go_on(change, _row(connection, row.id))


@contextmanager
def noting_stale(
    connection: Connection,
    shipped: Shipped,
    now: str,
    *,
    by: Actor | None = None,
    model: str | None = None,
    cluster: str | None = None,
) -> Iterator[None]:
    """Note in the history which active revisions the block makes stale, and that answers to jobs may have changed.

    Args:
        connection: in a transaction that is alone.
        now: ISO time.
        by: who does it; None = this account.
        model, cluster: whose revisions; None = any.
    """
    active = find_active(connection, model=model, cluster=cluster)
    fresh = {r.id for r in with_staleness(connection, active, shipped) if not r.stale}
    change = RevisionChange(connection, shipped, by or Actor(who=account_name()), now)
    yield
    for pair in sorted({(recommendation.cluster, recommendation.model) for recommendation in active}):
        note_change(connection, cluster=pair[0], model=pair[1])
    for recommendation in with_staleness(connection, active, shipped):
        if recommendation.stale and recommendation.id in fresh:
            _note(change.because(recommendation.stale), _row(connection, recommendation.id), Action.STALE)


def _find_equal(connection: Connection, recommendation: Recommendation) -> Recommendation | None:
    """Return an equal recommendation as it was stored; None where there is none of this id, or a different one."""
    table = recommendations.c
    held = connection.execute(select(table.document).where(table.id == recommendation.id)).scalar()
    if held is None:
        return None
    published = read_recommendation(recommendation.id, held)
    compared = replace(recommendation, revision=published.revision, created=recommendation.created or published.created)
    return published if published == compared else None


def _insert(connection: Connection, recommendation: Recommendation, *, unverified: bool, now: str) -> Recommendation:
    """Store a candidate under the next revision of its cluster, model and fingerprint."""
    table = recommendations.c
    fingerprint = recommendation.fingerprint.digest()
    of_pair = (table.cluster == recommendation.cluster, table.model == recommendation.model)
    newest = connection.execute(
        select(func.max(table.revision)).where(*of_pair, table.fingerprint == fingerprint)
    ).scalar()
    numbered = replace(recommendation, revision=(newest or 0) + 1, created=recommendation.created or now)
    columns = {name: getattr(numbered, name) for name in ("id", "revision", "study", "cluster", "model", "created")}
    connection.execute(
        insert(recommendations).values(
            **columns,
            fingerprint=fingerprint,
            document=to_text(numbered.to_document()),
            origin=numbered.origin.value,
            state=RevisionState.CANDIDATE.value,
            pinned=False,
            unverified=unverified,
        )
    )
    return numbered


def _go_on(change: RevisionChange, row: Row[Any]) -> None:
    """Give a candidate to jobs, unless it awaits a verification, an approval, or the end of a pin or a roll-out.

    Evidence that is too weak to replace what jobs get leaves it a candidate, until a person approves it.
    """
    rules = _rules(change.connection, row.cluster)
    rolled_out = [
        arm.recommendation
        for rollout in _open_rollouts(change.connection, row)
        for arm in rollout.arms
        if arm.is_open or arm.is_served
    ]
    is_pinned = _find_pinned(change.connection, row) is not None
    if row.unverified or rules.require_approval or is_pinned or (rolled_out and rules.percent < 100):
        return
    new = get_recommendation(change.connection, row.id)
    if new.is_untried or (new.has_step_times and rules.approve_wins):
        return  # only a roll-out serves an untried one, and a person approves a win on step times
    for id in (*change.connection.scalars(_select_active(row)), *rolled_out):
        if why := refuse_replacement(new, _fresh(change.connection, id, change.shipped)):
            _note(change.because(why), row, Action.KEPT)
            return
    _give(change, row, rules)


def _give(change: RevisionChange, row: Row[Any], rules: ClusterRules, *, max_cost: float = MAX_COST) -> str:
    """Give a candidate to the share of the jobs that the rules say; return the id of the roll-out, if it is one."""
    control = change.connection.scalar(_select_active(row))
    before = get_recommendation(change.connection, control).delivered if control else (Policy(), Policy())
    if rules.percent == 100 or get_recommendation(change.connection, row.id).delivered == before:
        _activate(change, row, Action.ACTIVATED)
        return ""
    return _roll_out(change, [row], rules, max_cost=max_cost)


def _roll_out(change: RevisionChange, rows: Sequence[Row[Any]], rules: ClusterRules, *, max_cost: float) -> str:
    """Give candidates to equal shares of the jobs, and return the id of the roll-out."""
    control = change.connection.scalar(_select_active(rows[0]))
    measured = get_recommendation(change.connection, rows[0].id).fingerprint
    rollout = RollOut(
        id=secrets.token_hex(6),
        cluster=rows[0].cluster,
        model=rows[0].model,
        arms=tuple(RollOutArm(recommendation=row.id, share=rules.percent / 100 / len(rows)) for row in rows),
        control=control or "",
        gpus=measured.nodes * measured.gpus_per_node,
        seed=secrets.token_hex(8),
        loss_limit=rules.loss_limit,
        max_cost=max_cost,
        created=change.now,
    )
    columns = {name: getattr(rollout, name) for name in ("id", "cluster", "model", "control")}
    change.connection.execute(insert(rollouts).values(**columns, **_rollout_columns(rollout)))
    against = f"against {control}" if control else "against the jobs' own settings"
    for row, arm in zip(rows, rollout.arms, strict=True):
        change.connection.execute(insert(rollout_arms).values(rollout=rollout.id, recommendation=row.id))
        terms = f"{100 * arm.share:.3g} % of the jobs, {against}, loss limit {rules.loss_limit * 100:g} %"
        _note(change.because(terms), row, Action.ROLL_OUT_BEGAN)
    note_change(change.connection, cluster=rollout.cluster, model=rollout.model)
    return rollout.id


def _roll_back(change: RevisionChange, row: Row[Any]) -> tuple[str, ...]:
    """Make an earlier revision active again."""
    if row.state != RevisionState.RETIRED:
        message = f"the revision {row.id} is {row.state}, and only a retired one can come back"
        raise ConflictError(message, hint=_name_next_command(row))
    if not _has_done(change.connection, row.id, _MADE_ACTIVE):  # it may not have been approved
        raise ConflictError(f"the revision {row.id} was never active", hint="publish it again with `ncclt tune`")
    _require_no_pin(change.connection, row)
    return _activate(change, row, Action.ROLLED_BACK)


def _name_next_command(row: Row[Any]) -> str:
    verb = {RevisionState.CANDIDATE.value: "approve", RevisionState.RETIRED.value: "activate"}.get(row.state)
    return f"`ncclt admin recommendations {verb} {row.id}`" if verb else "there is nothing to do"


def _settle(
    change: RevisionChange, rollout: RollOut, arms: Iterable[RollOutArm], gain: PairedGain | None = None
) -> RollOut:
    """Store new states of arms of an open roll-out, with what follows from them; see `Revisions.settle_arms`."""
    counts = _count_jobs(change.connection, [rollout.id])
    jobs = {arm.recommendation: counts.get((rollout.id, arm.recommendation), (0, 0)) for arm in rollout.arms}
    unreported = {recommendation: starts - reports for recommendation, (starts, reports) in jobs.items()}
    changed = rollout.settle(arms, unreported, gain=gain, now=change.now)
    if changed == rollout:
        return rollout
    _write_rollout(change.connection, changed)
    for before, arm in zip(rollout.arms, changed.arms, strict=True):
        if arm.state is before.state:
            continue
        row = _row(change.connection, arm.recommendation)
        if arm.state is ArmState.LOST:
            _set(change.connection, row, state=RevisionState.RETIRED.value)
        if arm.state in _ARM_ENDINGS:
            _note(change.because(arm.reason), row, _ARM_ENDINGS[arm.state])
    if changed.running != rollout.running or changed.state is not rollout.state:
        note_change(change.connection, cluster=rollout.cluster, model=rollout.model)
    if changed.state is RollOutState.WON and not rollout.winner:
        row = _row(change.connection, changed.winner)
        approved = _rules(change.connection, rollout.cluster).approve_wins
        awaits = f"; awaits approval, {changed.percent:g} % of the jobs keep it" if approved else ""
        _note(change.because(f"{changed.reason}{awaits}"), row, Action.ROLL_OUT_WON)
        if not approved:
            _promote(change.because(changed.reason), changed, row)
    return changed


def _count_jobs(connection: Connection, wanted: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the numbers of starts and of reports by roll-out and revision, of ids or a query of ids."""
    counts: list[dict[tuple[str, str], int]] = []
    for table in (job_starts, job_times):
        key = (table.c.rollout, table.c.recommendation)
        query = select(*key, func.count()).where(table.c.rollout.in_(wanted)).group_by(*key)
        counts.append({(row[0], row[1]): row[2] for row in connection.execute(query)})
    starts, reports = counts
    return {key: (starts.get(key, 0), reports.get(key, 0)) for key in starts | reports}


def _rollout_columns(rollout: RollOut) -> dict[str, str]:
    return {"state": rollout.state.value, "document": to_text(rollout.to_document())}


def _write_rollout(connection: Connection, rollout: RollOut) -> None:
    connection.execute(update(rollouts).where(rollouts.c.id == rollout.id).values(**_rollout_columns(rollout)))


def _hold_rollout(change: RevisionChange, rollout: RollOut, action: Action) -> None:
    """Store a roll-out that a person paused or resumed."""
    _write_rollout(change.connection, rollout)
    for arm in rollout.arms:
        if arm.is_open or arm.is_served:
            _note(change, _row(change.connection, arm.recommendation), action)
    note_change(change.connection, cluster=rollout.cluster, model=rollout.model)


def _promote_winner(change: RevisionChange, row: Row[Any], percent: int | None) -> bool:
    """Give a revision that won its roll-out to all jobs; False = it did not."""
    rolling = _open_rollouts(change.connection, row)
    rollout = next((rollout for rollout in rolling if rollout.winner == row.id), None)
    if rollout is None:
        return False
    if percent not in (None, 100):
        raise ConflictError(
            f"the revision {row.id} won its roll-out, so approval gives it to all jobs, not to {percent} %",
            hint="approve it without a percentage, or retire it",
        )
    _note(change, row, Action.APPROVED)
    _promote(change, rollout, row)
    return True


def _promote(change: RevisionChange, rollout: RollOut, row: Row[Any]) -> None:
    """Give the winner of a roll-out to all jobs, one without evidence with that of the roll-out's jobs."""
    recommendation = get_recommendation(change.connection, row.id)
    if recommendation.is_untried and rollout.gain is not None:
        of_rollout = select(job_times.c.step_us).where(job_times.c.rollout == rollout.id)
        default_us, policy_us = (
            statistics.median(change.connection.scalars(of_rollout.where(job_times.c.recommendation == id)).all())
            for id in (rollout.control, recommendation.id)
        )
        proven = prove_by_jobs(
            recommendation, rollout.gain, min_effect=rollout.min_effect, default_us=default_us, policy_us=policy_us
        )
        _set(change.connection, row, document=to_text(proven.to_document()))
    reason = next(arm.reason for arm in rollout.arms if arm.recommendation == row.id)
    _write_rollout(change.connection, replace(rollout, state=RollOutState.PROMOTED, reason=reason, ended=change.now))
    _activate(change, row, Action.ACTIVATED)


def _end_rollout(change: RevisionChange, rollout: RollOut) -> RollOut:
    """End an open roll-out without a decision: its revisions are candidates."""
    ended = [replace(arm, state=ArmState.ENDED, reason=change.by.why) for arm in rollout.arms]
    return _settle(change, rollout, ended)


def _activate(change: RevisionChange, row: Row[Any], action: Action) -> tuple[str, ...]:
    """Make a revision the one that jobs get, in place of the active one of its fingerprint and origin.

    Return the ids of the roll-outs that this ends.
    """
    if get_recommendation(change.connection, row.id).is_untried:
        raise ConflictError(
            f"the revision {row.id} has no evidence, so only a share of the jobs may try it",
            hint=f"`ncclt admin recommendations approve {row.id} --percent 50` rolls it out",
        )
    ended = _end_rollouts(change, row, f"{row.id} became active")
    active = (*_same_jobs(row), recommendations.c.state == RevisionState.ACTIVE.value)
    for before in change.connection.execute(select(recommendations).where(*active)).all():
        _set(change.connection, before, state=RevisionState.RETIRED.value, pinned=False)
        _note(change.because(f"replaced by {row.id}"), before, Action.RETIRED)
    _set(change.connection, row, state=RevisionState.ACTIVE.value)
    _note(change, row, action)
    note_change(change.connection, cluster=row.cluster, model=row.model)
    return ended


def _end_rollouts(change: RevisionChange, row: Row[Any], reason: str) -> tuple[str, ...]:
    rolling = _open_rollouts(change.connection, row)
    return tuple(_end_rollout(change.because(reason), rollout).id for rollout in rolling)


def _jobs(row: Row[Any]) -> tuple[str, ...]:
    """Return the jobs that a revision is for."""
    return tuple(row._mapping[name] for name in _JOBS)


def _same_jobs(row: Row[Any]) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of all revisions for the same jobs."""
    return tuple(recommendations.c[name] == value for name, value in zip(_JOBS, _jobs(row), strict=True))


def _select_active(row: Row[Any]) -> Select[Any]:
    return select(recommendations.c.id).where(*_same_jobs(row), recommendations.c.state == RevisionState.ACTIVE.value)


def _find_pinned(connection: Connection, row: Row[Any]) -> str | None:
    return connection.scalar(select(recommendations.c.id).where(*_same_jobs(row), recommendations.c.pinned))


def _require_no_pin(connection: Connection, row: Row[Any]) -> None:
    pinned = _find_pinned(connection, row)
    if pinned is not None and pinned != row.id:
        raise ConflictError(
            f"these jobs are pinned to the revision {pinned}",
            hint=f"first `ncclt admin recommendations pin {pinned} --off`",
        )


def _require_approvable(connection: Connection, row: Row[Any], rules: ClusterRules, by: Actor) -> None:
    if row.unverified:
        raise ConflictError(
            f"the revision {row.id} must be verified before jobs get it",
            hint=f"`ncclt verify --recommendation {row.id} -- COMMAND` measures step times; a gain makes it active",
        )
    if rules.require_approval and by.who == _publisher(connection, row.id):
        raise ConflictError(
            f"{by.who} published the revision {row.id}, and {row.cluster} requires another person to approve it",
            hint="ask another person, or an admin to change the rules: `ncclt admin recommendations rules`",
        )
    _require_no_pin(connection, row)


def _require_no_rollout(connection: Connection, row: Row[Any]) -> None:
    for rollout in _open_rollouts(connection, row):
        first = rollout.winner or rollout.arms[0].recommendation
        state = f"in the roll-out {rollout.id}, which is paused"
        if rollout.running:
            state = f"being rolled out to {rollout.percent:g} % of these jobs"
        raise ConflictError(
            f"the revision {first} is {state}",
            hint=f"end that first: `ncclt admin recommendations activate {first}`, or `retire`",
        )


def _has_done(connection: Connection, id: str, actions: tuple[Action, ...]) -> bool:
    of = (history.c.recommendation == id, history.c.action.in_([action.value for action in actions]))
    return bool(connection.scalar(select(exists().where(*of))))


def _set(connection: Connection, row: Row[Any], **values: object) -> None:
    connection.execute(update(recommendations).where(recommendations.c.id == row.id).values(**values))


def _note(change: RevisionChange, row: Row[Any], action: Action) -> None:
    of = {"cluster": row.cluster, "model": row.model, "recommendation": row.id}
    note_event(change.connection, action, change.by, change.now, **of)


def _fresh(connection: Connection, id: str, shipped: Shipped) -> Recommendation:
    return with_staleness(connection, (get_recommendation(connection, id),), shipped)[0]


def _rules(connection: Connection, cluster: str) -> ClusterRules:
    """Return the rules of a cluster; the usual ones where none were stored."""
    document = connection.execute(select(cluster_rules.c.document).where(cluster_rules.c.cluster == cluster)).scalar()
    return ClusterRules(cluster=cluster) if document is None else _read_rules(cluster, document)


def _read_rules(cluster: str, document: str) -> ClusterRules:
    return read_stored(ClusterRules, f"what the cluster {cluster} requires", document)


def _open_rollouts(connection: Connection, row: Row[Any]) -> list[RollOut]:
    """Return the open roll-outs for the same jobs as a revision."""
    column = rollouts.c
    of_pair = (column.cluster == row.cluster, column.model == row.model, column.state.in_(OPEN_STATES))
    rolling = [
        _read_rollout(stored_row.id, stored_row.document)
        for stored_row in connection.execute(select(rollouts).where(*of_pair))
    ]
    return [rollout for rollout in rolling if _jobs(_row(connection, rollout.arms[0].recommendation)) == _jobs(row)]


def _read_rollout(id: str, document: str) -> RollOut:
    """Return the roll-out of a stored document."""
    return read_stored(RollOut, f"the roll-out {id}", document)


def _find_job_decision(connection: Connection, cluster: str, job: str) -> tuple[str, str] | None:
    columns = job_decisions.c
    query = select(columns.question, columns.document).where(columns.cluster == cluster, columns.job == job)
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.question, row.document)


def _has_job(connection: Connection, table: Table, of: JobStart | JobTime) -> bool:
    return bool(connection.scalar(select(exists().where(table.c.rollout == of.rollout, table.c.job == of.job))))


def _add_start(change: RevisionChange, start: JobStart) -> None:
    running = "".join(map(str, start.running))
    change.connection.execute(insert(job_starts).values(**asdict(start) | {"running": running}, created=change.now))


def _find_start(connection: Connection, rollout: str, job: str) -> JobStart | None:
    of = (job_starts.c.rollout == rollout, job_starts.c.job == job)
    row = connection.execute(select(job_starts).where(*of)).first()
    return None if row is None else _read_start(row)


def _read_start(row: Row[Any]) -> JobStart:
    columns = {name: row._mapping[name] for name in ("rollout", "job", "recommendation", "issued_s")}
    return JobStart(**columns, running=tuple(map(int, row.running)))


def _row(connection: Connection, id: str) -> Row[Any]:
    """Return the row of a revision.

    Raises:
        NotFoundError: there is none of this id.
    """
    row = connection.execute(select(recommendations).where(recommendations.c.id == id)).first()
    if row is None:
        raise unknown_recommendation(id)
    return row


def _publisher(connection: Connection, id: str) -> str:
    """Return the publisher of a revision."""
    of = (history.c.recommendation == id, history.c.action == Action.PUBLISHED.value)
    publisher: str = connection.execute(select(history.c.who).where(*of)).scalar_one()
    return publisher

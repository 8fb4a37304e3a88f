"""Removing what no longer matters, so that a store does not grow for ever.

Entries of the history stay, and what jobs get or may get: active and waiting revisions, their studies, and the newest
record of each kind of every revision that stays, which decides whether it is stale. The newest preflight of a cluster
stays too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, exists, func, not_, or_, select

from ncclt.core.revision import Action, Actor, RevisionState, shorten_reason
from ncclt.core.rollout import OPEN_STATES
from ncclt.store.archive import opened
from ncclt.store.clock import utc_now
from ncclt.store.database import now_s
from ncclt.store.history import note_event
from ncclt.store.leases import abandoned, is_dead, is_running
from ncclt.store.location import Location
from ncclt.store.tables import (
    attested_jobs,
    history,
    job_decisions,
    job_starts,
    job_times,
    leases,
    measurements,
    recommendations,
    records,
    rollout_arms,
    rollouts,
    split_named,
    studies,
    trials,
)
from ncclt.user_dirs import account_name

_KINDS = {
    "attestation": "attestations",
    "recheck": "rechecks",
    "verification": "verifications",
    "segment": "segments",  # of `autotune --restarts`, which older releases had
}


def prune_store(
    location: Location, before: str, *, dry_run: bool, forget: Callable[[str, Sequence[str]], None]
) -> dict[str, int]:
    """Remove what no longer matters in one transaction, and return how many rows of each kind that were.

    Attestations, checks, verifications, preflights, answers kept for jobs, job starts and step times of before that
    time, but the newest record of each kind of a revision that stays, the newest preflight of a cluster, and the jobs
    of open roll-outs.
    Studies that ended before it, with their trials and revisions, unless one of those is not retired, is the newest of
    its fingerprint, or was touched since: the newest stays so that the numbers of revisions go on.

    Args:
        before: ISO time in UTC.
        dry_run: remove nothing; the numbers are those of the same statements, which are rolled back.
        forget: called with the URL of Optuna's tables and the names of the studies that go, before the end of the
            transaction and while no other process writes. What Optuna lacks is added when a study is resumed.

    Raises:
        StoreError: the store cannot be written, or its tables are of another version of ncclt.
    """
    with opened(location) as database, database.alone() as connection, connection.begin_nested() as attempt:
        counts = Counter[str]()
        ended = _ended_studies(connection, before)
        _remove_studies(connection, tuple(ended), counts)
        _remove_old(connection, before, counts)
        if removed := ", ".join(f"{number} {kind}" for kind, number in counts.items() if number):
            actor = Actor(who=account_name(), why=shorten_reason(f"before {before[:10]}: {removed}"))
            note_event(connection, Action.PRUNED, actor, utc_now())
        if dry_run:
            attempt.rollback()
        elif ended and (location.optuna_path is None or location.optuna_path.exists()):
            forget(database.optuna_url, tuple(ended.values()))
    kinds = ("studies", "trials", "revisions", "roll-outs", "step times", "job starts", *_KINDS.values(), "preflights")
    return {kind: counts[kind] for kind in kinds}


def _ended_studies(connection: Connection, before: str) -> dict[str, str]:
    """Return the names of the studies that may go, by id."""
    revision = recommendations.c
    of = revision.study == studies.c.id
    newest = select(func.max(revision.sequence)).group_by(revision.cluster, revision.model, revision.fingerprint)
    # A pinned revision is active; one that is being rolled out is a candidate, and what it is compared with is active.
    stays = or_(
        revision.state != RevisionState.RETIRED.value,
        revision.sequence.in_(newest),
        exists().where(history.c.recommendation == revision.id, history.c.created >= before),
        # With the kinds, so that the index of both is used.
        exists().where(
            records.c.kind.in_(_KINDS), records.c.recommendation == revision.id, records.c.created >= before
        ),
    )
    ended = and_(not_(is_running(abandoned(connection))), studies.c.updated < before)
    query = select(studies.c.id, studies.c.name).where(ended, ~exists().where(of, stays)).order_by(studies.c.sequence)
    now = now_s(connection)
    held = {row.study for row in connection.execute(select(leases)) if not is_dead(row.worker, row.renewed_s, now)}
    return {row.id: row.name for row in connection.execute(query) if row.id not in held}


def _remove_studies(connection: Connection, ids: Sequence[str], counts: Counter[str]) -> None:
    for chunk in split_named(ids):
        query = select(recommendations.c.id).where(recommendations.c.study.in_(chunk))
        for revisions in split_named(connection.scalars(query).all()):
            for kind, name in _KINDS.items():
                counts[name] += _delete(
                    connection, records, records.c.kind == kind, records.c.recommendation.in_(revisions)
                )
            with_arm = rollout_arms.c.recommendation.in_(revisions)
            ids = connection.scalars(select(rollout_arms.c.rollout).where(with_arm).distinct()).all()
            for part in split_named(ids):
                counts["step times"] += _delete(connection, job_times, job_times.c.rollout.in_(part))
                counts["job starts"] += _delete(connection, job_starts, job_starts.c.rollout.in_(part))
                counts["roll-outs"] += _delete(connection, rollouts, rollouts.c.id.in_(part))
                _delete(connection, rollout_arms, rollout_arms.c.rollout.in_(part))
            counts["revisions"] += _delete(connection, recommendations, recommendations.c.id.in_(revisions))
        _delete(connection, measurements, measurements.c.study.in_(chunk))
        _delete(connection, leases, leases.c.study.in_(chunk))
        counts["trials"] += _delete(connection, trials, trials.c.study.in_(chunk))
        counts["studies"] += _delete(connection, studies, studies.c.id.in_(chunk))


def _remove_old(connection: Connection, before: str, counts: Counter[str]) -> None:
    of = records.c.recommendation
    newest = select(func.max(records.c.sequence)).where(of.in_(select(recommendations.c.id)))
    is_newest = records.c.sequence.in_(newest.group_by(records.c.kind, of))
    # A record without a time has no known age.
    old = (records.c.created != "", records.c.created < before)
    for kind, name in _KINDS.items():
        counts[name] += _delete(connection, records, records.c.kind == kind, *old, ~is_newest)
    of_kind = records.c.kind == "preflight"
    last = select(func.max(records.c.sequence)).where(of_kind).group_by(records.c.cluster)
    counts["preflights"] += _delete(connection, records, of_kind, *old, records.c.sequence.not_in(last))
    live = select(rollouts.c.id).where(rollouts.c.state.in_(OPEN_STATES))
    for name, table in (("step times", job_times), ("job starts", job_starts)):
        counts[name] += _delete(connection, table, table.c.created < before, table.c.rollout.not_in(live))
    _delete(connection, job_decisions, job_decisions.c.created < before)
    attested = select(records.c.id).where(records.c.kind == "attestation")
    _delete(connection, attested_jobs, attested_jobs.c.created < before, attested_jobs.c.attestation.not_in(attested))


def _delete(connection: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    return connection.execute(delete(table).where(*where)).rowcount

"""The life of revisions as rows: each change of a state, its entry in the history, and the note that answers changed.

Every function here runs in a transaction that is alone, so of two that change one revision the second sees the first.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, insert, select, update

from ncclt.core.policy import Policy
from ncclt.core.publication import Publication, refuse_replacement
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import Action, Actor, ClusterRules, HistoryEvent, RevisionState, shorten_reason
from ncclt.core.rollout import OPEN_STATES, RollOut, RollOutState
from ncclt.core.verification import Verification
from ncclt.errors import ConflictError
from ncclt.store.documents import stored, to_text
from ncclt.store.names import unknown_recommendation, unknown_rollout
from ncclt.store.recommendations import get_recommendation, note_change
from ncclt.store.tables import cluster_rules, history, recommendations, rollouts

_MADE_ACTIVE = (Action.ACTIVATED, Action.ROLLED_BACK)
_ENDINGS = {
    RollOutState.LOST: Action.ROLL_OUT_LOST,
    RollOutState.ENDED: Action.ROLL_OUT_ENDED,
}


Refresh = Callable[[Recommendation], Recommendation]
"""Returns a revision with why it is stale."""


def enter(
    connection: Connection, published: Recommendation, by: Actor, *, unverified: bool, refresh: Refresh, now: str
) -> None:
    """Begin the life of a revision that was just stored as a candidate: active at once, unless something is awaited."""
    connection.execute(
        update(recommendations)
        .where(recommendations.c.id == published.id)
        .values(unverified=unverified or rules_of(connection, published.cluster).require_verification)
    )
    row = row_of(connection, published.id)
    _note(connection, row, Action.PUBLISHED, by, now)
    _go_on(connection, row, by, refresh, now)


def approve(
    connection: Connection, id: str, by: Actor, *, percent: int | None, loss_limit: float | None, now: str
) -> str:
    """Approve a candidate and give it to a share of the jobs, or to all; return the id of its roll-out, if any.

    One that won its roll-out goes to all jobs.
    """
    row = _candidate(connection, id)
    rules = rules_of(connection, row.cluster)
    if row.unverified:
        raise ConflictError(
            f"the revision {id} must be verified before jobs get it",
            hint=f"`ncclt verify --recommendation {id} -- COMMAND` measures step times; a gain makes it active",
        )
    if rules.require_approval and by.who == publisher_of(connection, id):
        raise ConflictError(
            f"{by.who} published the revision {id}, and {row.cluster} requires another person to approve it",
            hint="ask another person, or an admin to change the rules: `ncclt admin recommendations rules`",
        )
    _require_no_pin(connection, row)
    for found in open_rollouts(connection, row.cluster, row.model):
        if found.recommendation == id and found.state is RollOutState.WON:
            if percent not in (None, 100):
                raise ConflictError(
                    f"the revision {id} won its roll-out, so approval gives it to all jobs, not to {percent} %",
                    hint="approve it without a percentage, or retire it",
                )
            _note(connection, row, Action.APPROVED, by, now)
            end(connection, found, RollOutState.PROMOTED, found.reason, by, now)
            return ""
    _require_no_roll_out(connection, row)
    rules = replace(
        rules,
        percent=rules.percent if percent is None else percent,
        loss_limit=rules.loss_limit if loss_limit is None else loss_limit,
    )
    _note(connection, row, Action.APPROVED, by, now)
    return _give(connection, row, rules, by, now)


def activate(connection: Connection, id: str, by: Actor, *, now: str) -> None:
    """Give a candidate that awaits nothing any more to all jobs, also in the middle of its roll-out."""
    row = _candidate(connection, id)
    if row.unverified:
        raise ConflictError(f"the revision {id} must be verified before jobs get it", hint="see `ncclt verify --help`")
    if rules_of(connection, row.cluster).require_approval and not _was(connection, id, (Action.APPROVED,)):
        raise ConflictError(
            f"the revision {id} is not approved", hint=f"another person: `ncclt admin recommendations approve {id}`"
        )
    _require_no_pin(connection, row)
    _activate(connection, row, Action.ACTIVATED, by, now)


def roll_back(connection: Connection, id: str, by: Actor, *, now: str) -> None:
    """Make an earlier revision active again."""
    row = row_of(connection, id)
    if row.state != RevisionState.RETIRED:
        hint = (
            f"`ncclt admin recommendations approve {id}`"
            if row.state == RevisionState.CANDIDATE
            else "there is nothing to do"
        )
        raise ConflictError(f"the revision {id} is {row.state}, and only a retired one can come back", hint=hint)
    _require_was_served(connection, id)
    _require_no_pin(connection, row)
    _activate(connection, row, Action.ROLLED_BACK, by, now)


def pin(connection: Connection, id: str, by: Actor, *, now: str) -> None:
    """Give jobs this revision, whatever is published later."""
    row = row_of(connection, id)
    if row.state == RevisionState.CANDIDATE:
        raise ConflictError(
            f"the revision {id} is a candidate", hint=f"first `ncclt admin recommendations approve {id}`"
        )
    if row.pinned:
        raise ConflictError(f"the revision {id} is pinned already")
    if row.state == RevisionState.RETIRED:
        roll_back(connection, id, by, now=now)
    _end_roll_outs(connection, row, f"{id} was pinned", by, now)
    _set(connection, row, pinned=True)
    _note(connection, row, Action.PINNED, by, now)


def unpin(connection: Connection, id: str, by: Actor, *, now: str) -> None:
    """Let later revisions replace this one again; those that waited stay candidates until one is approved."""
    row = row_of(connection, id)
    if not row.pinned:
        raise ConflictError(f"the revision {id} is not pinned")
    _set(connection, row, pinned=False)
    _note(connection, row, Action.UNPINNED, by, now)


def retire(connection: Connection, id: str, by: Actor, *, now: str) -> None:
    """Give a revision to no job any more; without an active one jobs keep the NCCL default."""
    row = row_of(connection, id)
    if row.state == RevisionState.RETIRED:
        raise ConflictError(f"the revision {id} is retired already")
    if row.pinned:
        raise ConflictError(f"the revision {id} is pinned", hint=f"first `ncclt admin recommendations unpin {id}`")
    for found in open_rollouts(connection, row.cluster, row.model):
        if id in (found.recommendation, found.control):
            end(connection, found, RollOutState.ENDED, f"{id} was retired", by, now)
    _set(connection, row, state=RevisionState.RETIRED.value)
    _note(connection, row, Action.RETIRED, by, now)
    note_change(connection, cluster=row.cluster, model=row.model)


def verified(connection: Connection, verification: Verification, by: Actor, *, refresh: Refresh, now: str) -> None:
    """Let a candidate that awaited its verification go on, where that showed a gain of step time."""
    found = connection.execute(
        select(recommendations).where(recommendations.c.id == verification.recommendation)
    ).first()
    if found is None or not found.unverified or verification.verdict.decision is not Decision.TUNED:
        return
    _set(connection, found, unverified=False)
    by = replace(by, why=f"verification {verification.id}")
    _note(connection, found, Action.VERIFIED, by, now)
    if found.state == RevisionState.CANDIDATE:
        _go_on(connection, row_of(connection, found.id), by, refresh, now)


def went_stale(connection: Connection, id: str, why: str, by: Actor, *, now: str) -> None:
    """Note that an active revision is not served any more."""
    _note(connection, row_of(connection, id), Action.STALE, replace(by, why=shorten_reason(why)), now)


def end(connection: Connection, rollout: RollOut, state: RollOutState, reason: str, by: Actor, now: str) -> None:
    """End an open roll-out.

    Won: its revision awaits approval and its share stays, unless the rules promote it at once. Promoted makes the
    revision active, lost retires it, ended leaves it a candidate.
    """
    row = row_of(connection, rollout.recommendation)
    is_win = state is RollOutState.WON
    if is_win and not rules_of(connection, rollout.cluster).approve_wins:
        state = RollOutState.PROMOTED
    said = replace(by, why=shorten_reason(reason))
    after = replace(rollout, state=state, reason=reason, ended="" if state is RollOutState.WON else now)
    connection.execute(
        update(rollouts)
        .where(rollouts.c.id == rollout.id)
        .values(state=state.value, document=to_text(after.to_document()))
    )
    if is_win:
        awaits = "" if state is RollOutState.PROMOTED else f"; awaits approval, {rollout.percent} % of the jobs keep it"
        _note(connection, row, Action.ROLL_OUT_WON, replace(by, why=shorten_reason(f"{reason}{awaits}")), now)
    if state is RollOutState.PROMOTED:
        _activate(connection, row, Action.ACTIVATED, said, now)
    if state not in _ENDINGS:
        return
    if state is RollOutState.LOST:
        _set(connection, row, state=RevisionState.RETIRED.value)
    _note(connection, row, _ENDINGS[state], said, now)
    note_change(connection, cluster=row.cluster, model=row.model)


def set_rules(connection: Connection, rules: ClusterRules, by: Actor, *, now: str) -> None:
    """Store the rules of a cluster, for what is published from now on; delivery is switched at once."""
    document = to_text(rules.to_document())
    before = rules_of(connection, rules.cluster)
    if rules == before:
        return
    known = connection.execute(
        update(cluster_rules).where(cluster_rules.c.cluster == rules.cluster).values(document=document)
    )
    if not known.rowcount:
        connection.execute(insert(cluster_rules).values(cluster=rules.cluster, document=document))
    said = f"approval {'required' if rules.require_approval else 'not required'}, "
    said += f"verification {'required' if rules.require_verification else 'not required'}, "
    said += f"{rules.percent} % of jobs at first, "
    said += f"loss limit {rules.loss_limit * 100:g} %, "
    said += f"wins {'need approval' if rules.approve_wins else 'go to all jobs'}"
    if rules.delivery != before.delivery:
        said = f"delivery switched {'on' if rules.delivery else 'off'}, {said}"
        column = recommendations.c
        for model in connection.scalars(select(column.model).where(column.cluster == rules.cluster).distinct()).all():
            note_change(connection, cluster=rules.cluster, model=model)
    connection.execute(
        insert(history).values(
            cluster=rules.cluster,
            model="",
            recommendation="",
            action=Action.RULES_CHANGED.value,
            who=by.who,
            why=f"{said}{f': {by.why}' if by.why else ''}",
            created=now,
        )
    )


def rules_of(connection: Connection, cluster: str) -> ClusterRules:
    """Return the rules of a cluster; the usual ones where none were stored."""
    document = connection.execute(select(cluster_rules.c.document).where(cluster_rules.c.cluster == cluster)).scalar()
    if document is None:
        return ClusterRules(cluster=cluster)
    with stored(f"what the cluster {cluster} requires"):
        return ClusterRules.from_document(json.loads(document))


def open_rollouts(connection: Connection, cluster: str, model: str) -> tuple[RollOut, ...]:
    """Return the open roll-outs of a pair."""
    column = rollouts.c
    wanted = (column.cluster == cluster, column.model == model, column.state.in_(OPEN_STATES))
    return tuple(read_rollout(row.id, row.document) for row in connection.execute(select(rollouts).where(*wanted)))


def get_rollout(connection: Connection, id: str) -> RollOut:
    """Return a roll-out.

    Raises:
        NotFoundError: there is none of this id.
    """
    document = connection.execute(select(rollouts.c.document).where(rollouts.c.id == id)).scalar()
    if document is None:
        raise unknown_rollout(id)
    return read_rollout(id, document)


def read_rollout(id: str, document: str) -> RollOut:
    """Return the roll-out of a stored document."""
    with stored(f"the roll-out {id}"):
        return RollOut.from_document(json.loads(document))


def row_of(connection: Connection, id: str) -> Row[Any]:
    """Return the row of a revision.

    Raises:
        NotFoundError: there is none of this id.
    """
    row = connection.execute(select(recommendations).where(recommendations.c.id == id)).first()
    if row is None:
        raise unknown_recommendation(id)
    return row


def publisher_of(connection: Connection, id: str) -> str:
    """Return who published a revision."""
    of = (history.c.recommendation == id, history.c.action == Action.PUBLISHED.value)
    who: str = connection.execute(select(history.c.who).where(*of)).scalar_one()
    return who


def read_event(row: Row[Any]) -> HistoryEvent:
    """Return an entry of the history."""
    with stored(f"entry {row.sequence} of the history"):
        return HistoryEvent(
            number=row.sequence,
            cluster=row.cluster,
            model=row.model,
            recommendation=row.recommendation,
            action=Action(row.action),
            who=row.who,
            why=row.why,
            created=row.created,
        )


def publication_of(connection: Connection, id: str, *, refresh: Refresh) -> Publication:
    """Return the place of a revision among those of its jobs."""
    row = row_of(connection, id)
    kept = select(history.c.why).where(history.c.recommendation == id, history.c.action == Action.KEPT.value)
    gone = (history.c.action == Action.RETIRED.value, history.c.why == _replaced_by(id))
    replaced = connection.execute(
        select(history.c.recommendation).where(*gone).order_by(history.c.sequence.desc()).limit(1)
    ).scalar()
    active = connection.scalar(_active_of(row))
    return Publication(
        id=id,
        state=RevisionState(row.state),
        kept=connection.execute(kept.order_by(history.c.sequence.desc()).limit(1)).scalar() or "",
        active=refresh(get_recommendation(connection, active)) if active and active != id else None,
        replaced=get_recommendation(connection, replaced) if replaced and active == id else None,
    )


def _go_on(connection: Connection, row: Row[Any], by: Actor, refresh: Refresh, now: str) -> None:
    """Give a candidate to jobs, unless it awaits a verification, an approval, or the end of a pin or a roll-out.

    Evidence that is too weak to replace what jobs get leaves it a candidate, until a person approves it.
    """
    rules = rules_of(connection, row.cluster)
    line = connection.execute(select(recommendations.c.id).where(*_line(row), recommendations.c.pinned)).first()
    rolled_out = [
        found.recommendation
        for found in open_rollouts(connection, row.cluster, row.model)
        if _is_alike(connection, row, found)
    ]
    if row.unverified or rules.require_approval or line is not None or (rolled_out and rules.percent < 100):
        return
    new = get_recommendation(connection, row.id)
    for id in (*connection.scalars(_active_of(row)), *rolled_out):
        if why := refuse_replacement(new, refresh(get_recommendation(connection, id))):
            _note(connection, row, Action.KEPT, replace(by, why=shorten_reason(why)), now)
            return
    _give(connection, row, rules, by, now)


def _give(connection: Connection, row: Row[Any], rules: ClusterRules, by: Actor, now: str) -> str:
    """Give a candidate to the share of the jobs that the rules say; return the id of the roll-out, if it is one."""
    control = connection.scalar(_active_of(row))
    if rules.percent == 100 or not _differs(connection, row.id, control):
        _activate(connection, row, Action.ACTIVATED, by, now)
        return ""
    rollout = RollOut(
        id=secrets.token_hex(6),
        cluster=row.cluster,
        model=row.model,
        recommendation=row.id,
        control=control or "",
        percent=rules.percent,
        seed=secrets.token_hex(8),
        loss_limit=rules.loss_limit,
        created=now,
    )
    connection.execute(
        insert(rollouts).values(
            id=rollout.id,
            cluster=rollout.cluster,
            model=rollout.model,
            recommendation=rollout.recommendation,
            control=rollout.control,
            state=rollout.state.value,
            document=to_text(rollout.to_document()),
        )
    )
    against = f"against {control}" if control else "against the NCCL default"
    said = f"{rules.percent} % of the jobs, {against}, loss limit {rules.loss_limit * 100:g} %"
    _note(connection, row, Action.ROLL_OUT_BEGAN, replace(by, why=said), now)
    note_change(connection, cluster=row.cluster, model=row.model)
    return rollout.id


def _differs(connection: Connection, id: str, control: str | None) -> bool:
    """Return whether jobs get something else from a revision than from the active one, or from the NCCL default."""
    before = get_recommendation(connection, control).delivered if control else (Policy(), Policy())
    return get_recommendation(connection, id).delivered != before


def _activate(connection: Connection, row: Row[Any], action: Action, by: Actor, now: str) -> None:
    """Make a revision the one that jobs get, in place of the active one of its fingerprint and origin."""
    _end_roll_outs(connection, row, f"{row.id} became active", by, now)
    active = (*_line(row), recommendations.c.state == RevisionState.ACTIVE.value)
    for before in connection.execute(select(recommendations).where(*active)).all():
        _set(connection, before, state=RevisionState.RETIRED.value, pinned=False)
        _note(connection, before, Action.RETIRED, replace(by, why=_replaced_by(row.id)), now)
    _set(connection, row, state=RevisionState.ACTIVE.value)
    _note(connection, row, action, by, now)
    note_change(connection, cluster=row.cluster, model=row.model)


def _end_roll_outs(connection: Connection, row: Row[Any], reason: str, by: Actor, now: str) -> None:
    for found in open_rollouts(connection, row.cluster, row.model):
        if _is_alike(connection, row, found):
            end(connection, found, RollOutState.ENDED, reason, by, now)


def _is_alike(connection: Connection, row: Row[Any], rollout: RollOut) -> bool:
    """Return whether a roll-out is for the jobs that a revision is for."""
    other = row_of(connection, rollout.recommendation)
    return (other.fingerprint, other.origin) == (row.fingerprint, row.origin)


def _line(row: Row[Any]) -> tuple[ColumnElement[bool], ...]:
    """Return what the revisions have in common of which jobs get one."""
    return tuple(
        recommendations.c[name] == row._mapping[name] for name in ("cluster", "model", "fingerprint", "origin")
    )


def _active_of(row: Row[Any]) -> Select[Any]:
    return select(recommendations.c.id).where(*_line(row), recommendations.c.state == RevisionState.ACTIVE.value)


def _replaced_by(id: str) -> str:
    return f"replaced by {id}"


def _candidate(connection: Connection, id: str) -> Row[Any]:
    row = row_of(connection, id)
    if row.state != RevisionState.CANDIDATE:
        of = select(history).where(history.c.recommendation == id).order_by(history.c.sequence.desc())
        last = connection.execute(of.limit(1)).first()
        said = f": {last.who} did that at {last.created}" if last else ""
        hint = (
            f"`ncclt admin recommendations rollback {id}`"
            if row.state == RevisionState.RETIRED
            else "there is nothing to do"
        )
        raise ConflictError(f"the revision {id} is {row.state} and no candidate any more{said}", hint=hint)
    return row


def _require_no_pin(connection: Connection, row: Row[Any]) -> None:
    pinned = connection.execute(select(recommendations.c.id).where(*_line(row), recommendations.c.pinned)).scalar()
    if pinned is not None and pinned != row.id:
        raise ConflictError(
            f"these jobs are pinned to the revision {pinned}",
            hint=f"first `ncclt admin recommendations unpin {pinned}`",
        )


def _require_no_roll_out(connection: Connection, row: Row[Any]) -> None:
    for found in open_rollouts(connection, row.cluster, row.model):
        if _is_alike(connection, row, found):
            raise ConflictError(
                f"the revision {found.recommendation} is being rolled out to {found.percent} % of these jobs",
                hint=f"end that first: `ncclt admin recommendations activate {found.recommendation}`, or `retire`",
            )


def _require_was_served(connection: Connection, id: str) -> None:
    """Refuse a revision that no job ever got: it may not have been approved."""
    if not _was(connection, id, _MADE_ACTIVE):
        raise ConflictError(f"the revision {id} was never active", hint="publish it again with `ncclt tune`")


def _was(connection: Connection, id: str, actions: tuple[Action, ...]) -> bool:
    of = (history.c.recommendation == id, history.c.action.in_([action.value for action in actions]))
    return bool(connection.scalar(select(exists().where(*of))))


def _set(connection: Connection, row: Row[Any], **values: object) -> None:
    connection.execute(update(recommendations).where(recommendations.c.id == row.id).values(**values))


def _note(connection: Connection, row: Row[Any], action: Action, by: Actor, now: str) -> None:
    connection.execute(
        insert(history).values(
            cluster=row.cluster,
            model=row.model,
            recommendation=row.id,
            action=action.value,
            who=by.who,
            why=by.why,
            created=now,
        )
    )

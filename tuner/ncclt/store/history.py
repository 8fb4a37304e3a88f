"""Entries of the history, which are never changed."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from ncclt.core.revision import Action, Actor
from ncclt.store.tables import history


def note_event(
    connection: Connection,
    action: Action,
    by: Actor,
    created: str,
    *,
    cluster: str = "",
    model: str = "",
    recommendation: str = "",
) -> None:
    """Add an entry in the transaction of its change.

    Args:
        action, by: as of `HistoryEvent`.
        created: ISO time.
        cluster, model, recommendation: of the change; empty = none.
    """
    of = {"cluster": cluster, "model": model, "recommendation": recommendation}
    connection.execute(insert(history).values(**of, action=action.value, who=by.who, why=by.why, created=created))

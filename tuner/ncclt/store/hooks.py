"""The part of a store that knows which entries of the history each web hook still has to receive."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from ncclt.core.life import Action, LifeEvent
from ncclt.store import life
from ncclt.store.database import Database, now_s
from ncclt.store.failures import repeatable
from ncclt.store.tables import history, hooks

MOST_WAIT_S = 3600.0
"""Longest time between two attempts; a later one was noted before the clock was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueEvent:
    """An entry of the history that a web hook has not received.

    Attributes:
        event: the entry.
        attempts: that failed.
        since_s: Unix time of the first of them; 0 = there was none.
    """

    event: LifeEvent
    attempts: int
    since_s: float


class Hooks:
    """The part of a store that knows what each web hook has received; see `Store`."""

    _database: Database
    is_patient: bool

    @repeatable
    def take_hook_event(self, hook: str, actions: Collection[Action], *, held_s: float) -> DueEvent | None:
        """Return the oldest entry that a web hook has not received, and give it to no other process for some time.

        A web hook that is seen for the first time receives what happens from now on.

        Args:
            hook: its id.
            actions: which entries it receives.
            held_s: for how many seconds no other call returns it.

        Returns:
            None where nothing is due.
        """
        newest = select(func.max(history.c.sequence))
        of = hooks.c.id == hook
        with self._database.reading() as connection:  # every second; a writing transaction would be alone each time
            row = connection.execute(select(hooks).where(of)).first()
            if row is not None and (row.sequence >= (connection.scalar(newest) or 0) or _waits(connection, row.due_s)):
                return None
        with self._database.alone() as connection:
            last = connection.scalar(newest) or 0
            row = connection.execute(select(hooks).where(of)).first()
            if row is None:
                connection.execute(insert(hooks).values(id=hook, sequence=last, attempts=0, since_s=0.0, due_s=0.0))
                return None
            if _waits(connection, row.due_s):
                return None
            wanted = (history.c.sequence > row.sequence, history.c.action.in_([action.value for action in actions]))
            entry = connection.execute(select(history).where(*wanted).order_by(history.c.sequence).limit(1)).first()
            if entry is None:
                connection.execute(update(hooks).where(of).values(sequence=last))
                return None
            connection.execute(update(hooks).where(of).values(due_s=now_s(connection) + held_s))
            return DueEvent(event=life.read_event(entry), attempts=row.attempts, since_s=row.since_s)

    @repeatable
    def waiting_hook_event(self, hook: str, actions: Collection[Action]) -> LifeEvent | None:
        """Return the oldest entry that a web hook has not received, whether it is due or not; None where none is."""
        with self._database.reading() as connection:
            known = select(hooks.c.sequence).where(hooks.c.id == hook).scalar_subquery()
            wanted = (history.c.sequence > known, history.c.action.in_([action.value for action in actions]))
            entry = connection.execute(select(history).where(*wanted).order_by(history.c.sequence).limit(1)).first()
        return None if entry is None else life.read_event(entry)

    @repeatable
    def end_hook_event(self, hook: str, number: int) -> None:
        """Note that a web hook has received an entry, or never will: the next one is due."""
        with self._database.alone() as connection:
            of = (hooks.c.id == hook, hooks.c.sequence < number)
            connection.execute(
                update(hooks).where(*of).values(sequence=number, attempts=0, since_s=0.0, due_s=0.0)
            )  # fmt: skip

    @repeatable
    def delay_hook_event(self, hook: str, due: DueEvent, *, wait_s: float) -> None:
        """Note that an entry could not be delivered, and when it is due again."""
        with self._database.alone() as connection:
            now = now_s(connection)
            of = (hooks.c.id == hook, hooks.c.sequence < due.event.number)
            connection.execute(
                update(hooks)
                .where(*of)
                .values(attempts=due.attempts + 1, since_s=due.since_s or now, due_s=now + min(wait_s, MOST_WAIT_S))
            )


def _waits(connection: Connection, due_s: float) -> bool:
    return 0 < due_s - now_s(connection) <= MOST_WAIT_S

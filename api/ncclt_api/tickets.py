"""Tickets of the answers to jobs, and the starts that they stand for, which are stored a moment later."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from ncclt.core.rollout import SAME_START_S, JobStart, RollOut, find_same_start
from ncclt.core.ticket import sign_ticket
from ncclt.deliver.variant import ServedRevision, build_ticket, claim_stored
from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.access import who

_MOST_REMEMBERED = 100_000
_BATCH = 500
_RETRY_S = 1.0

Key = TypeVar("Key")
Value = TypeVar("Value")


class Tickets:
    """The tickets that a process issues. It works while the database is away, once the secret was read.

    The store decides at once about jobs that are drawn into an arm of a roll-out. The starts of the others are stored
    by a thread, again and again until the database takes them.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._issued: dict[tuple[str, ...], float] = {}
        self._starts: dict[tuple[str, str], JobStart] = {}
        self._pending: dict[tuple[str, str], JobStart] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def issue(self, answer: ServedRevision, job: str) -> dict[str, str]:
        """Return the fields of an answer that are the job's own; none where the name of the job is not known."""
        now_s = time.time()
        key = (job, answer.recommendation.id, answer.variant.value, answer.rollout)
        with self._changed:
            start = self._starts.get((answer.rollout, job))
            issued_s = start.issued_s if start else self._issued.get(key, 0.0)
            if not 0 <= now_s - issued_s < SAME_START_S:
                issued_s = now_s
                _remember(self._issued, key, now_s)
        return self.sign(answer, job, issued_s=issued_s)

    def sign(self, answer: ServedRevision, job: str, *, issued_s: float) -> dict[str, str]:
        """Return the ticket field of an answer; none where the name of the job is not known."""
        ticket = build_ticket(answer, job, issued_s=issued_s)
        return {} if ticket is None else {"ticket": sign_ticket(ticket, self._store().ticket_secret())}

    def needs_store(self, rollout: RollOut, job: str) -> bool:
        """Return True if only the store can say what a job gets: it is drawn into an arm, and asks the first time."""
        return rollout.find_arm(job) is not None and self._find_start(rollout, job, now_s=time.time()) is None

    def claim(self, rollout: RollOut, job: str, *, has_ticket: bool, is_store_away: bool = False) -> JobStart | None:
        """Note that a job starts in a roll-out and return its start, as of `ncclt.deliver.variant.Claim`.

        The store decides about a job that is drawn into an arm; while it is away such a job has no part.

        Args:
            rollout: open.
            has_ticket: the answer has one; without it the start must be known from another answer.
            is_store_away: do not try to reach it.
        """
        now_s = time.time()
        start = self._find_start(rollout, job, now_s=now_s)
        if start is not None:
            return start
        if rollout.find_arm(job) is None:
            if has_ticket:
                start = rollout.start(job, issued_s=now_s)
                self._note(start)
        elif not is_store_away:
            with contextlib.suppress(StoreError):
                start = claim_stored(self._store(), rollout, job, now_s=now_s, has_ticket=has_ticket)
        if start is None:
            return None
        with self._changed:
            _remember(self._starts, (rollout.id, job), start)
        return start

    def _find_start(self, rollout: RollOut, job: str, *, now_s: float) -> JobStart | None:
        with self._changed:
            return find_same_start(self._starts.get((rollout.id, job)), now_s)

    def _note(self, start: JobStart) -> None:
        """Store a start a moment later."""
        with self._changed:
            if len(self._pending) < _MOST_REMEMBERED:
                self._pending.setdefault((start.rollout, start.job), start)
            if self._thread is None:
                self._thread = threading.Thread(target=self._store_starts, name="ncclt starts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Store the last starts, if the database takes them now."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _store_starts(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_closed)
                batch = list(self._pending.values())[:_BATCH]
                is_last = self._is_closed
            if not batch:
                return
            with contextlib.suppress(StoreError):  # away; they are tried again
                self._store().revisions.add_job_starts(batch)
                with self._changed:
                    for start in batch:
                        del self._pending[start.rollout, start.job]
                continue
            if is_last:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=_RETRY_S)


def _remember(entries: dict[Key, Value], key: Key, value: Value) -> None:
    """Put an entry last, and forget the first one of too many."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > _MOST_REMEMBERED:
        del entries[next(iter(entries))]


def sender_of(request: Request) -> dict[str, str]:
    """Return the sender of a report: `who`, as `key ID` of the service, and the `address` of the client."""
    return {"who": who(request), "address": request.client.host if request.client else ""}

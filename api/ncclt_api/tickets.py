"""Tickets of the answers to jobs, and the starts that they stand for, which are stored a moment later."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from starlette.requests import Request

from ncclt.core.rollout import JobStart
from ncclt.core.ticket import sign_ticket
from ncclt.deliver.variant import ServedRevision, build_job_start, build_ticket
from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.access import who

SAME_START_S = 600.0
"""Requests for a job within this time are of one start, and get one ticket."""

_MOST_REMEMBERED = 100_000
_BATCH = 500
_RETRY_S = 1.0


class Tickets:
    """The tickets that a process issues. It works while the database is away, once the secret was read.

    Starts of jobs of roll-outs are stored by a thread, again and again until the database takes them.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._issued: dict[tuple[str, ...], float] = {}
        self._pending: dict[tuple[str, str], JobStart] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def issue(self, answer: ServedRevision, job: str) -> dict[str, str]:
        """Return the fields of an answer that are the job's own; none where the name of the job is not known."""
        now_s = time.time()
        key = (job, answer.recommendation.id, answer.variant.value, answer.rollout)
        with self._changed:
            issued_s = self._issued.get(key, 0.0)
            is_start = not 0 <= now_s - issued_s < SAME_START_S
            if is_start:
                issued_s = now_s
                self._issued.pop(key, None)
                self._issued[key] = now_s
                if len(self._issued) > _MOST_REMEMBERED:
                    del self._issued[next(iter(self._issued))]
        fields = self.sign(answer, job, issued_s=issued_s)
        if fields and is_start and answer.rollout:
            start = build_job_start(answer, job, issued_s=issued_s)
            with self._changed:
                if len(self._pending) < _MOST_REMEMBERED:
                    self._pending.setdefault((start.rollout, start.job), start)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._store_starts, name="ncclt starts", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        return fields

    def sign(self, answer: ServedRevision, job: str, *, issued_s: float) -> dict[str, str]:
        """Return the ticket field of an answer; none where the name of the job is not known."""
        ticket = build_ticket(answer, job, issued_s=issued_s)
        return {} if ticket is None else {"ticket": sign_ticket(ticket, self._store().ticket_secret())}

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


def sender_of(request: Request) -> dict[str, str]:
    """Return the sender of a report: `who`, as `key ID` of the service, and the `address` of the client."""
    return {"who": who(request), "address": request.client.host if request.client else ""}

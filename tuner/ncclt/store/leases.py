"""Leases: what workers of a study are doing now, so that several of them share one study.

A worker is a process. A dead one is noticed at once on this machine; on another machine it is assumed dead when it has
not renewed its leases for `SILENT_S`.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, not_, select, update

from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, StudyState
from ncclt.core.trial import Outcome
from ncclt.store.clock import utc_now
from ncclt.store.database import now_s
from ncclt.store.documents import to_text
from ncclt.store.failures import repeatable
from ncclt.store.part import StorePart
from ncclt.store.tables import leases, studies, trials

RENEW_S = 10.0
"""Interval at which a worker renews its leases."""

SILENT_S = 60.0
"""Without a renewal for this long a worker on another machine is assumed dead: six renewals were missed."""

ABANDONED = "no result: it failed, was killed, or could not write to the store; run the same command to resume"
"""Reason given for a running study without a worker."""

_TRIAL = "trial "
_WORKER = "worker "


def this_worker() -> str:
    """Return the name of this process: machine, process namespace, process id, and start time.

    The start time (proc_pid_stat(5), field 22) distinguishes a process from a later one with the same id; the
    namespace, because two containers on one machine may have the same host name and ids.
    """
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def _machine() -> str:
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(process_id: int) -> str:
    """Return the start time of a process, in clock ticks since boot; empty if it has ended, as a zombie too."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if state in "ZXx" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""


def is_dead(worker: str, renewed_s: float, now_s: float) -> bool:
    """Tell a dead worker: it has ended here, or has been silent for too long elsewhere.

    A renewal in the future is of before the clock was set back; a worker that lives renews again within `RENEW_S`.
    """
    machine, _, process = worker.rpartition("/")[0].rpartition("/")
    if machine == _machine():
        return _started(int(process)) != worker.rpartition("/")[2]
    return abs(now_s - renewed_s) > SILENT_S


class Leases(StorePart):
    """The leases of the workers of studies."""

    @repeatable
    def enter(self, study_id: str, worker: str) -> None:
        """Register a worker of a study."""
        with self._database.alone() as connection:
            register(connection, study_id, worker)

    @repeatable
    def leave(self, study_id: str, worker: str) -> None:
        """Give up everything that a worker holds; a study that the last one leaves as running is interrupted."""
        with self._database.alone() as connection:
            connection.execute(delete(leases).where(leases.c.study == study_id, leases.c.worker == worker))
            _end_if_abandoned(connection, study_id)

    @repeatable
    def renew(self, study_id: str, worker: str) -> None:
        """Renew the leases of a worker; to be called every `RENEW_S`."""
        own_leases = (leases.c.study == study_id, leases.c.worker == worker)
        with self._database.alone() as connection:
            connection.execute(update(leases).where(*own_leases).values(renewed_s=now_s(connection)))

    @repeatable
    def workers(self, study_id: str) -> tuple[str, ...]:
        """Return the current workers of a study."""
        with self._database.alone() as connection:
            _bury(connection, study_id)
            rows = connection.execute(_of(study_id).where(leases.c.what.like(f"{_WORKER}%")))
            return tuple(sorted(row.worker for row in rows))

    @repeatable
    def acquire(self, study_id: str, lease: str, worker: str) -> bool:
        """Claim something of a study that only one worker may do; return whether it is this worker's."""
        with self._database.alone() as connection:
            return _acquire(connection, study_id, lease, worker)

    @repeatable
    def running(self, study_id: str) -> tuple[tuple[str, Claim], ...]:
        """Return (worker, claim) of what is being launched now, by number."""
        with self._database.alone() as connection:
            _bury(connection, study_id)
            return _running(connection, study_id)

    def claim(
        self, study_id: str, setting: Setting, *, phase: Phase, repeat: int, worker: str, most: int | None = None
    ) -> Claim | None:
        """Reserve the next number of a study for a launch.

        Args:
            repeat: how often it was launched or claimed, as far as the worker knows.
            most: launches of the phase in the whole study, this one included; None = any number.

        Returns:
            None if another worker launched or claimed the setting meanwhile, or the limit is reached.
        """
        wanted = Claim(number=0, setting=setting, repeat=repeat, phase=phase)
        token = uuid.uuid4().hex  # identifies the claim if its answer is lost
        return self._claim(study_id, wanted, worker, most, token)

    @repeatable
    def _claim(self, study_id: str, wanted: Claim, worker: str, limit: int | None, token: str) -> Claim | None:
        """Reserve a number for the wanted launch."""
        with self._database.alone() as connection:
            _bury(connection, study_id)
            for row in connection.execute(_trials_of(study_id)):
                if json.loads(row.document).get("token") == token:
                    return _claim_of(row)
            running = _running(connection, study_id)
            equal = (trials.c.study == study_id, trials.c.setting == wanted.setting.digest())
            launched = connection.execute(select(func.count()).where(*equal)).scalar_one()
            if launched + sum(claim.setting == wanted.setting for _, claim in running) != wanted.repeat:
                return None
            if limit is not None:
                # A failed default does not count, it is repeated.
                failed = and_(trials.c.setting == DEFAULT.digest(), trials.c.outcome != Outcome.OK.value)
                of_phase = (trials.c.study == study_id, trials.c.phase == wanted.phase.value, not_(failed))
                ended = connection.execute(select(func.count()).where(*of_phase)).scalar_one()
                if ended + sum(claim.phase is wanted.phase for _, claim in running) >= limit:
                    return None
            claim = replace(wanted, number=_next_number(connection, study_id))
            document = {"token": token, **claim.to_document()}
            _insert(connection, study_id, f"{_TRIAL}{claim.number}", worker=worker, document=document)
            return claim


def is_running(dead: Collection[str]) -> ColumnElement[bool]:
    """Return the condition of a running study.

    Args:
        dead: ids of those that are running by their state alone, as of `abandoned`.
    """
    running = studies.c.state == StudyState.RUNNING.value
    return and_(running, studies.c.id.not_in(dead)) if dead else running  # without ids the index is enough


def abandoned(connection: Connection) -> frozenset[str]:
    """Return the ids of the studies all of whose workers have died."""
    now, workers = now_s(connection), select(leases.c.study, leases.c.worker, leases.c.renewed_s)
    lives: dict[str, bool] = {}
    for row in connection.execute(workers):
        lives[row.study] = lives.get(row.study, False) or not is_dead(row.worker, row.renewed_s, now)
    return frozenset(study for study, is_alive in lives.items() if not is_alive)


def _bury(connection: Connection, study_id: str) -> None:
    """Delete the leases of dead workers; what they were doing is free again."""
    now = now_s(connection)
    dead = [row.what for row in connection.execute(_of(study_id)) if is_dead(row.worker, row.renewed_s, now)]
    for lease in dead:
        connection.execute(delete(leases).where(leases.c.study == study_id, leases.c.what == lease))
    if dead:
        _end_if_abandoned(connection, study_id)


def _end_if_abandoned(connection: Connection, study_id: str) -> None:
    """Note that a study is interrupted if it is running and has no worker: one that failed could not say so itself."""
    running = (studies.c.id == study_id, studies.c.state == StudyState.RUNNING.value)
    text = connection.execute(select(studies.c.document).where(*running)).scalar()
    if text is not None and not connection.scalar(select(_of(study_id).exists())):
        document = to_text(json.loads(text) | {"reason": ABANDONED})
        state = StudyState.INTERRUPTED.value
        connection.execute(update(studies).where(*running).values(state=state, updated=utc_now(), document=document))


def close_claim(connection: Connection, study_id: str, number: int, *, worker: str) -> int:
    """Give up the lease of a trial that has ended and return the number to store it under.

    It is a new number if the worker was assumed dead and its number was reused: the result still counts.
    """
    own_claim = (leases.c.study == study_id, leases.c.what == f"{_TRIAL}{number}", leases.c.worker == worker)
    held = connection.execute(delete(leases).where(*own_claim)).rowcount
    return number if held else _next_number(connection, study_id)


def _running(connection: Connection, study_id: str) -> tuple[tuple[str, Claim], ...]:
    """Return (worker, claim) of all workers, by number."""
    rows = connection.execute(_trials_of(study_id))
    claims = [(row.worker, _claim_of(row)) for row in rows]
    return tuple(sorted(claims, key=lambda pair: pair[1].number))


def register(connection: Connection, study_id: str, worker: str) -> None:
    """Register a worker of a study, within a transaction."""
    _acquire(connection, study_id, f"{_WORKER}{worker}", worker)


def _acquire(connection: Connection, study_id: str, lease: str, worker: str) -> bool:
    _bury(connection, study_id)
    holder = connection.execute(_of(study_id).where(leases.c.what == lease)).first()
    if holder is None:
        _insert(connection, study_id, lease, worker=worker, document={})
    return holder is None or holder.worker == worker


def _trials_of(study_id: str) -> Any:
    return _of(study_id).where(leases.c.what.like(f"{_TRIAL}%"))


def _of(study_id: str) -> Any:
    return select(leases).where(leases.c.study == study_id).order_by(leases.c.what)


def _next_number(connection: Connection, study_id: str) -> int:
    stored = connection.execute(select(func.max(trials.c.number)).where(trials.c.study == study_id)).scalar()
    claimed = [claim.number for _, claim in _running(connection, study_id)]
    return max([-1 if stored is None else stored, *claimed]) + 1


def _insert(connection: Connection, study_id: str, lease: str, *, worker: str, document: dict[str, Any]) -> None:
    row = {"study": study_id, "what": lease, "worker": worker, "document": to_text(document)}
    connection.execute(insert(leases).values(**row, renewed_s=now_s(connection)))


def _claim_of(row: Row[Any]) -> Claim:
    return Claim.from_document(json.loads(row.document))

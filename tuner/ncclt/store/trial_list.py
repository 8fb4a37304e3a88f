"""Parts of the trials of a study: sorted, filtered and paged by the database, as a page shows them."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, func, select
from sqlalchemy.sql.selectable import FromClause

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Message
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Outcome
from ncclt.errors import NotFoundError
from ncclt.store.database import Database
from ncclt.store.documents import stored
from ncclt.store.failures import repeatable
from ncclt.store.tables import measurements, trials
from ncclt.store.trials import TRIES_SETTING, measured_trials, outline_of, read_trial

Order = Literal["number", "-number", "time", "-time"]
"""By what trials are sorted; `-` = from the largest. Trials without a time come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFilter:
    """Which trials.

    Attributes:
        phase, outcome: only these; None = all.
        message: only trials that measured it; the time is then that of one call.
        algorithm: only trials that force it, alone or in a rule of a policy.
    """

    phase: Phase | None = None
    outcome: Outcome | None = None
    message: Message | None = None
    algorithm: Algorithm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTrial:
    """One trial without its measurements.

    Attributes:
        trial: the trial.
        call_us: median time of one call of the message of the filter, µs; None = no message was chosen.
    """

    trial: Trial
    call_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPart:
    """Some trials of a study.

    Attributes:
        items: in the order that was asked for.
        matching: number of trials that the filter lets through.
        total, failed: number of all trials of the study, and of those without a time per step.
    """

    items: tuple[ListedTrial, ...]
    matching: int
    total: int
    failed: int


class TrialLists:
    """The part of a store that reads some trials of a study; see `Store`."""

    _database: Database
    is_patient: bool

    @repeatable
    def trial_list(
        self, study_id: str, only: TrialFilter, *, order: Order = "number", skip: int = 0, limit: int
    ) -> TrialPart:
        """Return the trials that a filter lets through, `limit` of them at most behind the first `skip`."""
        with self._database.reading() as connection:
            return _part(connection, study_id, only, order=order, skip=skip, limit=limit)

    @repeatable
    def trial(self, study_id: str, number: int) -> Trial:
        """Return one trial with its measurements.

        Raises:
            NotFoundError: the study has no trial of this number.
        """
        with self._database.reading() as connection:
            found = outline_of(connection, study_id, trials.c.number == number)
            if not found:
                raise NotFoundError(f"the study has no trial {number}", hint="its page lists all that have ended")
            return measured_trials(connection, study_id, found)[0]

    @repeatable
    def repeats(self, study_id: str, trial: Trial, *, limit: int) -> tuple[Trial, ...]:
        """Return the other trials that measured the same setting outside the proof, by number, `limit` at most."""
        with self._database.reading() as connection:
            mine = and_(trials.c.setting == trial.setting.digest(), trials.c.number != trial.number)
            return outline_of(connection, study_id, and_(mine, TRIES_SETTING), limit=limit)


def _part(
    connection: Connection, study_id: str, only: TrialFilter, *, order: Order, skip: int, limit: int
) -> TrialPart:
    counted = select(func.count(), func.count(trials.c.score_us)).where(trials.c.study == study_id)
    total, scored = connection.execute(counted).one()
    where = [trials.c.study == study_id]
    source: FromClause = trials
    columns: list[Any] = list(trials.c)
    if only.phase is not None:
        where.append(trials.c.phase == only.phase.value)
    if only.outcome is not None:
        where.append(trials.c.outcome == only.outcome.value)
    if only.algorithm is not None:
        # Every quote of a text in the document has a backslash before it, so nothing else looks like this.
        where.append(trials.c.document.contains(f'"algorithm":"{only.algorithm.value}"', autoescape=True))
    if only.message is not None:
        source = trials.join(measurements, and_(measurements.c.study == trials.c.study, _measures(only.message)))
        columns.append(measurements.c.samples_us)
    filtered = len(where) > 1 or only.message is not None
    counting = select(func.count()).select_from(source).where(*where)
    matching = connection.execute(counting).scalar_one() if filtered else total
    query = select(*columns).select_from(source).where(*where).order_by(*_by(order)).offset(skip).limit(limit)
    items = []
    for row in connection.execute(query):
        with stored(f"trial {row.number} of study {study_id}"):
            samples = json.loads(row.samples_us) if only.message is not None else ()
            items.append(ListedTrial(trial=read_trial(row), call_us=statistics.median(samples) if samples else None))
    return TrialPart(items=tuple(items), matching=matching, total=total, failed=total - scored)


def _measures(message: Message) -> ColumnElement[bool]:
    same = [measurements.c[name] == value for name, value in message.to_document().items()]
    return and_(measurements.c.number == trials.c.number, *same)


def _by(order: Order) -> tuple[ColumnElement[Any], ...]:
    descending = order.startswith("-")
    number: ColumnElement[Any] = trials.c.number
    if order.endswith("number"):
        return (number.desc() if descending else number.asc(),)
    time: ColumnElement[Any] = trials.c.score_us
    return (time.is_(None), time.desc() if descending else time.asc(), number)

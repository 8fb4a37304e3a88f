"""Trials and their measurements, all of them or parts that the database sorts, filters and pages."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, insert, not_, or_, select, update

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Message
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome
from ncclt.errors import NotFoundError
from ncclt.store.documents import stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.leases import close_claim
from ncclt.store.names import unknown_name
from ncclt.store.part import StorePart
from ncclt.store.tables import is_named, measurements, split_named, studies, trials

Order = Literal["number", "-number", "time", "-time"]
"""By what trials are sorted; `-` = from the largest. Trials without a time come last."""

TRIES_SETTING = or_(
    trials.c.phase == Phase.SEARCH.value,
    and_(trials.c.phase == Phase.CONFIRM.value, not_(trials.c.document.contains('"policy":{', autoescape=True))),
)
"""`Trial.tries_setting` in SQL. Every quote of a text in the document has a backslash before it, so nothing else
looks like a policy there; most trials are those of the search, whose documents need not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFilter:
    """Filter of trials.

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


class Trials(StorePart):
    """The trials of studies, by number."""

    @repeatable
    def add(self, study_id: str, trial: Trial, *, worker: str | None = None) -> Trial:
        """Store a trial with its measurements, all or nothing; when this returns, it survives kill -9.

        Args:
            worker: that claimed its number, None = it was not claimed. A worker that was assumed dead meanwhile gets
                another number.

        Raises:
            NotFoundError: there is no such study.
            StoreError: the study has a trial of this number.
        """
        conflict = f"trial {trial.number} of study {study_id} is already stored"
        with self._database.alone(conflict=conflict) as connection:
            self._require_study(connection, study_id)
            if worker is not None:
                # Under which number exactly this trial is stored: two launches of one setting differ in `repeat`.
                row = trial_row(study_id, trial)
                equal = [trials.c[name] == row[name] for name in ("study", "phase", "setting", "started", "document")]
                number: int | None = connection.execute(select(trials.c.number).where(*equal)).scalar()
                if number is not None:
                    return replace(trial, number=number)
                trial = replace(trial, number=close_claim(connection, study_id, trial.number, worker=worker))
            touched = connection.execute(update(studies).where(studies.c.id == study_id).values(updated=self._clock()))
            if touched.rowcount == 0:
                raise NotFoundError(
                    f"there is no study with the id {study_id!r}", hint="`ncclt studies list` lists all"
                )
            connection.execute(insert(trials).values(**trial_row(study_id, trial)))
            rows = [
                measurement_row(study_id, trial.number, position, measured)
                for position, measured in enumerate(trial.result.measurements)
            ]
            if rows:
                connection.execute(insert(measurements), rows)
        return trial

    @repeatable
    def find(self, study_id: str, *, without: Collection[int] = ()) -> tuple[Trial, ...]:
        """Return the trials of a study with their measurements, except some numbers; none for an unknown study."""
        with self._reading(study_id) as connection:
            numbers = connection.execute(select(trials.c.number).where(trials.c.study == study_id)).scalars().all()
            # A worker polls, mostly for no trial or the last few: read from the first of them on.
            first = min(set(numbers) - set(without), default=None)
            if first is None:
                return ()
            query = select(trials).where(trials.c.study == study_id, trials.c.number >= first)
            rows = [row for row in connection.execute(query.order_by(trials.c.number)) if row.number not in without]
            return self._with_measurements(connection, study_id, [_read_trial(row) for row in rows])

    @repeatable
    def page(self, study_id: str, *, after: int = -1, limit: int) -> tuple[Trial, ...]:
        """Return the next trials of a study behind a number, with their measurements; `limit` at most."""
        with self._reading(study_id) as connection:
            outline = self._outline(connection, study_id, trials.c.number > after, limit=limit)
            return self._with_measurements(connection, study_id, outline)

    @repeatable
    def get(self, study_id: str, number: int) -> Trial:
        """Return one trial with its measurements.

        Raises:
            NotFoundError: the study has no trial of this number.
        """
        with self._reading(study_id) as connection:
            outline = self._outline(connection, study_id, trials.c.number == number)
            if not outline:
                raise NotFoundError(f"the study has no trial {number}", hint="its page lists all that have ended")
            return self._with_measurements(connection, study_id, outline)[0]

    @repeatable
    def outline(self, study_id: str) -> tuple[Trial, ...]:
        """Return the trials of a study without their measurements: ten times as fast for a long study."""
        with self._reading(study_id) as connection:
            return self._outline(connection, study_id)

    @repeatable
    def with_proof(self, study_id: str) -> tuple[Trial, ...]:
        """Return an outline in which the proof has its measurements, for a verdict and its summary.

        The first trial of the default has them, too: without a proof, it shows the sizes that were measured.
        """
        with self._reading(study_id) as connection:
            outline = self._outline(connection, study_id)
            first = next((trial.number for trial in outline if trial.tries_setting and trial.setting == DEFAULT), None)
            wanted = [trial for trial in outline if trial.phase is Phase.PROVE or trial.number == first]
            measured = {trial.number: trial for trial in self._with_measurements(connection, study_id, wanted)}
            return tuple(measured.get(trial.number, trial) for trial in outline)

    @repeatable
    def with_measurements(self, study_id: str, wanted: Collection[Trial]) -> tuple[Trial, ...]:
        """Return trials of an outline with their measurements."""
        with self._reading(study_id) as connection:
            return self._with_measurements(connection, study_id, wanted)

    @repeatable
    def repeats(self, study_id: str, trial: Trial, *, limit: int) -> tuple[Trial, ...]:
        """Return the other trials that measured the same setting outside the proof, `limit` at most."""
        is_repeat = and_(trials.c.setting == trial.setting.digest(), trials.c.number != trial.number)
        with self._reading(study_id) as connection:
            return self._outline(connection, study_id, and_(is_repeat, TRIES_SETTING), limit=limit)

    @repeatable
    def select(
        self, study_id: str, only: TrialFilter, *, order: Order = "number", skip: int = 0, limit: int
    ) -> TrialPart:
        """Return the trials that a filter lets through, `limit` of them at most behind the first `skip`."""
        with self._reading(study_id) as connection:
            counted = select(func.count(), func.count(trials.c.score_us)).where(trials.c.study == study_id)
            total, scored = connection.execute(counted).one()
            query = _filter_trials(study_id, only)
            matching = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
            items = []
            for row in connection.execute(query.order_by(*_sort_columns(order)).offset(skip).limit(limit)):
                samples = json.loads(row.samples_us) if only.message is not None else ()
                call_us = statistics.median(samples) if samples else None
                items.append(ListedTrial(trial=_read_trial(row), call_us=call_us))
            return TrialPart(items=tuple(items), matching=matching, total=total, failed=total - scored)

    @contextmanager
    def _reading(self, study_id: str) -> Iterator[Connection]:
        """Open a transaction that reads a study within the scope."""
        with self._database.reading() as connection:
            self._require_study(connection, study_id)
            yield connection

    def _require_study(self, connection: Connection, study_id: str) -> None:
        """Refuse a study beyond the scope."""
        if self._scope:
            cluster = connection.execute(select(studies.c.cluster).where(studies.c.id == study_id)).scalar()
            if cluster not in self._scope:
                raise unknown_name("study", study_id, ())

    def _outline(
        self, connection: Connection, study_id: str, *only: ColumnElement[bool], limit: int | None = None
    ) -> tuple[Trial, ...]:
        query = select(trials).where(trials.c.study == study_id, *only)
        return tuple(map(_read_trial, connection.execute(query.order_by(trials.c.number).limit(limit))))

    def _with_measurements(
        self, connection: Connection, study_id: str, outline: Collection[Trial]
    ) -> tuple[Trial, ...]:
        measured: dict[int, list[Measurement]] = defaultdict(list)
        for numbers in split_named(trial.number for trial in outline):
            query = select(measurements).where(measurements.c.study == study_id, measurements.c.number.in_(numbers))
            for row in connection.execute(query.order_by(measurements.c.number, measurements.c.position)):
                measured[row.number].append(_read_measurement(row))
        return tuple(
            replace(trial, result=replace(trial.result, measurements=tuple(measured[trial.number])))
            for trial in outline
        )


_COLUMNS = ("number", "phase", "outcome", "score_us", "started")
_MESSAGE_COLUMNS = ("collective", "dtype", "size_bytes", "group_size", "spans_nodes")
_MEASURED_COLUMNS = ("wrong", "interpolated", "measured_bytes", "bits")
"""Fields of a trial, a message and a measurement that are columns."""


def trial_row(study_id: str, trial: Trial) -> dict[str, Any]:
    """Return the row of a trial."""
    document = replace(trial, result=replace(trial.result, measurements=())).to_document()
    columns = {name: document.pop(name) for name in _COLUMNS}
    return {"study": study_id, "setting": trial.setting.digest(), "document": to_text(document), **columns}


def _read_trial(row: Row[Any]) -> Trial:
    columns = {name: row._mapping[name] for name in _COLUMNS}
    with stored(f"trial {row.number} of study {row.study}"):
        document = json.loads(row.document)
        document.setdefault("persistent", document["warm"])  # as older versions stored it
        return Trial.from_document(document | columns)


def measurement_row(study_id: str, number: int, position: int, measurement: Measurement) -> dict[str, Any]:
    """Return the row of a measurement."""
    columns = {name: getattr(measurement, name) for name in _MEASURED_COLUMNS}
    samples = {"samples_us": to_text(measurement.samples_us)}
    place = {"study": study_id, "number": number, "position": position}
    return place | measurement.message.to_document() | columns | samples


def _read_measurement(row: Row[Any]) -> Measurement:
    columns = {name: row._mapping[name] for name in (*_MESSAGE_COLUMNS, *_MEASURED_COLUMNS)}
    with stored(f"trial {row.number} of study {row.study}"):
        return Measurement.from_document({**columns, "samples_us": json.loads(row.samples_us)})


def _filter_trials(study_id: str, only: TrialFilter) -> Select[Any]:
    """Return the query for the trials that a filter lets through, with the samples of its message."""
    where = [
        trials.c.study == study_id,
        *is_named(trials.c.phase, only.phase and only.phase.value),
        *is_named(trials.c.outcome, only.outcome and only.outcome.value),
    ]
    if only.algorithm is not None:
        # Every quote of a text in the document has a backslash before it, so nothing else looks like this.
        where.append(trials.c.document.contains(f'"algorithm":"{only.algorithm.value}"', autoescape=True))
    if only.message is None:
        return select(trials).where(*where)
    of_message = [measurements.c[name] == value for name, value in only.message.to_document().items()]
    of_trial = (measurements.c.study == trials.c.study, measurements.c.number == trials.c.number)
    source = trials.join(measurements, and_(*of_trial, *of_message))
    return select(*trials.c, measurements.c.samples_us).select_from(source).where(*where)


def _sort_columns(order: Order) -> tuple[ColumnElement[Any], ...]:
    descending = order.startswith("-")
    number: ColumnElement[Any] = trials.c.number
    if order.endswith("number"):
        return (number.desc() if descending else number.asc(),)
    time: ColumnElement[Any] = trials.c.score_us
    return (time.is_(None), time.desc() if descending else time.asc(), number)

"""Trials and their measurements as rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, insert, not_, or_, select, update

from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import NotFoundError
from ncclt.store.database import Database
from ncclt.store.documents import stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.tables import measurements, studies, trials

_MOST_NAMED = 500
"""Values in one query: PostgreSQL plans long lists slowly."""

TRIES_SETTING = or_(
    trials.c.phase == Phase.SEARCH.value,
    and_(trials.c.phase == Phase.CONFIRM.value, not_(trials.c.document.contains('"policy":{', autoescape=True))),
)
"""What `Trial.tries_setting` says. Every quote of a text in the document has a backslash before it, so nothing else
looks like a policy there; most trials are those of the search, whose documents need not be read."""


def add_trial(connection: Connection, study_id: str, trial: Trial, *, now: str) -> None:
    """Insert a trial with all its measurements; NotFoundError for an unknown study."""
    touched = connection.execute(update(studies).where(studies.c.id == study_id).values(updated=now))
    if touched.rowcount == 0:
        raise NotFoundError(f"there is no study with the id {study_id!r}", hint="`ncclt studies list` lists all")
    connection.execute(insert(trials).values(**_trial_row(study_id, trial)))
    rows = [_measurement_row(study_id, trial.number, i, m) for i, m in enumerate(trial.result.measurements)]
    if rows:
        connection.execute(insert(measurements), rows)


def stored_number(connection: Connection, study_id: str, trial: Trial) -> int | None:
    """Return the number under which exactly this trial is stored, None = it is not.

    It may differ from the claimed number. Two launches of one setting differ in `repeat`.
    """
    row = _trial_row(study_id, trial)
    same = [trials.c[name] == row[name] for name in ("study", "phase", "setting", "started", "document")]
    number: int | None = connection.execute(select(trials.c.number).where(*same)).scalar()
    return number


def all_trials(connection: Connection, study_id: str, *, without: Collection[int] = ()) -> tuple[Trial, ...]:
    """Return the trials of a study by number, with their measurements, except the numbers in `without`."""
    numbers = connection.execute(select(trials.c.number).where(trials.c.study == study_id)).scalars().all()
    wanted = sorted(set(numbers) - set(without))
    if not wanted:
        return ()
    # A worker polls, mostly for no trial or the last few: read from the first of them on.
    measured = _measured(connection, study_id, wanted[0], wanted[-1])
    found = []
    rows = select(trials).where(trials.c.study == study_id, trials.c.number >= wanted[0]).order_by(trials.c.number)
    for row in connection.execute(rows):
        if row.number in without:
            continue
        with stored(f"trial {row.number} of study {study_id}"):
            found.append(read_trial(row, tuple(measured[row.number])))
    return tuple(found)


def trial_page(connection: Connection, study_id: str, *, after: int, limit: int) -> tuple[Trial, ...]:
    """Return the next trials of a study behind a number, with their measurements; `limit` at most."""
    mine = (trials.c.study == study_id, trials.c.number > after)
    rows = connection.execute(select(trials).where(*mine).order_by(trials.c.number).limit(limit)).all()
    if not rows:
        return ()
    measured = _measured(connection, study_id, rows[0].number, rows[-1].number)
    found = []
    for row in rows:
        with stored(f"trial {row.number} of study {study_id}"):
            found.append(read_trial(row, tuple(measured[row.number])))
    return tuple(found)


def outline_of(
    connection: Connection, study_id: str, *only: ColumnElement[bool], limit: int | None = None
) -> tuple[Trial, ...]:
    """Return the trials of a study by number, without their measurements: ten times as fast for a long study."""
    mine = select(trials).where(trials.c.study == study_id, *only)
    rows = connection.execute(mine.order_by(trials.c.number).limit(limit))
    settings: dict[str, Setting] = {}
    found = []
    for row in rows:
        with stored(f"trial {row.number} of study {study_id}"):
            found.append(read_trial(row, (), settings))
    return tuple(found)


def measured_trials(connection: Connection, study_id: str, wanted: Collection[Trial]) -> tuple[Trial, ...]:
    """Return trials of an outline with their measurements."""
    mine: dict[int, list[Measurement]] = {}
    numbers = iter(trial.number for trial in wanted)
    while part := list(islice(numbers, _MOST_NAMED)):
        query = select(measurements).where(measurements.c.study == study_id, measurements.c.number.in_(part))
        for row in connection.execute(query.order_by(measurements.c.number, measurements.c.position)):
            with stored(f"trial {row.number} of study {study_id}"):
                mine.setdefault(row.number, []).append(_measurement(row))
    return tuple(
        replace(trial, result=replace(trial.result, measurements=tuple(mine.get(trial.number, ())))) for trial in wanted
    )


def _measured(connection: Connection, study_id: str, first: int, last: int) -> dict[int, list[Measurement]]:
    """Return the measurements of some trials by number, each trial's in their order."""
    found: dict[int, list[Measurement]] = defaultdict(list)
    mine = (measurements.c.study == study_id, measurements.c.number.between(first, last))
    by_position = (measurements.c.number, measurements.c.position)
    for row in connection.execute(select(measurements).where(*mine).order_by(*by_position)):
        with stored(f"trial {row.number} of study {study_id}"):
            found[row.number].append(_measurement(row))
    return found


def _trial_row(study_id: str, trial: Trial) -> dict[str, Any]:
    return {
        "study": study_id,
        "number": trial.number,
        "phase": trial.phase.value,
        "setting": trial.setting.digest(),
        "outcome": trial.result.outcome.value,
        "score_us": trial.score_us,
        "started": trial.started,
        "document": to_text(
            {
                "setting": trial.setting.to_document(),
                "repeat": trial.repeat,
                "arm": trial.arm.value if trial.arm else None,
                "block": trial.block,
                "proof": trial.proof,
                "detail": trial.result.detail,
                "wall_s": trial.result.wall_s,
                "place": trial.result.place,
                "warm": trial.result.persistent,
                "by_plugin": trial.result.by_plugin,
                **({"commands": trial.result.commands} if trial.result.commands else {}),
                **({"policy": trial.policy.to_document()} if trial.policy is not None else {}),
            }
        ),
    }


def read_trial(
    row: Row[Any], measured: tuple[Measurement, ...] = (), settings: dict[str, Setting] | None = None
) -> Trial:
    """Read a trial; `settings` keeps each setting by its digest where many trials share a few."""
    document = json.loads(row.document)
    result = TrialResult(
        outcome=Outcome(row.outcome),
        measurements=measured,
        detail=document["detail"],
        wall_s=document["wall_s"],
        place=document["place"],
        persistent=document["warm"],
        by_plugin=document["by_plugin"],
        commands=tuple(document.get("commands", ())),  # only where something was launched
    )
    setting = settings.get(row.setting) if settings is not None else None
    if setting is None:
        setting = Setting.from_document(document["setting"])
        if settings is not None:
            settings[row.setting] = setting
    return Trial(
        number=row.number,
        phase=Phase(row.phase),
        setting=setting,
        repeat=document["repeat"],
        result=result,
        score_us=row.score_us,
        arm=Arm(document["arm"]) if document["arm"] else None,
        block=document["block"],
        proof=document["proof"],
        started=row.started,
        policy=Policy.from_document(document["policy"]) if "policy" in document else None,
    )


def _measurement_row(study_id: str, number: int, position: int, measurement: Measurement) -> dict[str, Any]:
    return {
        "study": study_id,
        "number": number,
        "position": position,
        **measurement.message.to_document(),
        "wrong": measurement.wrong,
        "interpolated": measurement.interpolated,
        "samples_us": to_text(measurement.samples_us),
    }


def _measurement(row: Row[Any]) -> Measurement:
    message = Message(
        collective=Collective(row.collective),
        dtype=row.dtype,
        size_bytes=row.size_bytes,
        group_size=row.group_size,
        spans_nodes=row.spans_nodes,
    )
    samples = tuple(float(sample) for sample in json.loads(row.samples_us))
    return Measurement(message=message, samples_us=samples, wrong=row.wrong, interpolated=row.interpolated)


class Outlines:
    """The part of a store that reads long studies fast; see `Store`."""

    _database: Database
    is_patient: bool

    @repeatable
    def trial_outline(self, study_id: str) -> tuple[Trial, ...]:
        """Return the trials of a study by number, without their measurements."""
        with self._database.reading() as connection:
            return outline_of(connection, study_id)

    @repeatable
    def measured(self, study_id: str, wanted: Collection[Trial]) -> tuple[Trial, ...]:
        """Return trials of an outline with their measurements."""
        with self._database.reading() as connection:
            return measured_trials(connection, study_id, wanted)

"""Studies as rows: opening one by name, finding one, and pages of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from ncclt.core.study import Study, StudyState
from ncclt.errors import NotFoundError, UsageError
from ncclt.store.documents import stored, to_text
from ncclt.store.leases import ABANDONED, abandoned
from ncclt.store.names import unknown_name
from ncclt.store.tables import Names, is_named, studies

_LIST = "ncclt studies list"
_COLUMNS = ("id", "name", "state", "created", "updated")


def open_study(connection: Connection, study: Study, *, now: str) -> Study:
    """Return the stored study of this name, or store this one, as `Store.open_study`; run it alone."""
    row = connection.execute(select(studies).where(studies.c.name == study.name)).first()
    if row is None:
        fresh = replace(study, created=study.created or now, updated=now)
        connection.execute(insert(studies).values(**_row(fresh)))
        return fresh
    (there,) = _read(connection, [row])
    different = _differences(there, study)
    if different:
        raise UsageError(
            f"the study {study.name!r} exists and differs: {'; '.join(different)}",
            hint="give the new study a name of its own, or repeat what the stored one was started with",
        )
    return there


def find_study(connection: Connection, key: str, *, cluster: Names = None) -> Study:
    """Return a study by id, name or prefix of an id, as `Store.study`, if it is of some clusters; None = of any."""
    mine = is_named(studies.c.cluster, cluster)
    for column in (studies.c.id, studies.c.name):
        row = connection.execute(select(studies).where(column == key, *mine)).first()
        if row is not None:
            return _read(connection, [row])[0]
    begins = studies.c.id.startswith(key, autoescape=True)
    rows = connection.execute(select(studies).where(begins, *mine).limit(4)).all()
    if key and len(rows) == 1:
        return _read(connection, rows)[0]
    if key and rows:
        ids = ", ".join(row.id for row in rows)
        raise UsageError(f"several studies have an id that begins with {key!r}: {ids}", hint="give more of the id")
    names = [name for row in connection.execute(select(studies.c.name, studies.c.id).where(*mine)) for name in row]
    raise unknown_name("study", key, names)


def set_state(connection: Connection, study_id: str, state: StudyState, reason: str, *, now: str) -> None:
    """Store the state of a study and its reason, as `Store.set_state`."""
    text = connection.execute(select(studies.c.document).where(studies.c.id == study_id)).scalar()
    if text is None:
        raise NotFoundError(f"there is no study with the id {study_id!r}", hint=f"`{_LIST}` lists all")
    with stored(f"the study {study_id}"):
        document = json.loads(text) | {"reason": reason}
    values = {"state": state.value, "updated": now, "document": to_text(document)}
    connection.execute(update(studies).where(studies.c.id == study_id).values(**values))


def study_rows(
    connection: Connection, *, limit: int, before: int | None, cluster: Names, model: str | None
) -> dict[int, Study]:
    """Return up to `limit` studies that arrived before number `before`, newest first, by number of arrival."""
    query = select(studies).order_by(studies.c.sequence.desc()).limit(limit)
    if before is not None:
        query = query.where(studies.c.sequence < before)
    query = query.where(*is_named(studies.c.cluster, cluster), *is_named(studies.c.model, model))
    rows = connection.execute(query).all()
    return {row.sequence: study for row, study in zip(rows, _read(connection, rows), strict=True)}


def studies_of(connection: Connection, numbers: Collection[int]) -> tuple[Study, ...]:
    """Return the studies with some numbers of arrival, newest first."""
    query = select(studies).where(studies.c.sequence.in_(list(numbers))).order_by(studies.c.sequence.desc())
    return tuple(_read(connection, connection.execute(query).all()))


def _differences(there: Study, asked: Study) -> list[str]:
    different = list(there.cluster.fingerprint().mismatches(asked.cluster.fingerprint()))
    pairs = {
        "workload": (there.workload.digest(), asked.workload.digest()),
        "launcher": (there.launcher, asked.launcher),
        "simulated": (there.simulated, asked.simulated),
        "process-wide parameters": (_listed(there.process_wide), _listed(asked.process_wide)),
        "seed": (there.seed, asked.seed),
        "sampler": (there.sampler or "ncclt's own", asked.sampler or "ncclt's own"),
    }
    # A study that is resumed without the log keeps its tables.
    if asked.printed_costs is not None and asked.printed_costs != there.printed_costs:
        pairs["NCCL's cost tables"] = ("none" if there.printed_costs is None else "others", "those of a log")
    return different + [f"{what}: stored {old}, asked for {new}" for what, (old, new) in pairs.items() if old != new]


def _listed(names: tuple[str, ...]) -> str:
    return " ".join(names) or "none"


def _row(study: Study) -> dict[str, Any]:
    document = study.to_document()
    columns = {name: document.pop(name) for name in _COLUMNS}
    return {**columns, "cluster": study.cluster.name, "model": study.workload.name, "document": to_text(document)}


def _read(connection: Connection, rows: Sequence[Row[Any]]) -> list[Study]:
    """Return studies; one that is running by its state, and whose workers have all died, is interrupted."""
    running = StudyState.RUNNING.value
    dead = abandoned(connection) if any(row.state == running for row in rows) else frozenset()
    return [
        replace(study, state=StudyState.INTERRUPTED, reason=ABANDONED)
        if study.state is StudyState.RUNNING and study.id in dead
        else study
        for study in map(_study, rows)
    ]


def _study(row: Row[Any]) -> Study:
    with stored(f"the study {row.name!r}"):
        return Study.from_document(json.loads(row.document) | {name: getattr(row, name) for name in _COLUMNS})

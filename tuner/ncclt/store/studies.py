"""Studies: opening one by name, finding one, and pages of them with their numbers so far.

A handful of queries per page, each over an index, however many studies there are; tests look at their plans.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, insert, not_, select, update

from ncclt.core.setting import DEFAULT
from ncclt.core.study import Study, StudyEntry, StudyPage, StudyState
from ncclt.errors import NotFoundError, UsageError
from ncclt.store.documents import read_stored, stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.leases import ABANDONED, abandoned, is_running, register
from ncclt.store.names import unknown_name
from ncclt.store.part import StorePart
from ncclt.store.recommendations import newest_by_study, with_staleness
from ncclt.store.tables import Names, clusters, is_named, studies, trials, workloads
from ncclt.store.trials import TRIES_SETTING

MAX_LIMIT = 500
"""Largest page."""

MOST_FOUND = 8
"""Hits of one kind that a search by name returns."""

MOST_RUNNING = 20
"""Running studies that are listed."""

_COLUMNS = ("id", "name", "state", "created", "updated")


class Studies(StorePart):
    """The studies."""

    @repeatable
    def open(self, study: Study, *, worker: str = "") -> Study:
        """Return the stored study of this name, or store this one.

        Args:
            worker: that runs it, as of `this_worker`: a new study is interrupted once it has died; empty = none yet.

        Raises:
            UsageError: the stored study of this name differs; the message says how.
            StoreError: another study has this id.
        """
        self._require_visible(study.cluster.name)
        with self._database.alone(conflict=f"a study with the id {study.id!r} is already stored") as connection:
            return open_study(connection, study, now=self._clock(), worker=worker)

    @repeatable
    def get(self, key: str, *, cluster: Names = None) -> Study:
        """Return a study by id, name, or an unambiguous prefix of its id; those of other clusters do not exist.

        Raises:
            NotFoundError: there is no such study.
            UsageError: the prefix is ambiguous.
        """
        visible = is_named(studies.c.cluster, self._within(cluster))
        with self._database.reading() as connection:
            for column in (studies.c.id, studies.c.name):
                row = connection.execute(select(studies).where(column == key, *visible)).first()
                if row is not None:
                    return _read(connection, [row])[0]
            begins = studies.c.id.startswith(key, autoescape=True)
            rows = connection.execute(select(studies).where(begins, *visible).limit(4)).all()
            if key and len(rows) == 1:
                return _read(connection, rows)[0]
            if key and rows:
                ids = ", ".join(row.id for row in rows)
                raise UsageError(f"several studies have an id that begins with {key!r}: {ids}", hint="give more of it")
            names = connection.execute(select(studies.c.name, studies.c.id).where(*visible))
            raise unknown_name("study", key, [name for row in names for name in row])

    @repeatable
    def page(
        self, *, limit: int = 50, cursor: str | None = None, cluster: Names = None, model: str | None = None
    ) -> StudyPage:
        """Return a page of studies, newest first.

        Args:
            limit: most studies of the page, 1 to 500.
            cursor: `next_cursor` of the previous page.
            cluster, model: names; None = any.

        Raises:
            UsageError: a limit out of range, or an invalid cursor.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise UsageError(f"the limit must be 1 to {MAX_LIMIT}, not {limit}")
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
            raise UsageError(f"{cursor!r} is not a cursor", hint="pass the next_cursor of the previous page")
        query = self._newest_first(cluster, model).limit(limit + 1)
        if cursor is not None:
            query = query.where(studies.c.sequence < int(cursor))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            shown = rows[:limit]
            items = self._summaries(connection, _read(connection, shown))
        return StudyPage(items=items, next_cursor=str(shown[-1].sequence) if len(rows) > limit else None)

    @repeatable
    def running(self, *, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the studies that are running, newest first, `MOST_RUNNING` at most; None = any."""
        with self._database.reading() as connection:
            query = self._newest_first(cluster, model).where(is_running(abandoned(connection))).limit(MOST_RUNNING)
            return self._summaries(connection, _read(connection, connection.execute(query).all()))

    @repeatable
    def recent(self, *, limit: int, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the newest studies that are not running; None = any."""
        with self._database.reading() as connection:
            query = self._newest_first(cluster, model).where(not_(is_running(abandoned(connection)))).limit(limit)
            return self._summaries(connection, _read(connection, connection.execute(query).all()))

    @repeatable
    def set_state(self, id: str, state: StudyState, reason: str) -> None:
        """Store the state of a study and its reason.

        Raises:
            NotFoundError: there is no such study.
        """
        with self._database.alone() as connection:
            visible = is_named(studies.c.cluster, self._within(None))
            write_state(connection, id, state, reason, now=self._clock(), only=visible)

    @repeatable
    def search(self, text: str, *, cluster: Names = None) -> tuple[tuple[str, str, str], ...]:
        """Return studies, clusters and workloads whose name, or id, contains a text; those that begin with it first.

        Each is (`cluster`, `workload` or `study`; the name, or the id of a study; the name).

        Args:
            text: what was typed; upper and lower case are the same.
            cluster: the only ones that may be found, and those of studies; None = any.
        """
        wanted = text.strip().casefold()
        if not wanted:
            return ()
        cluster = self._within(cluster)
        in_name = studies.c.name.icontains(wanted, autoescape=True) | studies.c.id.startswith(wanted, autoescape=True)
        newest = select(studies.c.id, studies.c.name).where(in_name, *is_named(studies.c.cluster, cluster))
        with self._database.reading() as connection:
            names = {
                "cluster": {*self._shipped.clusters, *connection.scalars(select(clusters.c.name))},
                "workload": {*self._shipped.workloads, *connection.scalars(select(workloads.c.name))},
            }
            named = connection.execute(newest.order_by(studies.c.sequence.desc()).limit(MOST_FOUND)).all()
        if cluster is not None:
            names["cluster"] &= {cluster} if isinstance(cluster, str) else set(cluster)
        hits: list[tuple[str, str, str]] = []
        for kind, of_kind in names.items():
            fitting = [name for name in of_kind if wanted in name.casefold()]
            fitting.sort(key=lambda name: (not name.casefold().startswith(wanted), name))
            hits += [(kind, name, name) for name in fitting[:MOST_FOUND]]
        return (*hits, *(("study", id, name) for id, name in named))

    def _newest_first(self, cluster: Names, model: str | None) -> Select[Any]:
        where = (*is_named(studies.c.cluster, self._within(cluster)), *is_named(studies.c.model, model))
        return select(studies).where(*where).order_by(studies.c.sequence.desc())

    def _summaries(self, connection: Connection, shown: Sequence[Study]) -> tuple[StudyEntry, ...]:
        """Return studies with their numbers so far, in their order; recommendations say whether they are stale."""
        ids = [study.id for study in shown]
        count = select(trials.c.study, func.count().label("trials")).where(trials.c.study.in_(ids))
        counts = {row.study: row.trials for row in connection.execute(count.group_by(trials.c.study))}
        published = tuple(newest_by_study(connection, ids).values())
        recommended = {r.study: r for r in with_staleness(connection, published, self._shipped)}
        proven = {r.study for r in published if r.table.verdict.default_us}
        scores = _median_scores(connection, [id for id in ids if id not in proven])
        return tuple(
            StudyEntry(
                study=study,
                trials=counts.get(study.id, 0),
                best_us=min(scores[study.id].values(), default=None),
                default_us=scores[study.id].get(DEFAULT.digest()),
                recommendation=recommended.get(study.id),
            )
            for study in shown
        )


def open_study(connection: Connection, study: Study, *, now: str, worker: str = "") -> Study:
    """Do the work of `Studies.open` in a transaction that is alone."""
    row = connection.execute(select(studies).where(studies.c.name == study.name)).first()
    if row is None:
        fresh = replace(study, created=study.created or now, updated=now)
        connection.execute(insert(studies).values(**study_row(fresh)))
        if worker:
            register(connection, fresh.id, worker)
        return fresh
    (existing,) = _read(connection, [row])
    if different := _differences(existing, study):
        raise UsageError(
            f"the study {study.name!r} exists and differs: {'; '.join(different)}",
            hint="give the new study another name, or repeat the options of the stored one",
        )
    return existing


def write_state(
    connection: Connection,
    id: str,
    state: StudyState,
    reason: str,
    *,
    now: str,
    only: Sequence[ColumnElement[bool]] = (),
) -> None:
    """Do the work of `Studies.set_state` in a transaction that is alone, for a study among `only`."""
    text = connection.execute(select(studies.c.document).where(studies.c.id == id, *only)).scalar()
    if text is None:
        raise NotFoundError(f"there is no study with the id {id!r}", hint="`ncclt studies list` lists all")
    with stored(f"the study {id}"):
        document = json.loads(text) | {"reason": reason}
    values = {"state": state.value, "updated": now, "document": to_text(document)}
    connection.execute(update(studies).where(studies.c.id == id).values(**values))


def study_row(study: Study) -> dict[str, Any]:
    """Return the row of a study."""
    document = study.to_document()
    columns = {name: document.pop(name) for name in _COLUMNS}
    return {**columns, "cluster": study.cluster.name, "model": study.workload.name, "document": to_text(document)}


def _differences(existing: Study, asked: Study) -> list[str]:
    different = list(existing.cluster.fingerprint().mismatches(asked.cluster.fingerprint()))
    pairs = {
        "site variables": tuple(_join_pairs(study.cluster.site_variables) for study in (existing, asked)),
        "workload": (existing.workload.digest(), asked.workload.digest()),
        "launcher": (existing.launcher, asked.launcher),
        "simulated": (existing.simulated, asked.simulated),
        "tuning variables that the job sets today": tuple(_join_pairs(study.today) for study in (existing, asked)),
        "process-wide parameters": (_join_names(existing.process_wide), _join_names(asked.process_wide)),
        "--deterministic": (existing.deterministic, asked.deterministic),
        "seed": (existing.seed, asked.seed),
        "sampler": (existing.sampler or "ncclt's own", asked.sampler or "ncclt's own"),
    }
    if None not in (existing.way, asked.way):
        pairs["settings forced and timed (--through, --persistent)"] = (
            existing.way or "plainly",
            asked.way or "plainly",
        )
    # A study that is resumed without the log keeps its tables.
    if asked.printed_costs is not None and asked.printed_costs != existing.printed_costs:
        pairs["NCCL's cost tables"] = ("none" if existing.printed_costs is None else "others", "those of a log")
    return different + [f"{name}: stored {old}, asked for {new}" for name, (old, new) in pairs.items() if old != new]


def _join_pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    return _join_names(tuple(f"{name}={value}" for name, value in pairs))


def _join_names(names: tuple[str, ...]) -> str:
    return " ".join(names) or "none"


def _read(connection: Connection, rows: Sequence[Row[Any]]) -> list[Study]:
    """Return studies; one that is running by its state, and whose workers have all died, is interrupted."""
    running = StudyState.RUNNING.value
    dead = abandoned(connection) if any(row.state == running for row in rows) else frozenset()
    studies_read = []
    for row in rows:
        columns = {name: getattr(row, name) for name in _COLUMNS}
        study = read_stored(Study, f"the study {row.name!r}", row.document, **columns)
        if study.state is StudyState.RUNNING and study.id in dead:
            study = replace(study, state=StudyState.INTERRUPTED, reason=ABANDONED)
        studies_read.append(study)
    return studies_read


def _median_scores(connection: Connection, ids: Sequence[str]) -> Mapping[str, dict[str, float]]:
    """Return study -> digest of setting -> median score of its trials before the proof, µs."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    query = select(trials.c.study, trials.c.setting, trials.c.score_us).where(
        trials.c.study.in_(ids), trials.c.score_us.is_not(None), TRIES_SETTING
    )
    for study, setting, score_us in connection.execute(query):
        samples[study, setting].append(score_us)
    medians: dict[str, dict[str, float]] = defaultdict(dict)
    for (study, setting), scores in samples.items():
        medians[study][setting] = statistics.median(scores)
    return medians

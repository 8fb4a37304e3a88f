"""Pages of studies at a glance: a handful of queries per page, however many studies it has."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, select

from ncclt.core.setting import DEFAULT
from ncclt.core.study import Study, StudyState
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.store.leases import abandoned
from ncclt.store.recommendations import newest_of
from ncclt.store.records import with_staleness
from ncclt.store.studies import study_rows
from ncclt.store.study_page import StudyEntry, StudyPage
from ncclt.store.tables import Names, recommendations, records, rollouts, studies, trials
from ncclt.store.trials import TRIES_SETTING

MAX_LIMIT = 500
"""Largest page."""


def study_page(
    connection: Connection,
    shipped: Mapping[str, Workload],
    *,
    limit: int,
    cursor: str | None,
    cluster: Names,
    model: str | None,
) -> StudyPage:
    """Return a page of studies, as `Store.studies`."""
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"the limit must be 1 to {MAX_LIMIT}, not {limit}")
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise UsageError(f"{cursor!r} is not a cursor", hint="pass the next_cursor of the previous page")
    before = None if cursor is None else int(cursor)
    rows = study_rows(connection, limit=limit + 1, before=before, cluster=cluster, model=model)
    shown = list(rows.items())[:limit]
    items = summarised(connection, shipped, [study for _, study in shown])
    return StudyPage(items=items, next_cursor=str(shown[-1][0]) if len(rows) > limit else None)


def summarised(
    connection: Connection, shipped: Mapping[str, Workload], found: Sequence[Study], *, proven_too: bool = True
) -> tuple[StudyEntry, ...]:
    """Return some studies at a glance, in their order; their recommendations say whether they are stale.

    Args:
        connection: in a transaction.
        shipped: the workloads that come with ncclt, by name.
        found: the studies.
        proven_too: also read the times of studies whose verdict has its own, which takes long with many trials.
    """
    ids = [study.id for study in found]
    counts = _counts(connection, ids)
    published = tuple(newest_of(connection, ids).values())
    recommended = {r.study: r for r in with_staleness(connection, published, shipped)}
    proven = {r.study for r in published if r.table.verdict.default_us and not proven_too}
    scores = _median_scores(connection, [id for id in ids if id not in proven])
    return tuple(
        StudyEntry(
            study=study,
            trials=counts.get(study.id, 0),
            best_us=min(scores[study.id].values(), default=None),
            default_us=scores[study.id].get(DEFAULT.digest()),
            recommendation=recommended.get(study.id),
        )
        for study in found
    )


def row_counts(connection: Connection) -> dict[str, dict[tuple[str, ...], int]]:
    """Return the rows of studies and roll-outs by (cluster, state), trials by (outcome,), recommendations by (cluster,
    origin) and records by (kind, result).
    """
    columns = {
        "studies": (studies.c.cluster, studies.c.state),
        "trials": (trials.c.outcome,),
        "recommendations": (recommendations.c.cluster, recommendations.c.origin),
        "records": (records.c.kind, records.c.word),
        "rollouts": (rollouts.c.cluster, rollouts.c.state),
    }
    counts = {
        name: {tuple(row[:-1]): row[-1] for row in connection.execute(select(*by, func.count()).group_by(*by))}
        for name, by in columns.items()
    }
    running, interrupted = StudyState.RUNNING.value, StudyState.INTERRUPTED.value
    dead = (studies.c.state == running, studies.c.id.in_(abandoned(connection)))
    for (cluster,) in connection.execute(select(studies.c.cluster).where(*dead)):
        of = counts["studies"]
        of[cluster, running] -= 1
        of[cluster, interrupted] = of.get((cluster, interrupted), 0) + 1
    return counts


def _counts(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    query = select(trials.c.study, func.count().label("trials")).where(trials.c.study.in_(ids)).group_by(trials.c.study)
    return {row.study: row.trials for row in connection.execute(query)}


def _median_scores(connection: Connection, ids: Sequence[str]) -> Mapping[str, dict[str, float]]:
    """Return study -> digest of setting -> median score of its trials before the proof, µs."""
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    query = select(trials.c.study, trials.c.setting, trials.c.score_us).where(
        trials.c.study.in_(ids), trials.c.score_us.is_not(None), TRIES_SETTING
    )
    for study, setting, score_us in connection.execute(query):
        samples[study][setting].append(score_us)
    medians: dict[str, dict[str, float]] = defaultdict(dict)
    for study, by_setting in samples.items():
        medians[study] = {setting: statistics.median(scores) for setting, scores in by_setting.items()}
    return medians

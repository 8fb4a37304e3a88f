"""Pages of studies at a glance: a handful of queries per page, however many studies it has."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, select

from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase
from ncclt.errors import UsageError
from ncclt.store.recommendations import newest_of
from ncclt.store.records import StudyPage, StudySummary
from ncclt.store.studies import study_rows
from ncclt.store.tables import trials

MAX_LIMIT = 500
"""Largest page."""


def study_page(
    connection: Connection, *, limit: int, cursor: str | None, cluster: str | None, model: str | None
) -> StudyPage:
    """Return a page of studies, newest first.

    Raises:
        UsageError: a limit out of range, or a cursor that no page gave.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"the limit must be 1 to {MAX_LIMIT}, not {limit}")
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise UsageError(f"{cursor!r} is no cursor", hint="give back the next_cursor of the page before")
    before = None if cursor is None else int(cursor)
    rows = study_rows(connection, limit=limit + 1, before=before, cluster=cluster, model=model)
    shown = list(rows.items())[:limit]
    ids = [study.id for _, study in shown]
    counts = _counts(connection, ids)
    scores = _median_scores(connection, ids)
    recommended = newest_of(connection, ids)
    items = tuple(
        StudySummary(
            study=study,
            trials=counts.get(study.id, 0),
            best_us=min(scores[study.id].values(), default=None),
            default_us=scores[study.id].get(DEFAULT.digest()),
            recommendation=recommended.get(study.id),
        )
        for _, study in shown
    )
    return StudyPage(items=items, next_cursor=str(shown[-1][0]) if len(rows) > limit else None)


def _counts(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    query = select(trials.c.study, func.count().label("trials")).where(trials.c.study.in_(ids)).group_by(trials.c.study)
    return {row.study: row.trials for row in connection.execute(query)}


def _median_scores(connection: Connection, ids: Sequence[str]) -> Mapping[str, dict[str, float]]:
    """Return study -> digest of setting -> median score of its trials outside the verification, µs."""
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    query = select(trials.c.study, trials.c.setting, trials.c.score_us).where(
        trials.c.study.in_(ids), trials.c.score_us.is_not(None), trials.c.phase != Phase.VERIFY.value
    )
    for study, setting, score_us in connection.execute(query):
        samples[study][setting].append(score_us)
    medians: dict[str, dict[str, float]] = defaultdict(dict)
    for study, by_setting in samples.items():
        medians[study] = {setting: statistics.median(scores) for setting, scores in by_setting.items()}
    return medians

"""What the page of a study is made of, read from the store: for the service and for a report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study, StudyState
from ncclt.store.store import Store
from ncclt_api.documents import LAST_SHOWN
from ncclt_api.pages.study_view import StudyView, study_view
from ncclt_api.pages.trial_table import TrialChoice, trial_table

_AT_REST = timedelta(seconds=5)
"""After this long without a change two trials of one millisecond cannot be mixed up."""

_MOST_KEPT = 16


class StudyPages:
    """Reads the pages of studies; what is shown of a study at rest is kept, as every trial changes the study's time."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._kept = lru_cache(maxsize=_MOST_KEPT)(self._read)

    def __call__(self, study: Study, *, server: str, choice: TrialChoice, now: datetime) -> dict[str, Any]:
        """Return the values of the template `study.html`.

        Args:
            study: the study.
            server: address of the service for the command shown; empty = the command names none.
            choice: which trials are listed.
            now: for ages.

        Raises:
            UsageError: the choice names a message that the workload does not have.
        """
        store = self._store()
        published = store.recommendations.find(study=study.id)
        found = published[0] if published else None
        at_rest = bool(study.updated) and now - datetime.fromisoformat(study.updated) > _AT_REST
        read = self._kept if at_rest else self._read
        return {
            "view": read(study.id, study.updated, study.state, (found.id, found.stale) if found else None, server),
            "trials": trial_table(store, study, choice),
            "verifications": store.records.verifications(recommendation=found.id, limit=LAST_SHOWN) if found else (),
            "attestations": store.records.attestations([found.id], limit=LAST_SHOWN) if found else (),
            "now": now,
            "instead": _served_instead(store, found) if found else None,
            "is_live": study.state is StudyState.RUNNING,
        }

    def _read(
        self, id: str, _updated: str, _state: StudyState, _published: tuple[str, str] | None, server: str
    ) -> StudyView:
        store = self._store()
        published = store.recommendations.find(study=id)
        return study_view(
            store.studies.get(id),
            store.trials.outline(id),
            published[0] if published else None,
            measured=partial(store.trials.with_measurements, id),
            server=server,
        )


def _served_instead(store: Store, mine: Recommendation) -> Recommendation | None:
    """Return the revision of another study that jobs of this shape get; None = this one, or none of its origin."""
    for one in store.recommendations.newest(cluster=mine.cluster, model=mine.model):
        if one.fingerprint == mine.fingerprint and one.origin is mine.origin:
            return one if one.study != mine.study and not one.stale else None
    return None

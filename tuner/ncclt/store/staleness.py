"""What was published, with why it is no longer served: its newest check says so, or its workload was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection

from ncclt.core.recommendation import Recommendation, replaced_workload
from ncclt.core.workload import Workload
from ncclt.errors import NotFoundError
from ncclt.store.catalogue import WORKLOADS
from ncclt.store.records import staleness_of
from ncclt.store.summaries import StudyPage


def with_staleness(
    connection: Connection, found: tuple[Recommendation, ...], shipped: Mapping[str, Workload]
) -> tuple[Recommendation, ...]:
    """Return recommendations with their staleness, in their order.

    Args:
        connection: to the store.
        found: as they were published.
        shipped: the workloads that come with ncclt, by name.
    """
    checked = staleness_of(connection, [r.id for r in found])
    digests = {name: _digest(connection, shipped, name) for name in {r.model for r in found if r.source_digest}}
    return tuple(
        replace(r, stale=checked.get(r.id, "") or replaced_workload(r, digests.get(r.model, ""))) for r in found
    )


def page_with_staleness(connection: Connection, page: StudyPage, shipped: Mapping[str, Workload]) -> StudyPage:
    """Return a page of studies whose recommendations have their staleness."""
    published = tuple(item.recommendation for item in page.items if item.recommendation)
    current = {r.study: r for r in with_staleness(connection, published, shipped)}
    return replace(page, items=tuple(replace(i, recommendation=current.get(i.study.id)) for i in page.items))


def _digest(connection: Connection, shipped: Mapping[str, Workload], name: str) -> str:
    try:
        return WORKLOADS.entry(connection, shipped, name).digest()
    except NotFoundError:
        return ""  # one that has left the catalogue was not replaced

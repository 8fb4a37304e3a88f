"""The history: every change with its actor and reason."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.revision import HistoryEvent
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentList, CurrentStore, PagedQuery
from ncclt_api.json_models import AnswerModel, Page, answer_model
from ncclt_api.routes import PROBLEMS

router = APIRouter(prefix="/v1/history", tags=["history"], responses=PROBLEMS, dependencies=needs(Role.READ))


class HistoryQuery(PagedQuery):
    """Filter and page of the history."""

    cluster: str | None = Field(None, description="only entries of this cluster")
    recommendation: str | None = Field(None, description="only entries of this revision, by its id")


@answer_model(HistoryEvent)
class EventDocument(AnswerModel):
    """One immutable entry of the history."""


class HistoryDocument(Page):
    """One page of the history, newest first."""

    items: list[EventDocument]


@router.get("", operation_id="getHistory", summary="The history, newest first")
def get_history(query: Annotated[HistoryQuery, Query()], store: CurrentStore, lists: CurrentList) -> HistoryDocument:
    """List one page of the changes of revisions, rules, roll-outs, keys, workloads and clusters."""
    cluster, id = query.cluster, query.recommendation
    id = store.recommendations.get(id).id if id is not None else None
    events = store.revisions.history(cluster=cluster, recommendation=id, before=query.number, limit=query.limit + 1)
    if not events and cluster is not None:
        store.clusters.get(cluster)
    return lists.write_rows(
        HistoryDocument, query, events, key=lambda event: str(event.number), show=HistoryEvent.to_document
    )

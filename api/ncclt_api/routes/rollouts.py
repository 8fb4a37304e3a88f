"""Roll-outs and their progress."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.revision import Actor
from ncclt.core.rollout import RollOutState
from ncclt.prove.rollout import judge_stored
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentStore, PagedQuery
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.reports import RollOutProgress
from ncclt_api.routes.revisions import CONFLICT, RollOutDocument, StateChange
from ncclt_api.schemas import Page

router = APIRouter(prefix="/v1/roll-outs", tags=["roll-outs"], responses=PROBLEMS)


class RollOutsQuery(PagedQuery):
    """Filter and page of roll-outs."""

    cluster: str | None = Field(None, description="only roll-outs on this cluster")
    model: str | None = Field(None, description="only roll-outs for this workload")
    state: RollOutState | None = Field(None, description="only roll-outs in this state")


class RollOutList(Page):
    """One page of roll-outs, newest first."""

    items: list[RollOutDocument]


class RollOutDetail(RollOutDocument):
    """A roll-out with its progress by the jobs so far."""

    progress: RollOutProgress


@router.get("", operation_id="listRollOuts", summary="Roll-outs, newest first", dependencies=needs(Role.READ))
def list_roll_outs(
    query: Annotated[RollOutsQuery, Query()], store: CurrentStore, request: Request, response: Response
) -> RollOutList:
    """List one page of roll-outs."""
    found = store.revisions.rollouts(cluster=query.cluster, model=query.model, state=query.state)
    page, following = query.cut(found, lambda one: one.id)
    query.link(following, request, response)
    return RollOutList(items=[RollOutDocument.model_validate(one.to_document()) for one in page], next_cursor=following)


@router.get("/{id}", operation_id="getRollOut", summary="One roll-out with its progress", dependencies=needs(Role.READ))
def get_roll_out(id: str, store: CurrentStore) -> RollOutDetail:
    """Return one roll-out, with starts, reports, gains and cost by arm."""
    found = store.revisions.rollout(id)
    progress = {"rollout": id, **judge_stored(store, found).to_document()}
    return RollOutDetail.model_validate(found.to_document() | {"progress": progress})


@router.post(
    "/{id}/pause",
    operation_id="pauseRollOut",
    summary="Pause a roll-out",
    responses=CONFLICT,
    dependencies=needs(Role.APPROVE),
)
def pause_roll_out(id: str, body: StateChange, store: CurrentStore, request: Request) -> RollOutDetail:
    """Pause a roll-out: jobs that start get the control until it is resumed."""
    store.revisions.pause_rollout(id, Actor(who=who(request), why=body.why.strip()))
    return get_roll_out(id, store)


@router.post(
    "/{id}/resume",
    operation_id="resumeRollOut",
    summary="Resume a paused roll-out",
    responses=CONFLICT,
    dependencies=needs(Role.APPROVE),
)
def resume_roll_out(id: str, body: StateChange, store: CurrentStore, request: Request) -> RollOutDetail:
    """Resume a paused roll-out: its arms get their shares of the jobs again."""
    store.revisions.resume_rollout(id, Actor(who=who(request), why=body.why.strip()))
    return get_roll_out(id, store)

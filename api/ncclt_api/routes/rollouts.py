"""Roll-outs and their progress."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.revision import Actor
from ncclt.core.rollout import RollOut, RollOutState
from ncclt.prove.rollout import judge_stored
from ncclt.store.revisions import Revisions
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentList, CurrentStore, PagedQuery
from ncclt_api.json_models import Page
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.reports import RollOutProgress
from ncclt_api.routes.revisions import RollOutDocument, StateChange, Verb

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
def list_roll_outs(query: Annotated[RollOutsQuery, Query()], store: CurrentStore, lists: CurrentList) -> RollOutList:
    """List one page of roll-outs."""
    rollouts = store.revisions.rollouts(cluster=query.cluster, model=query.model, state=query.state)
    return lists.write_part(RollOutList, query, rollouts, key=lambda rollout: rollout.id, show=RollOut.to_document)


@router.get("/{id}", operation_id="getRollOut", summary="One roll-out with its progress", dependencies=needs(Role.READ))
def get_roll_out(id: str, store: CurrentStore) -> RollOutDetail:
    """Return one roll-out, with starts, reports, gains and cost by arm."""
    rollout = store.revisions.rollout(id)
    progress = {"rollout": id, **judge_stored(store, rollout).to_document()}
    return RollOutDetail.model_validate(rollout.to_document() | {"progress": progress})


HOLDS = {
    "pause": Verb(
        operation="pauseRollOut",
        summary="Pause a roll-out",
        description="Pause a roll-out: jobs that start get the control until it is resumed.",
        change=Revisions.pause_rollout,
    ),
    "resume": Verb(
        operation="resumeRollOut",
        summary="Resume a paused roll-out",
        description="Resume a paused roll-out: its arms get their shares of the jobs again.",
        change=Revisions.resume_rollout,
    ),
}
"""Last part of an address -> its change of a roll-out."""


def _add_hold(name: str, verb: Verb) -> None:
    def change(id: str, body: StateChange, store: CurrentStore, request: Request) -> RollOutDetail:
        verb.change(store.revisions, id, Actor(who=who(request), why=body.why.strip()))
        return get_roll_out(id, store)

    verb.add_route(router, f"/{{id}}/{name}", change)


for _name, _verb in HOLDS.items():
    _add_hold(_name, _verb)

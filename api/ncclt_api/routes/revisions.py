"""States of published revisions, and the rules of clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from ncclt.core.api_key import Role
from ncclt.core.revision import MOST_WHY, Actor, ClusterRules, RevisionStatus
from ncclt.core.rollout import MAX_COST, MOST_ARMS, RollOut, RollOutArm
from ncclt.store.revisions import Revisions
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentRecommendation, CurrentStore
from ncclt_api.json_models import AnswerModel, JsonBody, answer_model
from ncclt_api.routes import PROBLEMS

CONFLICT: dict[int | str, dict[str, Any]] = {
    409: PROBLEMS[404] | {"description": "the state does not allow it, or another request came first"}
}

router = APIRouter(prefix="/v1/recommendations", tags=["revisions"], responses=PROBLEMS)
rules = APIRouter(prefix="/v1/clusters", tags=["revisions"], responses=PROBLEMS)


class StateChange(JsonBody):
    """Reason for a change of state; the actor is the key of the request."""

    why: str = Field("", max_length=MOST_WHY, description="one line for the history")


class Approval(StateChange):
    """Approval of a candidate for a share of the jobs; by default the share that the rules of its cluster set."""

    arms: list[str] = Field([], max_length=MOST_ARMS - 1, description="further candidates for the same jobs")
    percent: int | None = Field(None, ge=1, le=100, description="of the jobs; default: the rule of the cluster")
    loss_limit: float | None = Field(None, ge=0, le=0.5, description="loss of step time that drops an arm")
    max_cost: float = Field(MAX_COST, gt=0, le=1, description="share of the GPU hours that the arms may cost")


class NewRules(StateChange):
    """Rules of a cluster for new revisions, to be stored."""

    require_approval: bool = Field(False, description="another key or user than the publisher must approve")
    require_verification: bool = Field(False, description="`ncclt verify` must show a gain of step time")
    percent: int = Field(100, ge=1, le=100, description="of the jobs that get a new revision at first")
    loss_limit: float = Field(0.01, ge=0, le=0.5, description="loss of step time that drops an arm, as a share")
    delivery: bool = Field(True, description="false = all jobs keep their own settings, from now on")
    approve_wins: bool = Field(True, description="a person approves a revision that won before all jobs get it")


@answer_model(ClusterRules)
class RulesDocument(AnswerModel):
    """Rules of a cluster for new revisions."""


@answer_model(RollOutArm)
class ArmDocument(AnswerModel):
    """A revision that a share of the job starts gets."""


@answer_model(RollOut)
class RollOutDocument(AnswerModel):
    """A roll-out; its seed is kept back, so that no job can choose its arm."""


@answer_model(RevisionStatus)
class RevisionDocument(AnswerModel):
    """State of a revision with its last roll-outs, newest first."""

    rollouts: list[RollOutDocument]
    ended_rollouts: list[str] = Field(description="ids of the roll-outs that this request ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Change of a revision or a roll-out that a person asks for.

    Attributes:
        operation: id of its operation.
        summary, description: of its route.
        change: makes the change, given the store's revisions, an id and an actor; returns the roll-outs that ended.
    """

    operation: str
    summary: str
    description: str
    change: Callable[..., tuple[str, ...] | None]

    def add_route(self, router: APIRouter, path: str, endpoint: Callable[..., object]) -> None:
        """Add its route, for the keys that may approve."""
        router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            operation_id=self.operation,
            summary=self.summary,
            description=self.description,
            responses=CONFLICT,
            dependencies=needs(Role.APPROVE),
        )


VERBS = {
    "activate": Verb(
        operation="activate",
        summary="Activate a candidate for all jobs",
        description="Give a candidate that awaits nothing to all jobs, also in the middle of its roll-out.",
        change=Revisions.activate,
    ),
    "rollback": Verb(
        operation="rollBack",
        summary="Roll back to this revision",
        description="Make an earlier revision active again.",
        change=Revisions.roll_back,
    ),
    "pin": Verb(
        operation="pin",
        summary="Pin jobs to this revision",
        description="Pin jobs to this revision, whatever is published later.",
        change=Revisions.pin,
    ),
    "unpin": Verb(
        operation="unpin",
        summary="Unpin a revision",
        description="Let later revisions replace a pinned one again.",
        change=Revisions.unpin,
    ),
    "retire": Verb(
        operation="retire",
        summary="Retire a revision",
        description="Retire a revision; without an active one jobs keep their own settings.",
        change=Revisions.retire,
    ),
}
"""Last part of an address -> its change of a revision."""


def _show_state(store: Store, id: str, ended: Sequence[str] = ()) -> RevisionDocument:
    rollouts = store.revisions.rollouts(recommendation=id, limit=10)
    more = {"rollouts": [rollout.to_document() for rollout in rollouts], "ended_rollouts": ended}
    return RevisionDocument.model_validate(store.revisions.status(id).to_document() | more)


@router.get(
    "/{id}/state",
    operation_id="getState",
    summary="State of a revision and its last roll-outs",
    dependencies=needs(Role.READ),
)
def get_state(recommendation: CurrentRecommendation, store: CurrentStore) -> RevisionDocument:
    """Return its state and its roll-outs."""
    return _show_state(store, recommendation.id)


@router.post(
    "/{id}/approve",
    operation_id="approve",
    summary="Approve a candidate",
    responses=CONFLICT,
    dependencies=needs(Role.APPROVE),
)
def approve(
    recommendation: CurrentRecommendation, body: Approval, store: CurrentStore, request: Request
) -> RevisionDocument:
    """Approve a candidate, alone or with further arms, for a share of the jobs; one that won its roll-out, for all."""
    actor = _describe_actor(request, body)
    store.revisions.approve(recommendation.id, actor, **body.model_dump(exclude={"why"}))
    return _show_state(store, recommendation.id)


def _add_verb(name: str, verb: Verb) -> None:
    def change(
        recommendation: CurrentRecommendation, body: StateChange, store: CurrentStore, request: Request
    ) -> RevisionDocument:
        ended = verb.change(store.revisions, recommendation.id, _describe_actor(request, body))
        return _show_state(store, recommendation.id, ended or ())

    verb.add_route(router, f"/{{id}}/{name}", change)


for _name, _verb in VERBS.items():
    _add_verb(_name, _verb)


@rules.get(
    "/{cluster}/rules",
    operation_id="getRules",
    summary="Rules of a cluster for new revisions",
    dependencies=needs(Role.READ),
)
def get_rules(cluster: str, store: CurrentStore) -> RulesDocument:
    """Return the rules of a cluster."""
    store.clusters.get(cluster)
    return RulesDocument.model_validate(store.revisions.rules(cluster).to_document())


@rules.put(
    "/{cluster}/rules",
    operation_id="setRules",
    summary="Set the rules of a cluster for new revisions",
    dependencies=needs(Role.ADMIN),
)
def set_rules(cluster: str, body: NewRules, store: CurrentStore, request: Request) -> RulesDocument:
    """Store the rules of a cluster, for what is published from now on."""
    store.clusters.get(cluster)  # refused before anything is stored
    values = body.model_dump(exclude={"why"})
    store.revisions.set_rules(ClusterRules(cluster=cluster, **values), _describe_actor(request, body))
    return get_rules(cluster, store)


def _describe_actor(request: Request, body: StateChange) -> Actor:
    return Actor(who=who(request), why=body.why)

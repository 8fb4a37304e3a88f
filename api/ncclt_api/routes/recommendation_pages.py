"""The page of one revision, and the forms that change its life."""

from __future__ import annotations

import shlex
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Recommendation, select
from ncclt.core.recommendation import Request as Job
from ncclt.core.revision import MOST_WHY, Action, Actor
from ncclt.deliver.render.delivery import choose_form
from ncclt.errors import StaleRecommendationError, UsageError
from ncclt.store.clock import utc_now
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentRecommendation, CurrentStore, normal_version
from ncclt_api.pages.compare import Compared, ComparisonRow, compare
from ncclt_api.pages.recommendation import describe_delivery, find_served, list_actions, list_snippets
from ncclt_api.routes.pages import PageQuery, json_response, page_response
from ncclt_api.routes.revisions import RollOutDocument
from ncclt_api.sign_in import OwnForm

router = APIRouter(prefix="/recommendations", include_in_schema=False, default_response_class=HTMLResponse)

_SHOWN = 20
"""Entries of each list."""

Verb = Literal["approve", "activate", "rollback", "pin", "unpin", "retire", "stale"]


class RevisionQuery(PageQuery):
    """Format of the page, and chosen format of the revision; empty = the recommended one."""

    use: str = Field("", max_length=40)


class ServedQuery(RevisionQuery):
    """The job; an omitted part matches anything."""

    cluster: str = Field(min_length=1, max_length=5000)
    model: str = Field(min_length=1, max_length=5000)
    nodes: int | None = Field(None, ge=1)
    gpus_per_node: int | None = Field(None, ge=1)
    nccl_version: str | None = Field(None, max_length=40)


@router.get("", dependencies=needs(Role.READ))
def show_served(query: Annotated[ServedQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show the recommendation served now: a permanent address for a cluster, a workload and the shape of a job."""
    job = Job(
        cluster=query.cluster,
        model=query.model,
        nodes=query.nodes,
        gpus_per_node=query.gpus_per_node,
        nccl_version=normal_version(query.nccl_version),
    )
    published = store.recommendations.newest(cluster=query.cluster, model=query.model)
    try:
        found = select(published, job, partly=True)
    except StaleRecommendationError:
        found = next(one for one in published if not job.refusal(one.fingerprint))
    return _answer(found, query, store, request)


@router.get("/{id}", dependencies=needs(Role.READ))
def show_revision(
    found: CurrentRecommendation, query: Annotated[RevisionQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show one revision."""
    return _answer(found, query, store, request)


@router.post("/{id}/{verb}", dependencies=[*needs(Role.APPROVE), OwnForm])
def change(
    found: CurrentRecommendation,
    verb: Verb,
    store: CurrentStore,
    request: Request,
    why: Annotated[str, Form(max_length=MOST_WHY)] = "",
    percent: Annotated[int | None, Form(ge=1, le=100)] = None,
    rollout: Annotated[str, Form(pattern="^[0-9a-f]{0,12}$")] = "",
) -> Response:
    """Change the state of a revision, and show the page of the form again, of the revision or of a roll-out."""
    by = Actor(who=who(request), why=why.strip())
    match verb:
        case "approve":
            store.revisions.approve(found.id, by, percent=percent)
        case "activate":
            store.revisions.activate(found.id, by)
        case "rollback":
            store.revisions.roll_back(found.id, by)
        case "pin":
            store.revisions.pin(found.id, by)
        case "unpin":
            store.revisions.unpin(found.id, by)
        case "retire":
            store.revisions.retire(found.id, by)
        case "stale":
            _mark_stale(store, found, by)
    return RedirectResponse(f"/roll-outs/{rollout}" if rollout else f"/recommendations/{found.id}", 303)


def _mark_stale(store: Store, found: Recommendation, by: Actor) -> None:
    """Store the finding of a person as a recheck, so that `ncclt recheck` can refute it."""
    if not by.why:
        raise UsageError("marking a revision stale needs a reason", hint="describe the problem")
    store.records.add_recheck(
        Recheck(
            id=uuid.uuid4().hex[:12],
            recommendation=found.id,
            cluster=found.cluster,
            model=found.model,
            freshness=Freshness.STALE,
            reasons=(f"{by.why} ({by.who})",),
            changes=(),
            launches=0,
            launcher="",
            created=utc_now(),
        ),
        by=by,
    )


def _answer(found: Recommendation, query: RevisionQuery, store: Store, request: Request) -> Response:
    served = find_served(store, found)
    served_id = served.id if served else ""
    status = store.revisions.status(found.id)
    shape = (status.nodes, status.gpus_per_node, status.nccl_version, status.origin)
    revisions = [
        one
        for one in store.revisions.statuses(cluster=found.cluster, model=found.model, limit=200)
        if (one.nodes, one.gpus_per_node, one.nccl_version, one.origin) == shape
    ]
    events = store.revisions.history(recommendation=found.id, limit=_SHOWN)
    rollout = next(iter(store.revisions.rollouts(recommendation=found.id, limit=1)), None)
    differences: list[ComparisonRow] = []
    if served and served.id != found.id:
        compared = compare([_compared(served, store), _compared(found, store)])
        differences = [row for row in (*compared.facts, *compared.rules) if row.differs]
    public_url = request.app.state.public_url
    source = f" --server {shlex.quote(public_url)}" if public_url else ""
    is_usable = served_id == found.id and not (found.stale or found.label)
    values: dict[str, Any] = {
        "recommendation": found,
        "status": status,
        "use": choose_form(found, source=source),
        "snippets": list_snippets(found, source=source) if is_usable else (),
        "served": served_id,
        "revisions": revisions[:_SHOWN],
        "approvals": [event for event in events if event.action is Action.APPROVED],
        "events": events,
        "rechecks": store.records.rechecks(found.id)[:_SHOWN],
        "differences": differences,
        "actions": list_actions(status, rollout if rollout and rollout.is_open else None, is_untried=found.is_untried),
        "delivery": describe_delivery(store, found, served),
        "percent": store.revisions.rules(found.cluster).percent,
    }
    if query.format == "json":
        # Without the seed: who knows it can choose the name of a job.
        return json_response({**values, "rollout": rollout and RollOutDocument.model_validate(rollout.to_document())})
    return page_response(request, "recommendation.html", job=_job(found), rollout=rollout, wanted=query.use, **values)


def _compared(found: Recommendation, store: Store) -> Compared:
    return Compared(study=store.studies.get(found.study), recommendation=found)


def _job(found: Recommendation) -> dict[str, str]:
    """Return the query of the permanent address of what this job gets."""
    place = found.fingerprint
    return {
        "cluster": found.cluster,
        "model": found.model,
        "nodes": str(place.nodes),
        "gpus_per_node": str(place.gpus_per_node),
        "nccl_version": place.nccl_version,
    }

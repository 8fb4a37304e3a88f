"""The page of one revision, and the forms that change its life."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.encoders import jsonable_encoder
from pydantic import Field
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Recommendation, select
from ncclt.core.recommendation import Request as Job
from ncclt.core.revision import MOST_WHY, Actor
from ncclt.core.rollout import RollOut
from ncclt.errors import StaleRecommendationError, UsageError
from ncclt.prove.rollout import RollOutVerdict, judge_stored
from ncclt.store.clock import utc_now
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentRecommendation, CurrentStore, StrictQuery, normal_version
from ncclt_api.pages.compare_view import Compared
from ncclt_api.pages.recommendation_view import LifeFacts, RecommendationView, recommendation_view, roll_out_rows
from ncclt_api.routes.pages import WHOLE_PAGE, page_response
from ncclt_api.sign_in import OwnForm
from ncclt_api.text import readable

router = APIRouter(prefix="/recommendations", include_in_schema=False, default_response_class=HTMLResponse)

_SHOWN = 20
"""Entries of each list."""

Verb = Literal["approve", "activate", "rollback", "pin", "unpin", "retire", "stale"]


class OneQuery(StrictQuery):
    """In which form."""

    format: Literal["html", "json"] = "html"


class ServedQuery(OneQuery):
    """Which job; a part that is left out may be anything."""

    cluster: str = Field(min_length=1, max_length=5000)
    model: str = Field(min_length=1, max_length=5000)
    nodes: int | None = Field(None, ge=1)
    gpus_per_node: int | None = Field(None, ge=1)
    nccl_version: str | None = Field(None, max_length=40)


@router.get("", dependencies=needs(Role.READ))
def show_served(query: Annotated[ServedQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show what a job gets now: a permanent address for a cluster, a workload and the shape of the job."""
    job = Job(
        cluster=query.cluster,
        model=query.model,
        nodes=query.nodes,
        gpus_per_node=query.gpus_per_node,
        nccl_version=normal_version(query.nccl_version),
    )
    published = store.newest(cluster=query.cluster, model=query.model)
    try:
        found = select(published, job, partly=True)
    except StaleRecommendationError:
        found = next(one for one in published if not job.refusal(one.fingerprint))
    return _answer(found, query.format, store, request)


@router.get("/{id}", dependencies=needs(Role.READ))
def show_revision(
    found: CurrentRecommendation, query: Annotated[OneQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show one revision."""
    return _answer(found, query.format, store, request)


@router.get("/{id}/rollout", dependencies=needs(Role.READ))
def show_roll_out(
    found: CurrentRecommendation, query: Annotated[OneQuery, Query()], store: CurrentStore, request: Request
) -> Response:
    """Show the roll-outs of a revision alone, for a page that is open."""
    rows = roll_out_rows(_judged(store, found))
    if query.format == "json":
        return JSONResponse(readable(jsonable_encoder({"rollouts": rows})))
    live = any(row.seen for row in rows)
    if live or not request.headers.get("hx-request"):
        return page_response(request, "_rollout.html", rollouts=rows, live=live, id=found.id)
    # It has ended, and with it the revision's state: the whole page takes the place of the one that was watched.
    answer = _answer(found, "html", store, request)
    answer.headers.update(WHOLE_PAGE)
    return answer


@router.post("/{id}/{verb}", dependencies=[*needs(Role.APPROVE), OwnForm])
def change(
    found: CurrentRecommendation,
    verb: Verb,
    store: CurrentStore,
    request: Request,
    why: Annotated[str, Form(max_length=MOST_WHY)] = "",
    percent: Annotated[int | None, Form(ge=1, le=100)] = None,
) -> Response:
    """Change the life of a revision, and show it again."""
    by = Actor(who=who(request), why=why.strip())
    match verb:
        case "approve":
            store.approve(found.id, by, percent=percent)
        case "activate":
            store.activate(found.id, by)
        case "rollback":
            store.roll_back(found.id, by)
        case "pin":
            store.pin(found.id, by)
        case "unpin":
            store.unpin(found.id, by)
        case "retire":
            store.retire(found.id, by)
        case "stale":
            _mark_stale(store, found, by)
    return RedirectResponse(f"/recommendations/{found.id}", 303)


def _mark_stale(store: Store, found: Recommendation, by: Actor) -> None:
    """Store the finding of a person as a recheck, so that `ncclt recheck` can refute it."""
    if not by.why:
        raise UsageError("a revision is marked stale for a reason", hint="say what was seen")
    store.add_recheck(
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


def _answer(found: Recommendation, format: str, store: Store, request: Request) -> Response:
    view = _view(found, store, request)
    if format == "json":
        return JSONResponse(readable(jsonable_encoder(view)), headers={"Cache-Control": "private, no-cache"})
    return page_response(request, "recommendation.html", view=view, job=_job(found))


def _view(found: Recommendation, store: Store, request: Request) -> RecommendationView:
    same = (found.fingerprint, found.origin)
    served = next(
        (
            one
            for one in store.newest(cluster=found.cluster, model=found.model)
            if (one.fingerprint, one.origin) == same
        ),
        None,
    )
    status = store.status(found.id)
    shape = (status.nodes, status.gpus_per_node, status.nccl_version, status.origin)
    facts = LifeFacts(
        status=status,
        revisions=[
            one
            for one in store.statuses(cluster=found.cluster, model=found.model, limit=200)
            if (one.nodes, one.gpus_per_node, one.nccl_version, one.origin) == shape
        ][:_SHOWN],
        events=store.history(recommendation=found.id, limit=_SHOWN),
        rechecks=store.rechecks(found.id)[:_SHOWN],
        rollouts=_judged(store, found),
        percent=store.rules(found.cluster).percent,
    )
    return recommendation_view(
        _compared(found, store),
        _compared(served, store) if served else None,
        facts,
        server=request.app.state.public_url,
        now=datetime.now(UTC),
    )


def _judged(store: Store, found: Recommendation) -> list[tuple[RollOut, RollOutVerdict | None]]:
    """Return the last roll-outs of a revision, the open ones with what their jobs show."""
    rollouts = store.rollouts(recommendation=found.id, limit=5)
    return [(one, judge_stored(store, one) if one.is_open else None) for one in rollouts]


def _compared(found: Recommendation, store: Store) -> Compared:
    return Compared(study=store.study(found.study), recommendation=found)


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

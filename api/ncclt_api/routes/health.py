"""Liveness, readiness and figures of the process, and the description of the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from ncclt import __version__
from ncclt.core.api_key import Role
from ncclt.errors import StoreError
from ncclt.store.schema import require_current
from ncclt_api.access import PUBLIC, key_of, needs
from ncclt_api.answers import Answers
from ncclt_api.dependencies import WholeStore
from ncclt_api.json_models import Health
from ncclt_api.routes import PROBLEMS

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="getHealth", summary="The process answers", dependencies=PUBLIC)
def get_health() -> Health:
    """Answer without touching the store."""
    return Health(status="ok", version=__version__)


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="The service can serve",
    responses={503: PROBLEMS[503]},
    dependencies=PUBLIC,
)
async def get_readiness(store: WholeStore, request: Request) -> Health:
    """Answer only if jobs are answered: the store has the tables of this version, or is away and answers are kept."""
    answers: Answers = request.app.state.answers
    await answers.notice_changes()  # waits for a database that hangs no longer than a job does
    try:
        if answers.age_s():
            raise StoreError("the database is away")
        revision = await run_in_threadpool(store.migration)
    except StoreError:
        if not answers.are_usable():
            raise
        return Health(status="ready", version=__version__, away=["database"])
    require_current(revision)
    return Health(status="ready", version=__version__, migration=revision)


@router.get("/metrics", include_in_schema=False, dependencies=needs(Role.READ))
def get_metrics(request: Request) -> Response:
    """Return the figures of this process for Prometheus; a key of some clusters is shown theirs alone."""
    key = key_of(request)
    text = request.app.state.figures.text(clusters=key.clusters if key else ())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/openapi.json", include_in_schema=False, dependencies=needs(Role.READ))
def get_openapi(request: Request) -> JSONResponse:
    """Return the description of the API."""
    return JSONResponse(request.app.openapi())

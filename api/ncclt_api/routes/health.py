"""Is the process alive, and can it serve?"""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ncclt import __version__
from ncclt_api.dependencies import CurrentStore
from ncclt_api.routes import PROBLEMS
from ncclt_api.schemas import Health

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="getHealth", summary="The process answers")
def get_health() -> Health:
    """Answer without touching the store."""
    return Health(status="ok", version=__version__)


@router.get("/readyz", operation_id="getReadiness", summary="The service can serve", responses={503: PROBLEMS[503]})
def get_readiness(store: CurrentStore) -> Health:
    """Answer only if the store can be reached and has the tables of this version."""
    store.ping()
    migration = store.migration()
    migration.require_current()
    return Health(status="ready", version=__version__, migration=migration.head)


@router.get("/metrics", include_in_schema=False)
def get_metrics(request: Request) -> Response:
    """Return the figures of this process for Prometheus."""
    return Response(request.app.state.figures.text(), media_type=CONTENT_TYPE_LATEST)

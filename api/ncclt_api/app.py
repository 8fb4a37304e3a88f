"""The application factory: nothing is opened, read or configured before the application starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from ncclt import __version__
from ncclt.store import open_store
from ncclt.store.store import Store
from ncclt_api.dashboard import Dashboard, DashboardMiddleware
from ncclt_api.problems import add_problem_handlers
from ncclt_api.request_id import RequestIdMiddleware
from ncclt_api.routes import attestations, clusters, env, health, pages, recommendations, studies, workloads
from ncclt_api.security import BodyLimitMiddleware, SecurityHeadersMiddleware

_ASSETS = Path(__file__).parent / "pages" / "assets"


class _Service(FastAPI):
    """FastAPI whose description is right about errors: it would list each as plain JSON as well."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    response["content"].pop("application/json", None)
        return document


def create_app(storage: str | Store, *, dashboard: bool = True) -> FastAPI:
    """Return the application.

    Args:
        storage: a store's URL, opened and closed with the application, or a store that the caller closes.
        dashboard: whether optuna-dashboard is served at /dashboard.

    Raises:
        StoreError: at start, when the store cannot be reached.
    """
    board = Dashboard() if dashboard else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        own = await run_in_threadpool(open_service_store, storage) if isinstance(storage, str) else None
        app.state.store = own or storage
        try:
            yield
        finally:
            if board:
                await run_in_threadpool(board.close)
            if own:
                await run_in_threadpool(own.close)

    # FastAPI's own documentation pages load their scripts from another host.
    app = _Service(
        title="ncclt",
        version=__version__,
        summary="NCCL configurations that were measured and proven, by cluster and workload.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.dashboard = dashboard
    for resource in (health, clusters, env, workloads, studies, recommendations, attestations, pages):
        app.include_router(resource.router)
    app.mount("/assets", StaticFiles(directory=_ASSETS), name="assets")
    add_problem_handlers(app)
    # The last added is the outermost.
    app.add_middleware(DashboardMiddleware, dashboard=board)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app


def open_service_store(url: str) -> Store:
    """Open the store of a service: one's own SQLite file is brought up to date, a shared database never is.

    Several replicas may start at once and with rights to read only: there `ncclt store migrate` runs first, and
    /readyz refuses until it has.

    Raises:
        StoreError: the store cannot be reached, or what lies there is not ours.
        UsageError: the URL is none.
    """
    # A request does not wait for a database: it is answered with 503, and the client has its own patience.
    return open_store(url, migrate=url.startswith("sqlite"), is_patient=False)

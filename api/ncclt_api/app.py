"""The application factory: nothing is opened, read or configured before the application starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from ncclt import __version__
from ncclt.errors import UsageError
from ncclt.store import open_service_store
from ncclt.store.store import Store
from ncclt_api.access import AccessMiddleware, KnownKeys, declared_role
from ncclt_api.answers import FRESH_S, Answers, give_answers
from ncclt_api.large_answers import LargeAnswers, delegate_large_answers
from ncclt_api.middleware import add_headers, answer_head, limit_body, tag_answers
from ncclt_api.pages import cluster, compare, gain, home, recommendation, sign_in, study, trials, workload
from ncclt_api.pages import jobs as job_pages
from ncclt_api.pages import rollouts as rollout_pages
from ncclt_api.problems import add_problem_handlers
from ncclt_api.proxy_users import ProxyPlan, ProxyUsers, note_peer
from ncclt_api.routes import (
    catalogue,
    client_file,
    env,
    health,
    history,
    jobs,
    keys,
    recommendations,
    reports,
    revisions,
    rollouts,
    studies,
    uploads,
)
from ncclt_api.sign_in import Sessions
from ncclt_api.telemetry import Figures, account_requests, start_log
from ncclt_api.tickets import Tickets

_LEAST_ZIPPED_BYTES = 2000
"""Shorter answers fit two packets anyway; zipping costs more than it saves."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_ASSETS = Path(__file__).parent / "pages" / "assets"


_ROUTERS = (
    *(health.router, client_file.router, catalogue.clusters, env.router, env.bulk, catalogue.workloads, studies.router),
    *(recommendations.router, reports.attestations, revisions.router, revisions.rules, rollouts.router, history.router),
    *(reports.step_times, jobs.router, keys.router, uploads.router),
    # The page of a pair comes before that of a cluster, whose name is a path too.
    *(home.router, gain.router, cluster.router, workload.router, compare.router, study.router, trials.router),
    *(recommendation.router, rollout_pages.router, job_pages.router, sign_in.router),
)
"""All routers, in the order of the API's description."""


_NO_PAGES_OF_FASTAPI: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
"""Its documentation pages load scripts from another host; the description is a route of ours, which needs a key."""


class _Service(FastAPI):
    """FastAPI with a correct description of what every route shares: by default it also lists errors as plain JSON."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        for path in document["paths"].values():
            for method, operation in path.items():
                responses = operation["responses"]
                for status, response in responses.items():
                    if int(status) >= 400:
                        response["content"].pop("application/json", None)
                if method == "get" and "security" in operation:
                    responses.setdefault("304", {"description": "the client's If-None-Match has this answer"})
                if "application/json" not in operation.get("requestBody", {}).get("content", {}):
                    responses.pop("400", None)
                operation["responses"] = dict(sorted(responses.items()))
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of a service.

    Attributes:
        optuna_dashboard_url: address of the optuna-dashboard that study pages link to; empty = no link.
        public_url: address of the service for the commands that pages show; empty = they name none.
        hosts: host names that the service answers to while the store has no keys; None = any.
        session_secret: as for `Sessions`.
        users: the proxies that sign users in, whose requests come through `note_peer`; None = none.
    """

    optuna_dashboard_url: str = ""
    public_url: str = ""
    hosts: Collection[str] | None = None
    session_secret: str = ""
    users: ProxyPlan | None = None


def create_app(
    storage: str | Store,
    options: ServiceOptions = ServiceOptions(),
    *,
    fresh_s: float = FRESH_S,
    large: str | None = None,
    log: Any = None,
    is_checked: bool = False,
) -> FastAPI:
    """Return the application.

    Args:
        storage: a store's URL, opened and closed with the application, or a store that the caller closes.
        fresh_s: longest time that an answer to a job may miss a change by another process; 0 = look at every request.
        large: URL of the store, for a separate process that makes large answers; None = this process makes them.
        log: structlog's logger for requests; None = no log of them.
        is_checked: another process has checked the keys of requests.

    Raises:
        UsageError: the secret is too short.
        StoreError: at start, as for `open_service_store`.
        TypeError: a route declares no role.
    """
    app = _Service(
        title="ncclt",
        version=__version__,
        summary="Validated NCCL settings, by cluster and workload.",
        lifespan=partial(_run, storage=storage),
        **_NO_PAGES_OF_FASTAPI,
    )

    def current_store() -> Store:
        store: Store = app.state.store
        return store

    state, sessions = app.state, Sessions(options.session_secret)
    state.public_url, state.optuna_dashboard_url = options.public_url, options.optuna_dashboard_url
    state.sessions, state.has_users = sessions, options.users is not None
    state.figures = Figures(current_store, lambda: jobs.open_queue(state))
    state.tickets, state.study_pages = Tickets(current_store), study.StudyPages(current_store)
    state.answers = Answers(current_store, fresh_s=fresh_s)
    # Hosts and users were checked before a request is handed on.
    shared = replace(options, session_secret=sessions.secret, hosts=None, users=None)
    state.large_answers = LargeAnswers(_create_app_of_large_answers, large, shared) if large else None
    state.jobs = None
    state.routes = _add_routes(app)
    add_problem_handlers(app)
    # The middleware added last is the outermost.
    app.add_middleware(tag_answers)
    app.add_middleware(give_answers, answers=state.answers)
    if state.large_answers:
        app.add_middleware(delegate_large_answers, large=state.large_answers)
    if not is_checked:
        _check_access(app, options, KnownKeys(current_store, fresh_s=fresh_s), log)
    app.add_middleware(limit_body)
    app.add_middleware(GZipMiddleware, minimum_size=_LEAST_ZIPPED_BYTES)
    app.add_middleware(answer_head)
    app.add_middleware(add_headers)
    app.add_middleware(account_requests, figures=state.figures, log=log)
    return app


def _check_access(app: FastAPI, options: ServiceOptions, keys: KnownKeys, log: Any) -> None:
    """Add the check of the keys of requests."""
    public = [route for route in app.state.routes if declared_role(route) is None]
    app.add_middleware(
        AccessMiddleware,
        keys=keys,
        sessions=app.state.sessions,
        hosts=options.hosts,
        public={(method, route.path) for route in public for method in route.methods or ()},
        users=ProxyUsers(options.users, log=log) if options.users else None,
    )


@asynccontextmanager
async def _run(app: FastAPI, storage: str | Store) -> AsyncIterator[None]:
    """Open the store of an application, and close what it has opened."""
    opened = await run_in_threadpool(open_service_store, storage) if isinstance(storage, str) else None
    app.state.store = opened or storage
    try:
        yield
    finally:
        for part in (app.state.large_answers, app.state.tickets, app.state.jobs, opened):
            if part:
                await run_in_threadpool(part.close)


def _add_routes(app: FastAPI) -> list[APIRoute]:
    """Add all routes to an application.

    Raises:
        TypeError: a route declares no role.
    """
    routes = []
    for router in _ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute), "a router has routes of FastAPI alone"
            declared_role(route)
            routes.append(route)
        app.include_router(router)
    app.mount("/assets", StaticFiles(directory=_ASSETS), name="assets")
    return routes


def _create_app_of_large_answers(storage: str, options: ServiceOptions) -> FastAPI:
    """Return the application of another process, in which no lifespan runs."""
    store = open_service_store(storage)
    app = create_app(store, options, is_checked=True)
    app.state.store = store
    return app


def serve(
    storage: str | None,
    host: str = "127.0.0.1",
    port: int = 8080,
    options: ServiceOptions = ServiceOptions(),
    *,
    insecure: bool = False,
) -> None:
    """Serve recommendations, studies and pages; returns after SIGINT or SIGTERM.

    The store is opened before the port, so that an unreachable store is a clear error of the caller's.

    Args:
        storage: the store's URL; None = the user's own.
        host: address to listen on; anything but loopback needs a key in the store.
        port: TCP port.
        options: of the service; `host` and the names of loopback are added to their hosts.
        insecure: listen there even without a key.

    Raises:
        StoreError: as for `open_service_store`.
        UsageError: the URL is invalid, or the whole network could read the studies.
    """
    with open_service_store(storage) as store:
        if host not in LOOPBACK and not insecure and not options.users and not store.keys.find():
            raise UsageError(
                f"without keys the whole network of {host} could read the studies",
                hint="`ncclt admin keys create` or --first-key FILE makes the first; --insecure-no-auth listens anyway",
            )
        options = replace(options, hosts={*LOOPBACK, "[::1]", host, *(options.hosts or ())})
        app = create_app(store, options, large=store.url, log=start_log())
        # Requests are logged by `account_requests`.
        uvicorn.run(
            note_peer(app),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )

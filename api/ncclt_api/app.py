"""The application factory: nothing is opened, read or configured before the application starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
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
from ncclt_api.answers import FRESH_S, Answers, AnswersMiddleware
from ncclt_api.large_answers import LargeAnswers, delegate_large_answers
from ncclt_api.middleware import add_headers, answer_head, limit_body, tag_answers
from ncclt_api.pages.study import StudyPages
from ncclt_api.problems import add_problem_handlers
from ncclt_api.proxy_users import ProxyPlan, ProxyUsers, note_peer
from ncclt_api.routes import (
    catalogue,
    client_file,
    env,
    health,
    history,
    job_pages,
    jobs,
    keys,
    overview_pages,
    pages,
    recommendation_pages,
    recommendations,
    reports,
    revisions,
    rollout_pages,
    rollouts,
    sign_in_pages,
    studies,
    uploads,
)
from ncclt_api.sign_in import Sessions
from ncclt_api.telemetry import Figures, TelemetryMiddleware, start_log
from ncclt_api.tickets import Tickets

_LEAST_ZIPPED_BYTES = 2000
"""Shorter answers fit two packets anyway; zipping costs more than it saves."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_ASSETS = Path(__file__).parent / "pages" / "assets"


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
    sessions = Sessions(options.session_secret)
    # Hosts and users were checked before a request is handed on.
    shared = replace(options, session_secret=sessions.secret, hosts=None, users=None)
    large_answers = LargeAnswers(_app_of_large_answers, large, shared) if large else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        own = await run_in_threadpool(open_service_store, storage) if isinstance(storage, str) else None
        app.state.store = own or storage
        try:
            yield
        finally:
            if large_answers:
                await run_in_threadpool(large_answers.close)
            await run_in_threadpool(app.state.tickets.close)
            if app.state.jobs:
                await run_in_threadpool(app.state.jobs.close)
            if own:
                await run_in_threadpool(own.close)

    # No documentation pages of FastAPI: they load scripts from another host.
    app = _Service(
        title="ncclt",
        version=__version__,
        summary="Validated NCCL settings, by cluster and workload.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # a route of ours, which needs a key
    )
    app.state.public_url, app.state.sessions = options.public_url, sessions
    app.state.has_users = options.users is not None
    app.state.figures = Figures(lambda: app.state.store, lambda: jobs.open_queue(app.state))
    app.state.tickets = Tickets(lambda: app.state.store)
    app.state.study_pages = StudyPages(lambda: app.state.store)
    app.state.answers = Answers(lambda: app.state.store, fresh_s=fresh_s)
    app.state.optuna_dashboard_url = options.optuna_dashboard_url
    app.state.large_answers, app.state.jobs = large_answers, None
    app.state.routes = []
    public: set[tuple[str, str]] = set()
    for router in (
        health.router,
        client_file.router,
        catalogue.clusters,
        env.router,
        env.bulk,
        catalogue.workloads,
        studies.router,
        recommendations.router,
        reports.attestations,
        revisions.router,
        revisions.rules,
        rollouts.router,
        history.router,
        reports.step_times,
        jobs.router,
        keys.router,
        uploads.router,
        overview_pages.router,
        pages.router,
        recommendation_pages.router,
        rollout_pages.router,
        job_pages.router,
        sign_in_pages.router,
    ):
        for route in router.routes:
            assert isinstance(route, APIRoute), "a router has routes of FastAPI alone"
            app.state.routes.append(route)
            if declared_role(route) is None:
                public |= {(method, route.path) for method in route.methods or ()}
        app.include_router(router)
    app.mount("/assets", StaticFiles(directory=_ASSETS), name="assets")
    add_problem_handlers(app)
    # The middleware added last is the outermost.
    app.add_middleware(tag_answers)
    app.add_middleware(AnswersMiddleware, answers=app.state.answers)
    if large_answers:
        app.add_middleware(delegate_large_answers, large=large_answers)
    if not is_checked:
        app.add_middleware(
            AccessMiddleware,
            keys=KnownKeys(lambda: app.state.store, fresh_s=fresh_s),
            sessions=sessions,
            hosts=options.hosts,
            public=public,
            users=ProxyUsers(options.users, log=log) if options.users else None,
        )
    app.add_middleware(limit_body)
    app.add_middleware(GZipMiddleware, minimum_size=_LEAST_ZIPPED_BYTES)
    app.add_middleware(answer_head)
    app.add_middleware(add_headers)
    app.add_middleware(TelemetryMiddleware, figures=app.state.figures, log=log)
    return app


def _app_of_large_answers(storage: str, options: ServiceOptions) -> FastAPI:
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
        # Requests are logged by TelemetryMiddleware.
        uvicorn.run(
            note_peer(app),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )

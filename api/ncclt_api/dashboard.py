"""optuna-dashboard on our port, read-only; the only module of the service that imports Optuna.

A middleware and not a mount, since its page loads `/static/bundle.js` and calls `/api/...` wherever it is mounted, so
those paths go to it unchanged. It has neither a read-only mode nor a login, so this module makes it read-only twice:
only GET and HEAD pass, and the database is opened read-only. A stylesheet hides the buttons that this leaves dead.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt.errors import MissingDependencyError, NccltError, NotFoundError
from ncclt_api.problems import Problem, problem_of, problem_response

_PREFIXES = ("/dashboard/", "/api/", "/static/", "/csv/")
_PATHS = ("/dashboard", "/favicon.ico")
_PACKAGES = ("optuna", "optuna_dashboard", "a2wsgi")
_STYLE = b'<link rel="stylesheet" href="/assets/dashboard.css"></head>'


def is_installed() -> bool:
    """Return whether the packages of the dashboard are installed, without importing them."""
    return all(importlib.util.find_spec(package) for package in _PACKAGES)


def has_importances() -> bool:
    """Return whether `importances` can be computed here, without importing Optuna."""
    return importlib.util.find_spec("optuna") is not None


def importances(trials: Sequence[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """Return how much each parameter decides whether a trial is among the fastest tenth; the most important first.

    PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023), which needs no forest and so no further package.

    Args:
        trials: parameters and time of each; a parameter that is missing counts as a value of its own.

    Returns:
        shares that add up to 1; empty where no parameter had two values.
    """
    from optuna import create_study, logging
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.storages import InMemoryStorage
    from optuna.trial import create_trial

    names = sorted({name for parameters, _ in trials for name in parameters})
    values = {name: sorted({parameters.get(name, "") for parameters, _ in trials}) for name in names}
    varied: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(found) for name, found in values.items() if len(found) > 1
    }
    if not varied:
        return {}
    logging.set_verbosity(logging.WARNING)  # a line for each page is no news
    study = create_study(storage=InMemoryStorage(), study_name="importance")
    study.add_trials(
        create_trial(params={name: parameters.get(name, "") for name in varied}, distributions=varied, value=value)
        for parameters, value in trials
    )
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def read_only_url(optuna_url: str) -> str:
    """Return the URL that opens the database read-only and never creates it.

    Raises:
        NotFoundError: the SQLite file does not exist: there was no search yet.
    """
    scheme, _, rest = optuna_url.partition("://")
    if not scheme.startswith("sqlite"):
        # An option of libpq: every transaction of the session is read-only by default.
        option = quote("-cdefault_transaction_read_only=on")
        if "options=" in rest:
            return optuna_url.replace("options=", f"options={option}%20", 1)
        return f"{optuna_url}{'&' if '?' in rest else '?'}options={option}"
    path = Path(rest.removeprefix("/").partition("?")[0])
    if not path.is_file():
        raise _no_study_yet()
    # sqlite.org/uri.html: mode=ro neither creates the file nor writes it.
    return f"{scheme}:///file:{quote(str(path.absolute()))}?mode=ro&uri=true"


class Dashboard:
    """The dashboard of one Optuna database, opened at the first visit: importing Optuna takes a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None
        self._storage: Any = None

    def open(self, optuna_url: str) -> ASGIApp:
        """Return the dashboard's application.

        Raises:
            MissingDependencyError: its packages are not installed.
            NotFoundError: Optuna's tables do not exist yet; opening does not create them.
        """
        with self._lock:
            if self._app is None:
                self._app = self._build(optuna_url)
            app: ASGIApp = self._app
            return app

    def _build(self, optuna_url: str) -> Any:
        if not is_installed():
            raise MissingDependencyError(
                "the dashboard's packages are not installed", hint="pip install 'ncclt[api]' brings them"
            )
        from a2wsgi import WSGIMiddleware
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from optuna_dashboard import wsgi

        url = read_only_url(optuna_url)
        try:
            storage = RDBStorage(url, skip_compatibility_check=True, skip_table_creation=True)
        except StorageInternalError as error:
            # Its first query found no tables. /readyz reports whether the database answers at all.
            raise _no_study_yet() from error
        self._storage = storage
        return WSGIMiddleware(wsgi(storage))

    def address(self, optuna_url: str, name: str) -> str:
        """Return the path of one study's page.

        Raises:
            MissingDependencyError, NotFoundError: as for `open`, and there is no study of this name.
        """
        self.open(optuna_url)
        try:
            return f"/dashboard/studies/{self._storage.get_study_id_from_name(name)}"
        except KeyError as error:
            raise NotFoundError(
                f"optuna has no study {name[:100]!r}", hint="it was searched before its trials were kept, or not yet"
            ) from error

    def close(self) -> None:
        """Release the connections and threads; harmless if nothing was opened."""
        with self._lock:
            if self._app is not None:
                self._app.executor.shutdown()
                self._storage.remove_session()
                self._storage.engine.dispose()
                self._app = self._storage = None


class DashboardMiddleware:
    """Route the dashboard's own paths to it, everything else to the service."""

    def __init__(self, app: ASGIApp, *, dashboard: Dashboard | None) -> None:
        self.app = app
        self.dashboard = dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the dashboard for GET and HEAD; answer with a problem if that is impossible."""
        if scope["type"] != "http" or not _is_ours(scope["path"]):
            await self.app(scope, receive, send)
            return
        target: ASGIApp
        try:
            if scope["method"] not in ("GET", "HEAD"):
                hint = "studies are written by `ncclt tune`, not from a browser"
                problem = Problem(status=405, detail="the dashboard is for reading only", hint=hint)
                target = problem_response(problem, Request(scope), {"Allow": "GET, HEAD"})
            elif self.dashboard is None:
                raise NotFoundError("the dashboard is switched off", hint="start the service with the dashboard")
            elif name := _named(scope):
                path = await run_in_threadpool(self.dashboard.address, scope["app"].state.store.optuna_url, name)
                target = RedirectResponse(scope.get("root_path", "") + path, 303)
            else:
                opened = await run_in_threadpool(self.dashboard.open, scope["app"].state.store.optuna_url)
                target = _Problems(_Styled(opened))
        except MissingDependencyError as error:
            problem = Problem(status=404, detail=error.message, hint=error.hint)
            target = problem_response(problem, Request(scope))
        except NccltError as error:
            target = problem_response(problem_of(error), Request(scope))
        await target(_with_accept_encoding(scope), receive, send)


class _Styled:
    """The dashboard with our stylesheet in its page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = b""

        async def with_style(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_page(message):
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                styled = body.replace(b"</head>", _STYLE, 1)
                headers = MutableHeaders(scope=start)
                headers["Content-Length"] = str(len(styled))
                for name in ("ETag", "Last-Modified"):  # they are of its own page
                    del headers[name]
                await send(start)
                await send({"type": "http.response.body", "body": styled})

        await self.app(scope, receive, with_style)


class _Problems:
    """The dashboard with our errors: its own for an unknown path is a page, which no program can read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Problem | None = None

        async def unless_failed(message: Message) -> None:
            nonlocal failed
            if message["type"] == "http.response.start" and message["status"] >= 400:
                kind = Headers(raw=message.get("headers", [])).get("content-type", "")
                if not kind.startswith("application/json"):
                    what = "has nothing at" if message["status"] == 404 else "cannot answer"
                    failed = Problem(
                        status=message["status"],
                        detail=f"the dashboard {what} {scope['path']}",
                        hint="/dashboard is its page; the service's own API is listed by GET /v1/openapi.json",
                    )
            if failed is None:
                await send(message)

        await self.app(scope, receive, unless_failed)
        if failed is not None:
            await problem_response(failed, Request(scope))(scope, receive, send)


def _is_ours(path: str) -> bool:
    return path in _PATHS or path.startswith(_PREFIXES)


def _is_page(start: Message) -> bool:
    kind = Headers(raw=start.get("headers", [])).get("content-type", "")
    return start["status"] == 200 and kind.startswith("text/html")


def _named(scope: Scope) -> str:
    """Return the study that `/dashboard?study=NAME` asks for: we know its name, and optuna-dashboard its number."""
    return QueryParams(scope["query_string"]).get("study", "") if scope["path"] == "/dashboard" else ""


def _with_accept_encoding(scope: Scope) -> Scope:
    # optuna-dashboard 0.21 reads this header unconditionally and fails with a KeyError without it.
    if any(name == b"accept-encoding" for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (b"accept-encoding", b"identity")]}


def _no_study_yet() -> NotFoundError:
    return NotFoundError("there is no study yet", hint="run `ncclt tune --model bert --nodes 2`, then look again")

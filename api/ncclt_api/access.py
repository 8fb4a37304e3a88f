"""Who may do what: a bearer token is looked up among the keys of the store, and compared with what the route needs.

A store without keys is open: `ncclt serve` then listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ncclt.core.api_key import ApiKey, Role, digest_of
from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.pages.environment import render_page
from ncclt_api.problems import Forbidden, Problem, problem_of, problem_response, wants_page
from ncclt_api.proxy_users import ProxyUsers
from ncclt_api.sign_in import BrowserSession, Sessions, remember
from ncclt_api.telemetry import note

FRESH_S = 0.5
"""How long a new or revoked key may stay unnoticed."""

LAST_KNOWN_S = 24 * 3600.0
"""How long the keys that were last read are used while the database is away."""

_KEY = "ncclt.key"
_MOST_TOKEN = 200

_PUBLIC = re.compile(r"/healthz|/readyz|/client\.py|/assets/.*")
"""What anyone may read: probes have no key, and the client is no secret."""

_SIGN_IN = "/sign-in"
"""What takes a key, and needs none."""

NEEDED: tuple[tuple[str, re.Pattern[str], Role], ...] = (
    ("GET", re.compile(r".*"), Role.READ),
    ("POST", re.compile(r"/v1/attestations|/v1/step-times"), Role.REPORT),
    ("POST", re.compile(r"/v1/recommendations/[^/]+/(?:approve|activate|rollback|pin|unpin|retire)"), Role.APPROVE),
    ("POST", re.compile(r"/v1/(?:workloads|jobs|jobs/stale|jobs/[^/]+/(?:cancel|retry))"), Role.TUNE),
    ("POST", re.compile(r"/recommendations/[^/]+/[^/]+"), Role.APPROVE),
    ("POST", re.compile(r"/sign-out"), Role.READ),
    ("POST", re.compile(r"/jobs(?:/[^/]+/(?:cancel|retry))?"), Role.TUNE),
    ("PUT", re.compile(r"/v1/clusters/[^/]+/rules"), Role.ADMIN),
)
"""Method, path and the role that they need, the first match; a test holds every route of the service against it. What
matches nothing needs an admin."""

_CLUSTER_IN_PATH = re.compile(r"/v1/clusters/([^/]+)(?:/.*)?")
_OF_NO_CLUSTER = re.compile(r"/v1/workloads(?:/.*)?|/v1/openapi\.json|/sign-out")
_BY_OBJECT = re.compile(
    r"/v1/(?:studies|recommendations)/[^/]+(?:/.*)?|/v1/attestations|/v1/step-times|/v1/jobs(?:/.*)?"
    r"|/studies/[^/]+(?:/.*)?|/clusters/.+|/compare|/recommendations/[^/]+(?:/.*)?|/jobs(?:/.*)?"
)
"""Paths whose cluster is that of a stored object, or named in a page's path: their routes call `require_cluster`."""


_OF_ALL = re.compile(r"/metrics")
"""What shows all clusters, whatever the query names."""


def needed_role(method: str, path: str) -> Role | None:
    """Return the role that a request needs; None = none."""
    if (_PUBLIC.fullmatch(path) and method == "GET") or (path == _SIGN_IN and method in ("GET", "POST")):
        return None
    return next((role for verb, pattern, role in NEEDED if verb == method and pattern.fullmatch(path)), Role.ADMIN)


def key_of(request: Request) -> ApiKey | None:
    """Return the key of a request; None = the store has no keys."""
    key: ApiKey | None = request.scope.get(_KEY)
    return key


def may_see(request: Request, cluster: str) -> bool:
    """Return whether the key of a request is for a cluster."""
    key = key_of(request)
    return key is None or not key.clusters or cluster in key.clusters


def require_cluster(request: Request, cluster: str) -> None:
    """Refuse a request whose key is for other clusters.

    Raises:
        Forbidden: it is.
    """
    key = key_of(request)
    if key is not None and not may_see(request, cluster):
        raise Forbidden(f"the {key.holder} is not for the cluster {cluster}", f"it is for {', '.join(key.clusters)}")


def who(request: Request) -> str:
    """Return who makes a request, for the history: its key; a service without keys is used by its own machine alone."""
    key: ApiKey | None = request.scope.get(_KEY)
    return key.holder if key is not None else "local user of the service"


def forbidden(request: Request, error: Exception) -> Response:
    """Answer a request that its key does not permit."""
    assert isinstance(error, Forbidden)
    return problem_response(error.problem, request)


class AccessMiddleware:
    """Refuse requests without a valid key (401), and those that the key does not permit (403).

    While there are no keys, only requests that name one of `hosts` are answered: another name that resolves to this
    machine may be that of a page in a browser here (DNS rebinding). None = any. With `users` no store is open: a
    request needs a key or a user.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: Callable[[], Store],
        fresh_s: float,
        sessions: Sessions,
        hosts: Collection[str] | None = None,
        users: ProxyUsers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self._store = store
        self._sessions = sessions
        self._hosts = hosts
        self._users = users
        self._fresh_s = fresh_s
        self._clock = clock
        self._keys: dict[str, ApiKey] = {}
        self._read_s: float | None = None
        self._reading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        role = needed_role(method, path)
        refused = _foreign_page(scope, method) or (None if role is None else await self._refusal(scope, path, role))
        if refused is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if refused.status == 401 and wants_page(request):
            await _ask_for_key(request)(scope, receive, send)
            return
        headers = {"WWW-Authenticate": 'Bearer realm="ncclt"'} if refused.status == 401 else {}
        await problem_response(refused, request, headers)(scope, receive, send)

    async def _refusal(self, scope: Scope, path: str, role: Role) -> Problem | None:
        headers = Headers(scope=scope)
        try:
            keys = await self._current_keys()
        except StoreError as error:
            return problem_of(error)
        if not keys and self._users is None:
            return self._wrong_host(headers.get("host", ""))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = keys.get(digest_of(token)) if scheme.lower() == "bearer" and len(token) <= _MOST_TOKEN else None
        if scheme.lower() != "bearer":  # oauth2-proxy sends a Basic of its own beside the name
            key = self._user(scope, path) or (None if scheme else self._signed_in(scope, path, headers, keys))
        if key is None:
            return Problem(
                status=401,
                detail="this service needs a key" if not token else "the key is not known",
                hint="set NCCLT_API_KEY, or send `Authorization: Bearer KEY`; `ncclt keys create` makes one",
                type="urn:ncclt:problem:unauthorized",
            )
        if why := key.invalid(datetime.now(UTC).isoformat(timespec="milliseconds")):
            return Problem(status=401, detail=why, hint="ask for another", type="urn:ncclt:problem:unauthorized")
        if not key.role.includes(role):
            return Problem(
                status=403,
                detail=f"the {key.holder} may {key.role}, this needs {role}",
                hint="ask for another key",
                type="urn:ncclt:problem:forbidden",
            )
        scope[_KEY] = key
        note(scope, key=key.id)
        return _wrong_cluster(key, path, scope["query_string"])

    def _user(self, scope: Scope, path: str) -> ApiKey | None:
        """Return whom a proxy has signed in; with the rights of a cookie, since the browser sends either by itself."""
        if self._users is None or _writes_api(scope, path) or (user := self._users.user(scope)) is None:
            return None
        remember(scope, BrowserSession(key=user.id, mark=user.id))
        return user

    def _signed_in(self, scope: Scope, path: str, headers: Headers, keys: dict[str, ApiKey]) -> ApiKey | None:
        """Return the key that a cookie names; it may read all, and write by the forms of pages, which have tokens."""
        if _writes_api(scope, path):
            return None
        session = self._sessions.read(headers.get("cookie", ""))
        if session is None:
            return None
        remember(scope, session)
        return next((key for key in keys.values() if key.id == session.key), None)

    def _wrong_host(self, host: str) -> Problem | None:
        if self._hosts is None or _name_of(host) in self._hosts:
            return None
        return Problem(
            status=421,
            detail=f"without keys this service does not answer as {host[:100]!r}",
            hint="name the host with `ncclt serve --allow-host`, or create a key with `ncclt keys create`",
        )

    async def _current_keys(self) -> dict[str, ApiKey]:
        """Return the keys, read again where they are too old; the last known ones while the database is away."""
        if self._read_s is None or self._clock() - self._read_s >= self._fresh_s:
            async with self._reading:
                began_s = self._clock()
                if self._read_s is None or began_s - self._read_s >= self._fresh_s:
                    try:
                        self._keys = await run_in_threadpool(lambda: self._store().keys())
                        self._read_s = began_s
                    except StoreError:
                        if self._read_s is None or began_s - self._read_s > LAST_KNOWN_S:
                            raise
        return self._keys


def _writes_api(scope: Scope, path: str) -> bool:
    return scope["method"] not in ("GET", "HEAD") and path.startswith("/v1/")


def _foreign_page(scope: Scope, method: str) -> Problem | None:
    """Refuse what a page of another host writes with what this browser may do."""
    headers = Headers(scope=scope)
    origin = headers.get("origin", "")
    if method == "GET" or not origin or urlsplit(origin).netloc == headers.get("host"):
        return None
    return Problem(status=403, detail=f"a page of {origin[:100]} may not write here")


def _ask_for_key(request: Request) -> Response:
    """Send a browser to the sign-in."""
    if "hx-request" in request.headers:  # a part of a page: the whole page has to ask
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
        # A link on another site does not bring the strict cookie of a browser that is signed in; this page's own does.
        return HTMLResponse(render_page("again.html"), headers={"Cache-Control": "no-store"})
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = "?" + urlencode({"next": path}) if path != "/" and request.method == "GET" else ""
    return RedirectResponse(f"{_SIGN_IN}{query}", 303, {"Cache-Control": "no-store"})


def _wrong_cluster(key: ApiKey, path: str, query: bytes) -> Problem | None:
    """Refuse a path of other clusters, as the router sees it: decoded once. Lists must be asked for by cluster."""
    if not key.clusters or _OF_NO_CLUSTER.fullmatch(path) or _BY_OBJECT.fullmatch(path):
        return None
    found = _CLUSTER_IN_PATH.fullmatch(path)
    asked = {} if _OF_ALL.fullmatch(path) else parse_qs(query.decode("latin-1"))
    named = [found[1]] if found else asked.get("cluster", [])
    if named and set(named) <= set(key.clusters):
        return None
    about = f"is not for the cluster {named[0][:100]}" if named else "is not for all clusters"
    return Problem(
        status=403,
        detail=f"the {key.holder} {about}",
        hint=f"it is for {', '.join(key.clusters)}: name one, for example ?cluster={key.clusters[0]}",
        type="urn:ncclt:problem:forbidden",
    )


def _name_of(host: str) -> str:
    """Return a Host header without its port: `[::1]:8080` is `[::1]`."""
    return re.sub(r":[0-9]*$", "", host).lower()

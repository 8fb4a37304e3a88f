"""Access control: each request needs a key of the store, with the role that its route declares.

The clusters that a key may see are an argument of the store's queries: see `Store.within`.

A store without keys is open: `ncclt serve` then listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request, Response, Security, params
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.middleware import local_path
from ncclt_api.pages.environment import render_page
from ncclt_api.problems import ForbiddenError, Problem, problem_of, problem_response, wants_page
from ncclt_api.proxy_users import ProxyUsers
from ncclt_api.sign_in import Sessions, remember
from ncclt_api.telemetry import note

FRESH_S = 0.5
"""Max time until the service notices a new or revoked key."""

LAST_KNOWN_S = 24 * 3600.0
"""Max age of the last known keys that the service uses while the database is away."""

_LOOK_S = 0.5
"""Max wait of a request for fresh keys; after it, the service uses the last known ones."""

_KEY = "ncclt.key"
_MOST_TOKEN = 200

_SIGN_IN = "/sign-in"

ASSETS = "/assets/"
"""Path of files that anyone may read."""

_BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="a key of `ncclt admin keys create`")


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """Dependency that admits a request to a route.

    Attributes:
        role: that its key needs; None = anyone may come, without a key.
    """

    role: Role | None

    async def __call__(self, request: Request) -> None:
        """Refuse a request whose key lacks the role.

        Raises:
            ForbiddenError: the key lacks the role.
        """
        if self.role is None:
            return
        key = key_of(request)
        if key is not None and not key.role.includes(self.role):
            raise ForbiddenError(f"the {key.holder} may {key.role}; this needs {self.role}", hint="ask for another key")


PUBLIC = [Depends(RouteAccess(None))]
"""Dependencies of a route that anyone may use: probes have no key, and the client is no secret."""


def needs(role: Role) -> list[params.Depends]:
    """Return the dependencies of a route that needs a role; AccessMiddleware has found the key."""
    return [Depends(RouteAccess(role)), Security(_BEARER, scopes=[role.value])]


def declared_role(route: APIRoute) -> Role | None:
    """Return the role that a route needs; None = it is public.

    Raises:
        TypeError: the route declares no access, or several.
    """
    declared = [row.dependency for row in route.dependencies if isinstance(row.dependency, RouteAccess)]
    if len(declared) != 1:
        methods = ", ".join(route.methods or ())
        raise TypeError(f"{route.path} ({methods}) has to declare one access: `needs` or `PUBLIC`")
    return declared[0].role


def key_of(request: Request) -> ApiKey | None:
    """Return the key of a request that AccessMiddleware has let pass; None = the store has no keys."""
    key: ApiKey | None = request.scope[_KEY]
    return key


def may_see(scope: Scope, cluster: str) -> bool:
    """Check that the key of a request is for a cluster."""
    key: ApiKey | None = scope[_KEY]
    return key is None or not key.clusters or cluster in key.clusters


def who(request: Request) -> str:
    """Return the actor of a request for the history: its key; a service without keys serves its own machine alone."""
    key = key_of(request)
    return key.holder if key is not None else "local user of the service"


class KnownKeys:
    """Keys of the store, by hash; the last known ones while the database is away or hangs.

    Keys older than `fresh_s` are read again.
    """

    def __init__(
        self, store: Callable[[], Store], *, fresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._fresh_s = fresh_s
        self._clock = clock
        self._keys: dict[str, ApiKey] = {}
        self._read_s: float | None = None
        self._looked_s = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._failure: StoreError | None = None

    async def current(self) -> dict[str, ApiKey]:
        """Return the keys.

        Raises:
            StoreError: the database has been away for too long.
        """
        now_s = self._clock()
        if self._look is None and now_s - self._looked_s >= self._fresh_s:
            self._look, self._looked_s = asyncio.create_task(self._read()), now_s
        if (look := self._look) is not None:
            left_s = None if self._read_s is None else max(self._looked_s + _LOOK_S - now_s, 0.0)
            await asyncio.wait({look}, timeout=left_s)
            if look.done():
                look.result()  # raises what no store should
        if self._read_s is None or (self._failure and self._looked_s - self._read_s > LAST_KNOWN_S):
            raise self._failure or StoreError("the keys of the service were never read")
        return self._keys

    async def _read(self) -> None:
        began_s = self._clock()
        try:
            self._keys = await run_in_threadpool(lambda: self._store().keys.find())
            self._read_s, self._failure = began_s, None
        except StoreError as error:
            self._failure = error
        finally:
            self._look = None


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """Find the key of a request; refuse one without a valid key (401), but for what is public.

    Attributes:
        app: that requests are passed on to.
        keys: of the store.
        sessions: of browsers.
        public: methods and paths of routes that need no key.
        hosts: names that requests have to name while there are no keys: another name that resolves to this machine may
            be that of a page in a browser here (DNS rebinding). None = any.
        users: of a trusted proxy; with them no store is open: a request needs a key or a user.
    """

    app: ASGIApp
    keys: KnownKeys
    sessions: Sessions
    public: Collection[tuple[str, str]] = ()
    hosts: Collection[str] | None = None
    users: ProxyUsers | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], local_path(scope)
        headers, refused = Headers(scope=scope), None
        origin = headers.get("origin", "")
        if method != "GET" and origin and urlsplit(origin).netloc != headers.get("host"):
            # A page of another host would write with the rights of this browser.
            refused = Problem(status=403, detail=f"a page of {origin[:100]} may not write here")
        elif (method, path) not in self.public and not path.startswith(ASSETS):
            refused = await self._refusal(scope, path, headers)
        if refused is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if refused.status == 401 and wants_page(request):
            response = _ask_for_key(request)
        else:
            scheme = {"WWW-Authenticate": 'Bearer realm="ncclt"'} if refused.status == 401 else {}
            response = problem_response(refused, request, scheme)
        await response(scope, receive, send)

    async def _refusal(self, scope: Scope, path: str, headers: Headers) -> Problem | None:
        try:
            keys = await self.keys.current()
        except StoreError as error:
            return problem_of(error)
        if not keys and self.users is None:
            scope[_KEY] = None
            host = headers.get("host", "")
            # Without its port: `[::1]:8080` is `[::1]`.
            if self.hosts is None or re.sub(r":[0-9]*$", "", host).lower() in self.hosts:
                return None
            return Problem(
                status=421,
                detail=f"without keys this service does not answer as {host[:100]!r}",
                hint="send the Host that it listens on, or allow another one with `ncclt serve --allow-host`",
            )
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = keys.get(hash_secret(token)) if scheme.lower() == "bearer" and len(token) <= _MOST_TOKEN else None
        if scheme.lower() != "bearer":  # oauth2-proxy sends a Basic of its own beside the name
            key = self._browser_key(scope, path, headers, keys)
        if key is None:
            return Problem(
                status=401,
                detail="this service needs a key" if not token else "unknown key",
                hint="send `Authorization: Bearer KEY`, or set NCCLT_API_KEY; POST /v1/keys creates one",
                type="urn:ncclt:problem:unauthorized",
            )
        if why := key.invalid(datetime.now(UTC).isoformat(timespec="milliseconds")):
            return Problem(status=401, detail=why, hint="ask for another", type="urn:ncclt:problem:unauthorized")
        scope[_KEY] = key
        note(scope, key=key.id)
        return None

    def _browser_key(self, scope: Scope, path: str, headers: Headers, keys: dict[str, ApiKey]) -> ApiKey | None:
        """Return the key of a browser: the user of a trusted proxy, or the key that a cookie names.

        Browsers send both by themselves, so such a key may write only by forms of pages, which have tokens.
        """
        if scope["method"] not in ("GET", "HEAD") and path.startswith("/v1/"):
            return None
        if self.users is not None and (user := self.users.user(scope)) is not None:
            remember(scope, user.id)
            return user
        if headers.get("authorization") or (session := self.sessions.read(headers.get("cookie", ""))) is None:
            return None
        id, mark = session
        remember(scope, mark)
        return next((key for key in keys.values() if key.id == id), None)


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

"""Who may do what: a bearer token is looked up among the keys of the store, and compared with what the route needs.

A store without keys is open: `ncclt serve` then listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import anyio
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ncclt.core.api_key import ApiKey, Role, digest_of
from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.problems import Problem, problem_of, problem_response

FRESH_S = 0.5
"""How long a new or revoked key may stay unnoticed."""

LAST_KNOWN_S = 24 * 3600.0
"""How long the keys that were last read are used while the database is away."""

_KEY = "ncclt.key"
_MOST_TOKEN = 200

_PUBLIC = re.compile(r"/healthz|/readyz|/assets/.*")
"""What anyone may read: probes have no key."""

NEEDED: tuple[tuple[str, re.Pattern[str], Role], ...] = (
    ("GET", re.compile(r".*"), Role.READ),
    ("POST", re.compile(r"/v1/attestations"), Role.REPORT),
)
"""Method, path and the role that they need, the first match; a test holds every route of the service against it. What
matches nothing needs an admin."""

_CLUSTER_IN_PATH = re.compile(r"/v1/clusters/([^/]+)(?:/.*)?")
_OF_NO_CLUSTER = re.compile(r"/v1/workloads(?:/.*)?|/v1/openapi\.json")
_BY_OBJECT = re.compile(r"/v1/(?:studies|recommendations)/[^/]+(?:/.*)?|/v1/attestations|/studies/[^/]+")
"""Paths whose cluster is that of a stored object: their routes call `require_cluster`."""


def needed_role(method: str, path: str) -> Role | None:
    """Return the role that a request needs; None = none."""
    if _PUBLIC.fullmatch(path) and method == "GET":
        return None
    return next((role for verb, pattern, role in NEEDED if verb == method and pattern.fullmatch(path)), Role.ADMIN)


class Forbidden(Exception):  # noqa: N818  a decision, not a failure
    """The key of a request does not permit it."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.problem = Problem(status=403, detail=detail, hint=hint, type="urn:ncclt:problem:forbidden")


def require_cluster(request: Request, cluster: str) -> None:
    """Refuse a request whose key is for other clusters.

    Raises:
        Forbidden: it is.
    """
    key: ApiKey | None = request.scope.get(_KEY)
    if key is not None and key.clusters and cluster not in key.clusters:
        raise Forbidden(f"the key {key.id} is not for the cluster {cluster}", f"it is for {', '.join(key.clusters)}")


def forbidden(request: Request, error: Exception) -> Response:
    """Answer a request that its key does not permit."""
    assert isinstance(error, Forbidden)
    return problem_response(error.problem, request)


class AccessMiddleware:
    """Refuse requests without a valid key (401), and those that the key does not permit (403).

    While there are no keys, only requests that name one of `hosts` are answered: another name that resolves to this
    machine may be that of a page in a browser here (DNS rebinding). None = any.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: Callable[[], Store],
        fresh_s: float,
        hosts: Collection[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self._store = store
        self._hosts = hosts
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
        refused = None if role is None else await self._refusal(scope, path, role)
        if refused is None:
            await self.app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": 'Bearer realm="ncclt"'} if refused.status == 401 else {}
        await problem_response(refused, Request(scope), headers)(scope, receive, send)

    async def _refusal(self, scope: Scope, path: str, role: Role) -> Problem | None:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        # A page of another host must not write with what this browser may do.
        if role is not Role.READ and origin and urlsplit(origin).netloc != headers.get("host"):
            return Problem(status=403, detail=f"a page of {origin[:100]} may not write here")
        try:
            keys = await self._current_keys()
        except StoreError as error:
            return problem_of(error)
        if not keys:
            return self._wrong_host(headers.get("host", ""))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = keys.get(digest_of(token)) if scheme.lower() == "bearer" and len(token) <= _MOST_TOKEN else None
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
                detail=f"the key {key.id} may {key.role}, this needs {role}",
                hint="ask for another key",
                type="urn:ncclt:problem:forbidden",
            )
        scope[_KEY] = key
        return _wrong_cluster(key, path, scope["query_string"])

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
                        self._keys = await anyio.to_thread.run_sync(lambda: self._store().keys())
                        self._read_s = began_s
                    except StoreError:
                        if self._read_s is None or began_s - self._read_s > LAST_KNOWN_S:
                            raise
        return self._keys


def _wrong_cluster(key: ApiKey, path: str, query: bytes) -> Problem | None:
    """Refuse a path of other clusters, as the router sees it: decoded once. Lists must be asked for by cluster."""
    if not key.clusters or _OF_NO_CLUSTER.fullmatch(path) or _BY_OBJECT.fullmatch(path):
        return None
    found = _CLUSTER_IN_PATH.fullmatch(path)
    named = [found[1]] if found else parse_qs(query.decode("latin-1")).get("cluster", [])
    if named and set(named) <= set(key.clusters):
        return None
    about = f"is not for the cluster {named[0][:100]}" if named else "is not for all clusters"
    return Problem(
        status=403,
        detail=f"the key {key.id} {about}",
        hint=f"it is for {', '.join(key.clusters)}: name one, for example ?cluster={key.clusters[0]}",
        type="urn:ncclt:problem:forbidden",
    )


def _name_of(host: str) -> str:
    """Return a Host header without its port: `[::1]:8080` is `[::1]`."""
    return re.sub(r":[0-9]*$", "", host).lower()

"""Middleware around every answer: security headers, entity tags, a limit to the size of requests, a request id."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HARMLESS = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

_SCOPE_KEY = "ncclt.request_id"

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""No inline script or style, nothing from another host."""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


MOST_BODY_BYTES = 1024 * 1024
"""Longest request body that is read; an attestation has at most some 100 kB."""

MOST_UPLOAD_BYTES = 256 * 1024 * 1024
"""Longest trace; it is written to a file as it arrives."""

_UPLOAD = "/v1/workloads"

_API = "/v1/"


def for_requests(handle: Callable[..., Awaitable[None]]) -> Callable[..., ASGIApp]:
    """Return a middleware that handles HTTP requests and forwards other events, such as start-up.

    Args:
        handle: handler of the application, scope, receive, send and the options of the middleware.
    """

    def middleware(app: ASGIApp, **options: Any) -> ASGIApp:
        async def handle_requests(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await handle(app, scope, receive, send, **options)
            else:
                await app(scope, receive, send)

        return handle_requests

    return middleware


@for_requests
async def limit_body(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a body that is too long as early as possible, with or without a Content-Length."""
    announced = Headers(scope=scope).get("content-length", "")
    most = MOST_UPLOAD_BYTES if scope["path"].endswith(_UPLOAD) else MOST_BODY_BYTES
    received = int(announced) if announced.isdecimal() and int(announced) > most else 0

    async def receive_some() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"the request is longer than {most} bytes")
        return message

    await app(scope, receive_some, send)


@for_requests
async def tag_answers(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Add an ETag to JSON answers of the API, and answer 304 if the client has the same answer."""
    if scope["method"] != "GET" or not local_path(scope).startswith(_API):
        await app(scope, receive, send)
        return
    start: Message | None = None
    body = bytearray()

    async def send_tagged(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            is_json = message["status"] == 200 and headers.get("content-type") == "application/json"
            if is_json and "etag" not in headers:
                start = message  # computed from the body
                return
        elif start is not None and message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                await _send_tagged(start, bytes(body), send, Headers(scope=scope).get("if-none-match"))
            return
        await send(message)

    await app(scope, receive, send_tagged)


async def _send_tagged(start: Message, body: bytes, send: Send, if_none_match: str | None) -> None:
    # A weak one: the answer may be zipped after this.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = MutableHeaders(scope=start)
    headers["ETag"] = etag
    headers.setdefault("Cache-Control", "private, no-cache")
    if is_known(etag, if_none_match):
        del headers["Content-Length"], headers["Content-Type"]
        start, body = {**start, "status": 304}, b""
    await send(start)
    await send({"type": "http.response.body", "body": body})


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Match the client's If-None-Match with this tag, by the weak comparison (RFC 9110, 13.1.2)."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def local_path(scope: Scope) -> str:
    """Return the path of a request below the service's own."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


@for_requests
async def answer_head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer HEAD as GET without the body: a framework's route for GET refuses it (RFC 9110, section 9.3.2)."""

    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    is_head = scope["method"] == "HEAD"
    await app({**scope, "method": "GET"} if is_head else scope, receive, send_head if is_head else send)


def request_id(scope: Scope) -> str:
    """Return the id of the request; a new one if `add_headers` has not set it."""
    id: str = scope.setdefault(_SCOPE_KEY, uuid.uuid4().hex)
    return id


@for_requests
async def add_headers(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Add security headers and an id to every answer; the id is the client's X-Request-ID if that is harmless."""
    client_id = Headers(scope=scope).get("x-request-id", "")
    # Anything else could forge lines in a log. It is set here, since others pass on copies of the scope.
    if _HARMLESS.fullmatch(client_id):
        scope.setdefault(_SCOPE_KEY, client_id)
    id = request_id(scope)

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-ID"] = id
        await send(message)

    await app(scope, receive, send_with_headers)

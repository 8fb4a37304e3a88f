"""X-Request-ID: taken from the client where it is harmless, else made here; echoed on every answer."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HARMLESS = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_SCOPE_KEY = "ncclt.request_id"


def request_id(scope: Scope) -> str:
    """Return the id of the request; a fresh one if the middleware has not seen it."""
    found = scope.setdefault(_SCOPE_KEY, uuid.uuid4().hex)
    assert isinstance(found, str)
    return found


class RequestIdMiddleware:
    """Give each request an id and echo it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        # Anything else could forge lines in a log.
        if _HARMLESS.fullmatch(given):
            scope[_SCOPE_KEY] = given

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id(scope)
            await send(message)

        await self.app(scope, receive, send_with_id)

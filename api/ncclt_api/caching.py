"""Conditional answers: a strong ETag of the body, and 304 where the client has it already."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response

CACHE_CONTROL = "max-age=60, stale-if-error=604800"
"""A minute fresh; for a week usable when the service is down: an outage of the tuner must not stop training."""


def etag_of(body: str) -> str:
    """Return the strong entity tag of a body, quoted (RFC 9110, section 8.8.3)."""
    return f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Tell whether the client's If-None-Match names this tag; the comparison is the weak one (RFC 9110, 13.1.2)."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


def conditional_response(request: Request, body: str, *, media_type: str, headers: dict[str, str]) -> Response:
    """Return the body with its tag, or 304 without it."""
    etag = etag_of(body)
    headers = {**headers, "ETag": etag, "Cache-Control": CACHE_CONTROL}
    if is_known(etag, request.headers.get("if-none-match")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)

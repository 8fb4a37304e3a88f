"""One file per resource; every route is a plain function that FastAPI runs in a thread."""

from __future__ import annotations

from typing import Any

from ncclt_api.json_models import ProblemDocument

_PROBLEM: dict[str, Any] = {
    "model": ProblemDocument,
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON"} | _PROBLEM,
    401: {"description": "no key, or one that is unknown, expired or revoked"} | _PROBLEM,
    403: {"description": "the key lacks the role"} | _PROBLEM,
    404: {"description": "unknown name, or no matching publication"} | _PROBLEM,
    422: {"description": "the request is invalid"} | _PROBLEM,
    429: {"description": "too many requests: the proxy in front of the service limits them"} | _PROBLEM,
    503: {"description": "the store cannot be reached"} | _PROBLEM,
}
"""The errors that any route of the API can answer with, for its OpenAPI description."""

"""Errors as the client sees them: RFC 9457 problem documents, or a page where a browser asks for one.

A problem has `type`, `title`, `status`, `detail`, `instance` (RFC 9457, section 3.1) and, as extension members,
`hint` (what to do about it; may have several lines), `request_id`, for a refused request `errors` and, where nothing
fits a job, `available`. A traceback never leaves the process.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Match

from ncclt.errors import (
    ConflictError,
    DuplicateError,
    InputError,
    NccltError,
    NoRecommendationError,
    NotFoundError,
    StaleRecommendationError,
    StoreError,
    UsageError,
    translate_refusal,
)
from ncclt_api.json_models import FieldProblem
from ncclt_api.middleware import request_id
from ncclt_api.pages.environment import render_page
from ncclt_api.telemetry import note
from ncclt_api.text import readable

PROBLEM_TYPE = "application/problem+json"

_FOR_PROGRAMS = re.compile(r"/(v\d+|api|healthz|readyz|assets)(/|$)")
"""Paths that no page is at."""

_FORM = "application/x-www-form-urlencoded"

_TABLES = tomllib.loads(Path(__file__).with_name("requests.toml").read_text("utf-8"))
_REQUESTS: list[tuple[str, str]] = _TABLES["requests"]
"""Patterns of commands in messages, with the equivalent requests."""


class ForbiddenError(NccltError):
    """A request that its key or its session does not permit."""


_STATUS_BY_CLASS: tuple[tuple[type[NccltError], int], ...] = (
    (DuplicateError, 409),
    (UsageError, 422),
    (StaleRecommendationError, 410),
    (NotFoundError, 404),
    (ConflictError, 409),
    (ForbiddenError, 403),
    (InputError, 422),
    (StoreError, 503),
)
"""HTTP status of each base class of errors; any other error is a bug: 500."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error, before it is written as JSON or HTML.

    Attributes:
        status: HTTP status.
        detail: one sentence for the user.
        hint: what to do about it; may be empty.
        type: a URI that names the kind; `about:blank` = the status says it all (RFC 9457, section 4.2.1).
        errors: the fields at fault, for a refused request.
        available: shapes of jobs that something was published for, newest first.
    """

    status: int
    detail: str
    hint: str = ""
    type: str = "about:blank"
    errors: tuple[FieldProblem, ...] = ()
    available: tuple[dict[str, Any], ...] = ()

    @property
    def title(self) -> str:
        """Return the phrase that belongs to the status."""
        return HTTPStatus(self.status).phrase


def problem_of(error: NccltError) -> Problem:
    """Return one of our own errors as a problem."""
    status = next((status for kind, status in _STATUS_BY_CLASS if isinstance(error, kind)), 500)
    kind = "-".join(re.findall("[A-Z][a-z]+", type(error).__name__.removesuffix("Error"))).lower()
    available = error.available if isinstance(error, NoRecommendationError) else ()
    if available:  # something was published, and not for this job
        status = 409
    return Problem(
        status=status, detail=error.message, hint=error.hint, type=f"urn:ncclt:problem:{kind}", available=available
    )


def problem_response(problem: Problem, request: Request, headers: dict[str, str] | None = None) -> Response:
    """Write a problem as JSON, or as a page where a browser asks for one outside the API."""
    if problem.status >= 500:
        note(request.scope, cause=problem.detail)
    headers = {"Cache-Control": "no-store", "X-Request-ID": request_id(request.scope), **(headers or {})}
    if wants_page(request):
        page = render_page("error.html", problem=problem, request_id=request_id(request.scope))
        return HTMLResponse(page, status_code=problem.status, headers=headers)
    document = problem_document(problem, request)
    return JSONResponse(readable(document), status_code=problem.status, headers=headers, media_type=PROBLEM_TYPE)


def problem_document(problem: Problem, request: Request) -> dict[str, Any]:
    """Return a problem for a program, with requests in place of commands."""
    document: dict[str, Any] = {
        "type": problem.type,
        "title": problem.title,
        "status": problem.status,
        "detail": _name_requests(problem.detail),
        "instance": request.url.path,
        "hint": _name_requests(problem.hint),
        "request_id": request_id(request.scope),
    }
    if problem.errors:
        document["errors"] = [error.model_dump() for error in problem.errors]
    if problem.available:
        document["available"] = problem.available
    return document


def _name_requests(text: str) -> str:
    """Return a text with requests in place of the commands that have one."""
    for pattern, words in _REQUESTS:
        text = re.sub(pattern, partial(_replace_command, words=words), text)
    return text


def _replace_command(match: re.Match[str], *, words: str) -> str:
    request = match.expand(words)
    return request.replace("{job}", _write_job(match[1])) if "{job}" in request else request


def _write_job(options: str) -> str:
    """Return the options of `ncclt tune` as the body of a request for a tuning job."""
    words = iter(shlex.split(options))
    body = {option[2:].replace("-", "_"): next(words, "") for option in words}
    return json.dumps({name: int(value) if value.isdecimal() else value for name, value in body.items()})


def wants_page(request: Request) -> bool:
    """Tell a browser from a program.

    Programs send `*/*` or nothing; only browsers ask for text/html, to read and with forms. What an API could be
    answers with JSON always: a mistyped version or prefix must not give a program a page.
    """
    is_form = request.method == "POST" and request.headers.get("content-type", "").startswith(_FORM)
    asked = "text/html" in request.headers.get("accept", "") and (request.method in ("GET", "HEAD") or is_form)
    return asked and not _FOR_PROGRAMS.match(request.url.path)


def add_problem_handlers(app: FastAPI) -> None:
    """Turn every error of the application into a problem: ours, the framework's and unexpected ones."""
    app.add_exception_handler(NccltError, _ours)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(Exception, _unforeseen)


def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, NccltError)
    return problem_response(problem_of(error), request)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        person = "find a study, cluster or workload by a part of its name above, or start at the map"
        hint = person if wants_page(request) else "GET /v1/openapi.json lists the routes"
        problem = Problem(status=404, detail=f"there is nothing at {path}", hint=hint)
    elif error.status_code == 405:
        allowed = ", ".join(_allowed(request))
        hint = f"use {allowed}; GET /v1/openapi.json lists what can be written"
        problem = Problem(status=405, detail=f"{request.method} is not possible at {path}", hint=hint)
        return problem_response(problem, request, {"Allow": allowed})
    elif error.status_code == 400:  # from the framework: the body is not text, or the form is broken
        hint = "send it with the Content-Type that GET /v1/openapi.json names, in UTF-8"
        problem = Problem(status=400, detail="the body cannot be read", hint=hint)
    else:
        problem = Problem(status=error.status_code, detail=str(error.detail))
    return problem_response(problem, request, dict(error.headers or {}))


def _allowed(request: Request) -> list[str]:
    """Return the methods of a path; the framework names those of its first route alone."""
    routes: list[APIRoute] = request.app.state.routes
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    # /v1/jobs/stale is not the job `stale`: a route without parameters comes first.
    exact = [route for route in matching if route.path == request.url.path]
    methods = {method for route in exact or matching for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    rows, errors, sentences = error.errors(), [], []
    for row in rows:
        # Where JSON breaks off, the framework has its position in the place of a field.
        where = ".".join(map(str, row["loc"][:1] if row["type"] == "json_invalid" else row["loc"]))
        message = translate_refusal(str(row["msg"]))
        errors.append(FieldProblem(where=where, message=message))
        is_ours = row["type"] == "value_error"  # a sentence
        sentences.append(f"{where}: {message}" if "." in where else message if is_ours else f"the {where} {message}")
    problem = Problem(
        status=400 if any(row["type"] == "json_invalid" for row in rows) else 422,
        detail="; ".join(sentences),
        hint="go back, or start at the map"
        if wants_page(request)
        else "GET /v1/openapi.json names every parameter with its values",
        type="urn:ncclt:problem:usage",
        errors=tuple(errors),
    )
    return problem_response(problem, request)


def _unforeseen(request: Request, _error: Exception) -> Response:
    # The server logs the traceback after this answer; the client gets the id to search the log for.
    hint = f"look for request {request_id(request.scope)} in the log of the service and report it"
    return problem_response(Problem(status=500, detail="the service failed", hint=hint), request)

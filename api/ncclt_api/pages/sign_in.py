"""Sign-in and sign-out of browsers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Form, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ncclt.core.api_key import Role, hash_secret
from ncclt_api.access import PUBLIC, needs
from ncclt_api.dependencies import StrictQuery, WholeStore
from ncclt_api.pages.environment import render_page
from ncclt_api.pages.response import page_router
from ncclt_api.sign_in import COOKIE, SESSION_S, OwnForm, visitor

router = page_router()

_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
"""Allowed targets after the sign-in: `//host` and `/\\host` would be another host."""


class SignInQuery(StrictQuery):
    """Next page of the browser."""

    next: str = Field("", max_length=2000)


@router.get("/sign-in", dependencies=PUBLIC)
def show_sign_in(query: Annotated[SignInQuery, Query()], store: WholeStore, request: Request) -> Response:
    """Ask for a key; without keys there is nothing to sign in to."""
    if not store.keys.find() and not request.app.state.has_users:
        return RedirectResponse("/", 303)
    return _write_page(request, next=query.next)


@router.post("/sign-in", dependencies=[*PUBLIC, OwnForm])
def sign_in(
    key: Annotated[str, Form(max_length=200)],
    store: WholeStore,
    request: Request,
    next: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Exchange a key for a cookie."""
    stored = store.keys.find().get(hash_secret(key.strip()))
    why = "Unknown key." if stored is None else stored.invalid(datetime.now(UTC).isoformat())
    if stored is None or why:
        return _write_page(request, next=next, why=why, status=401)
    response = RedirectResponse(next if _OWN_PATH.fullmatch(next) else "/", 303)
    secure = request.url.scheme == "https" or request.app.state.public_url.startswith("https:")
    request.app.state.sessions.begin(response, stored, secure=secure)
    return response


@router.post("/sign-out", dependencies=[*needs(Role.ENV), OwnForm])
def sign_out() -> Response:
    """Forget the cookie."""
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _write_page(request: Request, *, next: str, why: str = "", status: int = 200) -> Response:
    page = render_page("sign_in.html", next=next, why=why, hours=SESSION_S // 3600, visitor=visitor(request))
    return HTMLResponse(page, status, {"Cache-Control": "no-store"})

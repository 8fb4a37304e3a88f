"""Sign-in of browsers: a key is exchanged for a signed cookie that names it, and every form that writes has a token.

Neither cookie nor token holds the key. It is read again at each request, so a revoked or expired one ends the session.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Form, Request
from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

from ncclt.core.api_key import ApiKey, Role
from ncclt.errors import UsageError
from ncclt_api.problems import ForbiddenError

COOKIE = "ncclt_session"

SESSION_S = 12 * 3600
"""A working day: then the browser needs the key again."""

LEAST_SECRET = 32
"""Characters of a secret that replicas share."""

_SESSION, _KEY = "ncclt.session", "ncclt.key"
_MOST_TOKEN = 500


class Sessions:
    """Signs cookies and tokens of forms, and checks them.

    Args:
        secret: to sign with, the same in all replicas; empty = a new one, so that sessions end with the process.

    Raises:
        UsageError: it is too short.
    """

    def __init__(self, secret: str = "") -> None:
        if secret and len(secret) < LEAST_SECRET:
            raise UsageError(
                f"NCCLT_SESSION_SECRET needs at least {LEAST_SECRET} characters",
                hint="python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
            )
        self.secret = used = secret or secrets.token_urlsafe(LEAST_SECRET)
        digest = {"digest_method": hashlib.sha256}
        self._cookies = URLSafeTimedSerializer(used, salt="ncclt session", signer_kwargs=digest)
        self._forms = URLSafeTimedSerializer(used, salt="ncclt form", signer_kwargs=digest)

    def begin(self, response: Response, key: ApiKey, *, secure: bool) -> None:
        """Give a browser its cookie.

        Args:
            secure: the browser came by HTTPS and has to.
        """
        value = self._cookies.dumps([key.id, secrets.token_urlsafe(16)])
        response.set_cookie(COOKIE, str(value), max_age=SESSION_S, httponly=True, samesite="strict", secure=secure)

    def read(self, header: str) -> tuple[str, str] | None:
        """Return the session of a Cookie header; None = none, not ours, or too old.

        Returns:
            The id of the key, which is no secret, and the random text behind the tokens of its forms.
        """
        value = cookie_parser(header).get(COOKIE, "")
        try:
            key, mark = self._cookies.loads(value[:_MOST_TOKEN], max_age=SESSION_S)
        except BadSignature:
            return None
        return key, mark

    def form_token(self, mark: str) -> str:
        """Return the token of the forms of a session; without keys all have the empty mark."""
        return str(self._forms.dumps(mark))

    def is_token_of(self, mark: str, token: str) -> bool:
        """Check that a token is of this session, and not too old."""
        try:
            signed_mark = self._forms.loads(token, max_age=SESSION_S)
        except BadSignature:
            return False
        return hmac.compare_digest(str(signed_mark).encode(), mark.encode())


def remember(scope: Scope, mark: str) -> None:
    """Store the mark of a session in the scope of its request."""
    scope[_SESSION] = mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Visitor of a page.

    Attributes:
        key: of the request; None = the store has no keys.
        signed_in: by a cookie, so that signing out is possible.
        token: for the forms of the page.
    """

    key: ApiKey | None
    signed_in: bool
    token: str

    def may(self, role: str) -> bool:
        """Check the role of the visitor, so that pages hide forms that would be refused."""
        return self.key is None or self.key.role.includes(Role(role))

    @property
    def sees_all(self) -> bool:
        """Check that the visitor may see all clusters."""
        return self.key is None or not self.key.clusters


def visitor(request: Request) -> Visitor:
    """Return the visitor that makes a request."""
    mark: str | None = request.scope.get(_SESSION)
    token = request.app.state.sessions.form_token(mark or "")
    # A cookie names its key; a user of a proxy signs out there.
    key: ApiKey | None = request.scope.get(_KEY)
    signed_in = mark is not None and (key is None or not key.is_user)
    return Visitor(key=key, signed_in=signed_in, token=token)


def _require_token(request: Request, token: Annotated[str, Form(max_length=_MOST_TOKEN)]) -> None:
    if not request.app.state.sessions.is_token_of(request.scope.get(_SESSION, ""), token):
        hint = "reload the page and submit the form again"
        raise ForbiddenError("this form is not from a page of your session", hint=hint)


OwnForm = Depends(_require_token)
"""Dependency of every route that a form posts to: a page of another host cannot know the token."""

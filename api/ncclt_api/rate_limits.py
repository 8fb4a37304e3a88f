"""Limits to how often one client may write, ask for large answers, or try keys, counted in each process by itself.

Environments of jobs have none: ten thousand ranks behind one address ask for theirs in the same second.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
import time
from dataclasses import dataclass

from fastapi import Request
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt_api.large_answers import LARGE
from ncclt_api.problems import Problem, problem_response

_SET_BACK_S = 1.0
"""Less is how a clock is kept right."""

_READING = ("GET", "HEAD", "OPTIONS")
_REPORTS = re.compile(r"/v1/attestations|/v1/step-times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one key, or one address without a key, may ask for in any 60 seconds.

    Attributes:
        reports: of jobs: attestations and step times; all jobs of a cluster may share a key.
        writes: everything else that changes something.
        large: answers that grow with the number of trials.
        wrong_keys: that one address may try. Requests from there with a right one are still answered.
    """

    reports: int = 6000
    writes: int = 120
    large: int = 1200
    wrong_keys: int = 60


class RateLimitMiddleware:
    """Refuse with 429 and Retry-After what is beyond the limits."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self.app = app
        self._counts = MemoryStorage()
        self._window = MovingWindowRateLimiter(self._counts)
        self._clock_ahead_s = time.time() - time.monotonic()
        self._reports, self._writes, self._large, self._wrong_keys = (
            RateLimitItemPerMinute(most, namespace=name)
            for name, most in (
                ("reports", limits.reports),
                ("writes", limits.writes),
                ("large answers", limits.large),
                ("wrong keys", limits.wrong_keys),
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._notice_clock()
        limit = self._limit_of(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        if limit is not None and not self._window.hit(limit, _client_of(scope)):
            await self._refuse(limit, _client_of(scope), scope, receive, send)
            return
        is_refused = False

        async def send_or_refuse(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] == 401:
                is_refused = not self._window.hit(self._wrong_keys, _address_of(scope))
                if is_refused:
                    await self._refuse(self._wrong_keys, _address_of(scope), scope, receive, send)
            if not is_refused:
                await send(message)

        await self.app(scope, receive, send_or_refuse)

    def _notice_clock(self) -> None:
        """Begin to count at 0 once the machine's clock was set back: nothing counted would expire until it is there."""
        ahead_s, before_s = time.time() - time.monotonic(), self._clock_ahead_s
        self._clock_ahead_s = ahead_s
        if ahead_s < before_s - _SET_BACK_S:
            self._counts.reset()

    def _limit_of(self, method: str, path: str) -> RateLimitItem | None:
        if method not in _READING:
            return self._reports if _REPORTS.fullmatch(path) else self._writes
        return self._large if LARGE.fullmatch(path) else None

    async def _refuse(self, limit: RateLimitItem, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        wait_s = max(1, math.ceil(self._window.get_window_stats(limit, client).reset_time - time.time()))
        problem = Problem(
            status=429,
            detail=f"more than {limit.amount} {limit.namespace} a minute",
            hint=f"try again in {wait_s} seconds",
            type="urn:ncclt:problem:too-many-requests",
        )
        await problem_response(problem, Request(scope), {"Retry-After": str(wait_s)})(scope, receive, send)


def _client_of(scope: Scope) -> str:
    """Return what a client is counted by: its key, whether or not it is a right one, else its address."""
    # The hash of the key, since this stays in memory.
    said = Headers(scope=scope).get("authorization")
    return hashlib.sha256(said.encode()).hexdigest() if said else _address_of(scope)


def _address_of(scope: Scope) -> str:
    """Return the address of a client; of IPv6 its network of 64 bits, as each host may take any address in it."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a Unix socket
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else host

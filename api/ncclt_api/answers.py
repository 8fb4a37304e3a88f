"""Answers to jobs, kept until something they depend on changes: thousands of ranks ask in the same second."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt.errors import StoreError
from ncclt.store.store import Store
from ncclt_api.telemetry import note

FRESH_S = 0.5
"""How long a change that another process made may stay unnoticed."""

LAST_GOOD_S = 24 * 3600.0
"""How long after the last look into the database an answer is still served while it is away. Clients keep theirs for
30 days."""

_LOOK_S = 0.5
"""How long an answer waits for the look into the database before it counts as away."""

MOST_WAIT_S = 60
"""Longest time that a request is held for news."""

_MOST_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 1024
"""Of an entry beside its body, about."""

_ENV = re.compile(rb"/v1/clusters/([^/]+)/env")
_Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A good answer: its pair (cluster, workload), and what is sent."""

    pair: tuple[str, str]
    headers: _Headers
    etag: str
    body: bytes


def is_known(etag: str, if_none_match: str | None) -> bool:
    """Return whether the client's If-None-Match names this tag; the comparison is the weak one (RFC 9110, 13.1.2)."""
    if if_none_match is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags


class AnswersMiddleware:
    """Give each request for a job's environment the kept answer, or let one request make it for all that wait.

    An answer is dropped when the store notes a change of its pair. It is never older than `FRESH_S`, except while the
    database is away: then the last good answers are served with their age.
    """

    def __init__(
        self, app: ASGIApp, *, store: Callable[[], Store], fresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app = app
        self._store = store
        self._fresh_s = fresh_s
        self._clock = clock
        self._kept: dict[tuple[bytes, bytes, str], _Answer] = {}
        self._kept_bytes = 0
        self._making: dict[tuple[bytes, bytes, str], asyncio.Future[_Answer | None]] = {}
        self._number = 0
        self._changed: dict[tuple[str, str], int] = {}
        self._seen_s: float | None = None
        """When the database was last seen; None = never."""
        self._look: asyncio.Task[None] | None = None
        self._looking_since_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from what is kept, or pass the request on."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        path = scope.get("raw_path") or scope["path"].encode()
        found = _ENV.fullmatch(path.partition(b"?")[0].removeprefix(scope.get("root_path", "").encode()))
        if found is None:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = (path, scope["query_string"], headers.get("accept", ""))
        await self._notice_changes()
        answer, age_s = self._kept.get(key), self._age_s()
        if answer is not None and age_s is not None:
            note(scope, kept=True)
            await _send(answer, send, headers.get("if-none-match"), age_s)
        elif key not in self._making:
            await self._make(key, found[1], scope, receive, send)
        elif (answer := await asyncio.shield(self._making[key])) is not None:
            await _send(answer, send, headers.get("if-none-match"), 0.0)
        else:  # it was an error: each request has its own, with its id
            await self.app(scope, receive, send)

    def _age_s(self) -> float | None:
        """Return how long ago the kept answers were known to be true, 0 for now; None = too long, or never."""
        if self._seen_s is None:
            return None
        age_s = self._clock() - self._seen_s
        if age_s <= self._fresh_s + _LOOK_S:
            return 0.0
        return age_s if age_s <= LAST_GOOD_S else None

    async def _notice_changes(self) -> None:
        """Look for changes where the last look is too old, but wait for it only so long."""
        now_s = self._clock()
        if self._look is None:
            if self._seen_s is not None and now_s - self._seen_s < self._fresh_s:
                return
            self._look, self._looking_since_s = asyncio.create_task(self._look_for_changes()), now_s
        left_s = _LOOK_S - (now_s - self._looking_since_s)
        if left_s > 0:
            await asyncio.wait({self._look}, timeout=left_s)

    async def _look_for_changes(self) -> None:
        began_s = self._clock()
        try:
            with contextlib.suppress(StoreError):  # away; the answer that is made next says so
                news = await run_in_threadpool(lambda: self._store().changes(self._number))
                self._number, self._seen_s = news.number, began_s
                self._changed.update(dict.fromkeys(news.pairs, news.number))
                if news.pairs:
                    for key in [key for key, answer in self._kept.items() if _touches(news.pairs, answer.pair)]:
                        self._drop(key)
        finally:
            self._look = None

    async def _make(
        self, key: tuple[bytes, bytes, str], cluster: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass the request on, and keep its answer if it is a good one."""
        self._making[key] = made = asyncio.get_running_loop().create_future()
        number, seen_s, start, body, answer = self._number, self._seen_s, None, bytearray(), None
        whole = [(name, value) for name, value in scope["headers"] if name != b"if-none-match"]

        async def collect(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                body.extend(message.get("body", b""))

        try:
            await self.app({**scope, "headers": whole}, receive, collect)
            assert start is not None, "an application answers or raises"
            if start["status"] == 200:
                answer = self._answer(key, cluster, start["headers"], bytes(body))
                changed = max(self._changed.get(pair, 0) for pair in (answer.pair, ("", answer.pair[1])))
                if seen_s is not None and changed <= number:
                    self._keep(key, answer)
        finally:
            del self._making[key]
            made.set_result(answer)
        if answer is not None:
            await _send(answer, send, Headers(scope=scope).get("if-none-match"), 0.0)
            return
        await send(start)
        await send({"type": "http.response.body", "body": bytes(body)})

    @staticmethod
    def _answer(key: tuple[bytes, bytes, str], cluster: bytes, headers: _Headers, body: bytes) -> _Answer:
        model = parse_qs(key[1].decode("latin-1")).get("model", [""])[-1]
        pair = (unquote(cluster.decode("latin-1")), model)
        return _Answer(pair=pair, headers=headers, etag=Headers(raw=headers)["etag"], body=body)

    def _keep(self, key: tuple[bytes, bytes, str], answer: _Answer) -> None:
        self._drop(key)
        self._kept[key] = answer
        self._kept_bytes += _size(answer)
        while self._kept_bytes > _MOST_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[bytes, bytes, str]) -> None:
        if (answer := self._kept.pop(key, None)) is not None:
            self._kept_bytes -= _size(answer)


class WaitMiddleware:
    """Hold a request with `wait=SECONDS` for a job's environment until its answer is another than the client has.

    The client names what it has by If-None-Match or `etag`. A refusal is answered at once, and after the wait a 304.
    """

    def __init__(self, app: ASGIApp, *, look_s: float = FRESH_S) -> None:
        self.app = app
        self._look_s = look_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask for the answer until it is news, the time is over, or the client has gone."""
        if scope["type"] != "http" or b"wait=" not in scope["query_string"]:
            await self.app(scope, receive, send)
            return
        asked = parse_qsl(scope["query_string"].decode("latin-1"), True)
        wait, etag = dict(asked).get("wait", ""), dict(asked).get("etag", "")
        # Any other `wait` is the route's, which refuses it.
        if not re.fullmatch("[0-9]{1,2}", wait) or int(wait) > MOST_WAIT_S or not scope["path"].endswith("/env"):
            await self.app(scope, receive, send)
            return
        rest = urlencode([(name, value) for name, value in asked if name not in ("wait", "etag")]).encode()
        headers = list(scope["headers"])
        if etag:
            headers = [(name, value) for name, value in headers if name != b"if-none-match"]
            headers.append((b"if-none-match", f'"{etag.strip(chr(34))}"'.encode("latin-1")))
        until_s = time.monotonic() + int(wait)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            while not gone.done():
                messages: list[Message] = []

                async def collect(message: Message, messages: list[Message] = messages) -> None:
                    messages.append(message)

                await self.app({**scope, "query_string": rest, "headers": headers}, _nothing, collect)
                left_s = until_s - time.monotonic()
                if messages[0]["status"] != 304 or left_s <= 0:
                    for message in messages:
                        await send(message)
                    return
                await asyncio.wait({gone}, timeout=min(left_s, self._look_s))
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _size(answer: _Answer) -> int:
    return len(answer.body) + _ENTRY_BYTES


def _touches(pairs: frozenset[tuple[str, str]], pair: tuple[str, str]) -> bool:
    return pair in pairs or ("", pair[1]) in pairs


async def _send(answer: _Answer, send: Send, if_none_match: str | None, age_s: float) -> None:
    headers, body, status = answer.headers, answer.body, 200
    if age_s:
        headers = [*headers, (b"age", b"%d" % age_s), (b"warning", b'110 ncclt "Response is Stale"')]
    if is_known(answer.etag, if_none_match):
        status, body = 304, b""
        headers = [(name, value) for name, value in headers if name not in (b"content-length", b"content-type")]
    # The list is the answer's own: a middleware around this one adds its headers to a copy.
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})

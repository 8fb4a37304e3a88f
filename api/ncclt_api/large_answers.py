"""A separate process for large answers, so that jobs do not wait for them.

A thread does not help: while it builds a page, each step of the event loop waits for the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt_api.middleware import for_requests, local_path
from ncclt_api.problems import Problem, problem_response

LARGE = re.compile(r"/studies/[^/]+|/v1/studies/[^/]+(/(trials|evidence))?")
"""Paths whose answers grow with the number of trials."""

_MOST_WAITING = 32
"""Requests for large answers that may wait; more are refused with 503, and come again."""

_RETRY_S = 2

_PASSED_ON = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path"),
    *("headers", "client", "server", "ncclt.request_id", "ncclt.key", "ncclt.session"),
)
"""Entries of a request's scope that another process gets."""

_Answer = list[Message]


class LargeAnswers:
    """A process with the same application, started by the first request for a large answer."""

    def __init__(self, make: Callable[..., ASGIApp], *arguments: Any) -> None:
        """Prepare the process.

        Args:
            make: module-level function that makes the application there. Requests bring the key that was found.
            arguments: for `make`.
        """
        self._started = (make, *arguments)
        self._pool: ProcessPoolExecutor | None = None
        self.waiting = 0

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    async def made(self, scope: Scope) -> _Answer | None:
        """Return the answer to a request without a body; None = the process ended, or too many are waiting."""
        if self.waiting >= _MOST_WAITING:
            return None
        if self._pool is None:
            # A fork would share the connections of this process's store.
            spawned = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin, initargs=self._started)
        self.waiting += 1
        try:
            passed_on = {name: scope[name] for name in _PASSED_ON if name in scope}
            return await asyncio.get_running_loop().run_in_executor(self._pool, _answer, passed_on)
        except BrokenProcessPool:  # killed, for example for its memory; the next request starts another
            self._pool = None
            return None
        finally:
            self.waiting -= 1


@for_requests
async def delegate_large_answers(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, large: LargeAnswers
) -> None:
    """Have large answers made by their process; everything else is answered here."""
    if scope["method"] != "GET" or not LARGE.fullmatch(local_path(scope)):
        await app(scope, receive, send)
        return
    answer = await large.made(scope)
    if answer is None:
        problem = Problem(status=503, detail="too many large answers are being made", hint="try again")
        await problem_response(problem, Request(scope), {"Retry-After": str(_RETRY_S)})(scope, receive, send)
        return
    for message in answer:
        await send(message)


_here: dict[str, Any] = {}


def _begin(make: Callable[..., ASGIApp], *arguments: Any) -> None:
    """Make the application, once in this process."""
    threading.Thread(target=_end_with_server, daemon=True).start()
    _here.update(app=make(*arguments), runner=asyncio.Runner())


def _end_with_server() -> None:
    """End this process when its server has gone, even if the server was killed."""
    server = multiprocessing.parent_process()
    assert server is not None, "the pool starts this process"
    server.join()
    os._exit(1)


def _answer(scope: dict[str, Any]) -> _Answer:
    """Return the application's response to a request without a body."""
    sent: _Answer = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    _here["runner"].run(_here["app"]({**scope, "extensions": {}}, receive, send))
    return sent

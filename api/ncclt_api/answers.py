"""Answers to jobs, kept by shape until something they depend on changes: thousands of ranks ask in the same second.

Only a job that is drawn into an arm of a roll-out needs the database, once, so the service answers every other job
while that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote, unquote_plus

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt.core.recommendation import ORIGIN_WORDS, Decision, Recommendation
from ncclt.core.rollout import MOST_JOB_NAME, SAME_START_S, RolledOut
from ncclt.deliver.render.formats import TABLE_FORMATS
from ncclt.deliver.variant import ServedRevision, choose_variant
from ncclt.errors import NccltError, StoreError
from ncclt.store.store import Store
from ncclt_api.access import may_see
from ncclt_api.middleware import for_requests, is_known
from ncclt_api.telemetry import note
from ncclt_api.tickets import Tickets

FRESH_S = 0.5
"""Max time until the service notices a change by another process."""

LAST_GOOD_S = 24 * 3600.0
"""Max age of answers that the service gives while the database is away. Clients keep theirs for 30 days."""

_LOOK_S = 0.5
"""Max wait for the database, before it counts as away."""

_MOST_JOBS = 100_000
"""Jobs whose answers are remembered; of more in `SAME_START_S`, the first ones are forgotten."""

_MOST_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 16 * 1024
"""Of an entry beside its body, about: the revisions that it chooses from."""

_ENV = re.compile(rb"/v1/clusters/([^/]+)/env")
_Headers = list[tuple[bytes, bytes]]
_Key = tuple[bytes, bytes, str]
"""Path, query without the job, and `Accept`."""

CACHE_CONTROL = "max-age=60, stale-if-error=604800"
"""Fresh for a minute; usable for a week while the service is down: an outage of the tuner must not stop training."""

MADE = "ncclt.answers"
"""Key of a request's scope: a list that the route puts the answers of the shape into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReply:
    """Reply to all jobs of one shape that get the same, without the fields of a single job.

    Attributes:
        headers, etag, body: the same for all of them.
        own: returns the fields of a job alone, which a body in `json` ends with.
    """

    headers: _Headers
    etag: str
    body: bytes
    own: Callable[[str], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAnswers:
    """Answers to the jobs of one shape in one format; after the first one, a job costs no query.

    During a roll-out, the name of a job decides its answer.

    Attributes:
        pair: cluster and workload; a change of it makes the answers out of date.
        chosen: the recommendation that fits the jobs.
        rollouts: open roll-outs of the pair.
        delivery: the rules of the cluster allow delivery.
        write: renders a recommendation, given the served revision as a document.
        format, media_type: of the rendered text.
        tickets: issue the tickets of jobs.
    """

    pair: tuple[str, str]
    chosen: Recommendation
    rollouts: tuple[RolledOut, ...]
    delivery: bool
    write: Callable[..., str]
    format: str
    media_type: str
    tickets: Tickets
    _replies: dict[tuple[object, ...], KeptReply] = field(default_factory=dict)

    def reply(self, job: str, *, is_store_away: bool = False) -> KeptReply:
        """Return the reply to a job; while the store is away a job has no part in an arm.

        Raises:
            NccltError: nothing can be given in this format.
        """
        if not self.rollouts and self._replies:  # the same for every job
            return next(iter(self._replies.values()))
        answer = self.give(job, is_store_away=is_store_away)
        key = (answer.recommendation.id, answer.variant, answer.reason, answer.rollout, answer.running)
        if key not in self._replies:
            self._replies[key] = self._reply(answer)
        return self._replies[key]

    def give(self, job: str, *, is_store_away: bool = False) -> ServedRevision:
        """Return the revision for a job, not yet rendered."""
        claim = partial(self.tickets.claim, has_ticket=self.format == "json", is_store_away=is_store_away)
        return choose_variant(self.chosen, self.rollouts, job, delivery=self.delivery, claim=claim)

    def needs_store(self, job: str) -> bool:
        """Return True if only the store can say what a job gets."""
        return any(self.tickets.needs_store(rollout, job) for rollout, _ in self.rollouts)

    def _reply(self, answer: ServedRevision) -> KeptReply:
        chosen = answer.recommendation
        body = self.write(chosen, said=answer.to_document())
        etag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
        form = chosen.table if self.format in TABLE_FORMATS else chosen.variables
        headers = {
            "Content-Type": self.media_type + ("; charset=utf-8" if self.media_type.startswith("text/") else ""),
            "ETag": etag,
            "Vary": "Accept",
            # What one job gets in a roll-out is for no other one, and never for an outage.
            "Cache-Control": "no-store" if answer.rollout else CACHE_CONTROL,
            "X-Ncclt-Variant": answer.variant.value,
            "X-Ncclt-Reason": answer.reason.value,
            "X-Ncclt-Recommendation": chosen.id,
            **{f"X-Ncclt-{o.title()}": "true" if chosen.origin is o else "false" for o in reversed(ORIGIN_WORDS)},
            "X-Ncclt-Decision": (form.verdict.decision if form else Decision.KEEP_DEFAULT).value,
        }
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        own = partial(self.tickets.issue, answer) if self.format == "json" else None
        return KeptReply(headers=raw, etag=etag, body=body.encode(), own=own)


def finish_answer(reply: KeptReply, job: str) -> bytes:
    """Return the body for one job: what is kept for its shape, with the fields that are for it alone."""
    own = reply.own(job) if reply.own else {}
    if not own:
        return reply.body
    return reply.body.rstrip().removesuffix(b"}").rstrip() + f",\n{json.dumps(own, indent=2)[2:]}\n".encode()


def split_job(query: bytes) -> tuple[bytes, str] | None:
    """Return a query without the job, and the job's name, empty where none is given; None = only the route can tell.

    A decision that the store keeps for a job is never answered from memory.
    """
    if b"job=" not in query and b"kept=" not in query and b"%" not in query:
        return query, ""
    shape, job = [], ""
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == b"job":
            job = unquote_plus(value.decode("latin-1"))
        elif b"%" in name or b"+" in name or name == b"kept":
            return None
        else:
            shape.append(part)
    return (b"&".join(shape), job) if len(job) <= MOST_JOB_NAME else None


class Answers:
    """Cache of answers to jobs, by shape, and the latest reply to each job.

    An answer is dropped when the store notes a change of its pair. It is never older than `fresh_s`, except while the
    database is away: then the last good answers are served with their age.
    """

    def __init__(
        self, store: Callable[[], Store], *, fresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._fresh_s = fresh_s
        self._clock = clock
        self._kept: dict[_Key, tuple[ShapeAnswers, int]] = {}
        self._kept_bytes = 0
        self._given: OrderedDict[tuple[_Key, str], tuple[KeptReply, float]] = OrderedDict()  # the newest are last
        self.number = 0
        """Number of the last observed change."""
        self.making: dict[_Key, asyncio.Future[bool]] = {}
        """Shapes with a request that is computing their answers."""
        self._changed: dict[tuple[str, str], int] = {}
        self._seen_s: float | None = None
        """Time of the last successful look; None = never."""
        self._look: asyncio.Task[None] | None = None
        self._looked_s = float("-inf")
        """Start of the last look."""

    def age_s(self) -> float | None:
        """Return the age of the kept answers, 0 while the database is seen; None = too old, or never seen."""
        if self._seen_s is None:
            return None
        age_s = self._clock() - self._seen_s
        if age_s <= self._fresh_s + _LOOK_S:
            return 0.0
        return age_s if age_s <= LAST_GOOD_S else None

    def are_usable(self) -> bool:
        """Check that answers can be given without the database."""
        return bool(self._kept) and self.age_s() is not None

    def find(self, key: _Key, job: str) -> KeptReply | None:
        """Return the earlier reply to a job, or the one of its shape; None = neither, or the store must decide."""
        if (before := self._given_before(key, job)) is not None:
            return before
        if (entry := self._kept.get(key)) is None or (age_s := self.age_s()) is None:
            return None
        if age_s == 0 and entry[0].needs_store(job):
            return None
        with contextlib.suppress(NccltError):  # the route says so, if it is still true
            return self._give(key, job, entry[0], is_store_away=age_s > 0)
        return None

    def keep(self, key: _Key, job: str, answers: ShapeAnswers, *, number: int) -> KeptReply:
        """Keep the answers of a shape that were made after a number of changes; return that of a job."""
        reply = self._given_before(key, job) or self._give(key, job, answers)
        changed = max(self._changed.get(pair, 0) for pair in (answers.pair, ("", answers.pair[1])))
        if self._seen_s is not None and changed <= number:
            self._drop(key)
            size = len(reply.body) + _ENTRY_BYTES
            self._kept[key] = (answers, size)
            self._kept_bytes += size
            while self._kept_bytes > _MOST_BYTES:
                self._drop(next(iter(self._kept)))
        return reply

    def _given_before(self, key: _Key, job: str) -> KeptReply | None:
        reply, given_s = self._given.get((key, job), (None, 0.0))
        return reply if self._clock() - given_s < SAME_START_S else None

    def _give(self, key: _Key, job: str, answers: ShapeAnswers, *, is_store_away: bool = False) -> KeptReply:
        reply = answers.reply(job, is_store_away=is_store_away)
        if job:
            now_s = self._clock()
            self._given[key, job] = (reply, now_s)
            self._given.move_to_end((key, job))
            while len(self._given) > _MOST_JOBS or now_s - next(iter(self._given.values()))[1] >= SAME_START_S:
                self._given.popitem(last=False)
        return reply

    def _drop(self, key: _Key) -> None:
        _, size = self._kept.pop(key, (None, 0))
        self._kept_bytes -= size

    async def notice_changes(self) -> None:
        """Look for changes where the last look is too old, but wait for it only so long."""
        now_s = self._clock()
        if self._look is None:
            # Also after one that failed: while the database is away, not every job waits for it to fail again.
            if now_s - self._looked_s < self._fresh_s:
                return
            self._look, self._looked_s = asyncio.create_task(self._look_for_changes()), now_s
        left_s = _LOOK_S - (now_s - self._looked_s)
        if left_s > 0:
            await asyncio.wait({self._look}, timeout=left_s)

    async def _look_for_changes(self) -> None:
        began_s = self._clock()
        try:
            with contextlib.suppress(StoreError):  # away; the answer that is made next says so
                number, pairs = await run_in_threadpool(lambda: self._store().recommendations.changes(self.number))
                self.number, self._seen_s = number, began_s
                self._changed.update(dict.fromkeys(pairs, number))
                if pairs:
                    for key, (answers, _) in tuple(self._kept.items()):
                        if answers.pair in pairs or ("", answers.pair[1]) in pairs:
                            self._drop(key)
        finally:
            self._look = None


@for_requests
async def give_answers(app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, answers: Answers) -> None:
    """Give each request for a job's environment the kept answer, or let one request make those of its shape.

    The route leaves the answers of the shape in the scope, under `MADE`.
    """
    path = scope.get("raw_path") or scope["path"].encode()
    match = _ENV.fullmatch(path.partition(b"?")[0].removeprefix(scope.get("root_path", "").encode()))
    is_get = scope["method"] == "GET"
    # A key of other clusters gets the answer of the route.
    is_seen = is_get and match is not None and may_see(scope, unquote(match[1].decode("latin-1")))
    if not is_seen or (asked := split_job(scope["query_string"])) is None:
        await app(scope, receive, send)
        return
    headers = Headers(scope=scope)
    key, job, if_none_match = (path, asked[0], headers.get("accept", "")), asked[1], headers.get("if-none-match")
    await answers.notice_changes()
    if (reply := answers.find(key, job)) is not None:
        note(scope, kept=True)
        await _send(reply, job, send, if_none_match, answers.age_s() or 0.0)
        return
    if key not in answers.making:
        await _make(answers, key, job, app, scope, receive, send)
        return
    await asyncio.shield(answers.making[key])
    if (reply := answers.find(key, job)) is not None:
        await _send(reply, job, send, if_none_match, 0.0)
    else:  # it was an error: each request has its own, with its id
        await app(scope, receive, send)


async def _make(
    answers: Answers, key: _Key, job: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Forward a request, cache the answers of its shape, and send the answer of the job."""
    answers.making[key] = done = asyncio.get_running_loop().create_future()
    made: list[ShapeAnswers] = []
    number, start, body = answers.number, None, bytearray()
    unconditional = [(name, value) for name, value in scope["headers"] if name != b"if-none-match"]

    async def collect(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        else:
            body.extend(message.get("body", b""))

    reply: KeptReply | None = None
    try:
        await app({**scope, "headers": unconditional, MADE: made}, receive, collect)
        assert start is not None, "an application answers or raises"
        if start["status"] == 200:
            reply = answers.keep(key, job, made[0], number=number)
    finally:
        del answers.making[key]
        done.set_result(reply is not None)
    if reply is not None:
        await _send(reply, job, send, Headers(scope=scope).get("if-none-match"), 0.0)
        return
    await send(start)
    await send({"type": "http.response.body", "body": bytes(body)})


async def _send(reply: KeptReply, job: str, send: Send, if_none_match: str | None, age_s: float) -> None:
    # The list is the answer's own: a middleware around this one adds its headers to a copy.
    headers, body, status = [*reply.headers], b"", 304
    if age_s:
        headers += [(b"age", b"%d" % age_s), (b"warning", b'110 ncclt "Response is Stale"')]
    # A job with a field of its own always gets its whole answer: what the client kept may be of an earlier start.
    if is_known(reply.etag, if_none_match) and not (job and reply.own):
        headers = [(name, value) for name, value in headers if name != b"content-type"]
    else:
        body, status = finish_answer(reply, job), 200
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

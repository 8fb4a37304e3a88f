"""Answers to jobs are made once, dropped when they change, and served while the database is away."""

import asyncio
import functools
import threading
from dataclasses import replace
from urllib.parse import parse_qs

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role
from ncclt.core.rollout import SAME_START_S, draw
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt_api import answers
from ncclt_api.answers import LAST_GOOD_S, MADE, Answers, KeptReply, give_answers, split_job
from ncclt_api.app import create_app

ENV = "/v1/clusters/leonardo/env"
PATIENT_S = 60.0
JOB = {"nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "simulated": "allow"}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A look into the database that takes a second on a busy machine is no database that is away."""
    monkeypatch.setattr(answers, "_LOOK_S", PATIENT_S)


class Shape:
    """Answers of one shape: each job gets one of `variants`."""

    def __init__(self, pair, number, variants):
        self.pair, self.number, self.variants, self.asked = pair, number, variants, 0

    def needs_store(self, job):
        return False

    def reply(self, job, *, is_store_away=False):
        self.asked += 1
        body = b"answer %d" % self.number
        if self.variants > 1:
            body += b", variant %d" % (int(draw("seed", job) * self.variants))
        return KeptReply(headers=[(b"etag", b'"%d"' % self.number)], etag=f'"{self.number}"', body=body)


class Application:
    """Counts the answers that it makes; one may be held back."""

    def __init__(self, status=200, variants=1):
        self.made = 0
        self.status = status
        self.held = None
        self.variants = variants

    async def __call__(self, scope, receive, send):
        self.made += 1
        number = self.made
        if self.held:
            await self.held.wait()
        model = parse_qs(scope["query_string"].decode())["model"][0]
        scope[MADE].append(Shape((scope["path"].split("/")[3], model), number, self.variants))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"answer %d" % number})


class Store:
    """Notes changes; may be away, hang, or be too old to note them."""

    def __init__(self):
        self.recommendations = self
        self.number, self.pairs, self.looks = 0, {}, 0
        self.away = self.old = False
        self.answering = threading.Event()
        self.answering.set()

    def change(self, cluster, model):
        self.number += 1
        self.pairs[cluster, model] = self.number

    def changes(self, since):
        self.looks += 1
        assert self.answering.wait(PATIENT_S)
        if self.away:
            raise StoreError("away")
        if self.old:
            return None
        return self.number, frozenset(p for p, number in self.pairs.items() if number > since)


class Service:
    """The middleware with a clock of its own; `get` sends one request."""

    def __init__(self, app=None, fresh_s=0.0, key=None):
        self.app, self.store, self.now_s, self.key = app or Application(), Store(), 100.0, key
        self.answers = Answers(lambda: self.store, fresh_s=fresh_s, clock=lambda: self.now_s)
        self.asks = give_answers(self.app, answers=self.answers)

    async def get(self, cluster="a", model="m", if_none_match=None, job=""):
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"if-none-match", if_none_match)] if if_none_match else []
        path = f"/v1/clusters/{cluster}/env"
        query = f"model={model}" + (f"&job={job}" if job else "")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "headers": headers,
            "query_string": query.encode(),
            "ncclt.key": self.key,
        }
        await self.asks(scope, None, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent), dict(sent[0]["headers"])


def in_loop(test):
    """Make a test of a coroutine function."""
    return functools.wraps(test)(lambda *fixtures, **named: asyncio.run(test(*fixtures, **named)))


async def until(holds):
    """Wait until something holds, while the other tasks go on."""
    async with asyncio.timeout(PATIENT_S):
        while not holds():
            await asyncio.sleep(0.01)


@in_loop
async def test_a_burst_is_answered_by_one():
    service = Service()
    service.app.held = asyncio.Event()
    waiting = [asyncio.create_task(service.get()) for _ in range(200)]
    await until(lambda: service.app.made)
    service.app.held.set()
    assert {body for _, body, _ in await asyncio.gather(*waiting)} == {b"answer 1"}
    assert (await service.get())[1] == b"answer 1"
    assert service.app.made == 1


@pytest.mark.parametrize(
    ("pair", "is_dropped"), [(("a", "m"), True), (("", "m"), True), (("a", "other"), False), (("b", "m"), False)]
)
@in_loop
async def test_a_change_drops_the_answers_of_its_pair(pair, is_dropped):
    service = Service()
    assert (await service.get())[1] == b"answer 1"
    service.store.change(*pair)
    assert (await service.get())[1] == (b"answer 2" if is_dropped else b"answer 1")


@in_loop
async def test_a_change_is_noticed_in_time_and_not_looked_for_at_every_request():
    service = Service(fresh_s=0.5)
    await service.get()
    service.store.change("a", "m")
    service.now_s += 0.4
    assert (await service.get())[1] == b"answer 1"
    service.now_s += 0.2
    assert (await service.get())[1] == b"answer 2"


@in_loop
async def test_a_database_that_is_away_is_not_looked_for_at_every_request():
    service = Service(fresh_s=0.5)
    await service.get(job="first")
    service.store.away = True
    service.now_s += 10
    for n in range(100):
        assert (await service.get(job=f"j{n}"))[0] == 200
    assert service.store.looks == 2


@in_loop
async def test_an_answer_from_before_a_change_is_not_kept():
    service = Service()
    held = service.app.held = asyncio.Event()
    first = asyncio.create_task(service.get())
    await until(lambda: service.app.made)
    service.store.change("a", "m")
    service.app.held = None
    await service.get("b")  # notices the change while the first is still being made
    held.set()
    assert (await first)[1] == b"answer 1"
    assert (await service.get())[1] == b"answer 3"


@in_loop
async def test_while_the_database_is_away_the_last_good_answer_is_served_with_its_age():
    service = Service()
    await service.get()
    service.store.away = True
    service.now_s += 3600
    status, body, headers = await service.get()
    assert (status, body, headers[b"age"]) == (200, b"answer 1", b"3600")
    assert headers[b"warning"].startswith(b"110")
    service.now_s += LAST_GOOD_S
    assert (await service.get())[1] == b"answer 2"
    service.store.away = False
    assert b"age" not in (await service.get())[2]


@in_loop
async def test_a_database_that_hangs_counts_as_away(monkeypatch):
    monkeypatch.setattr(answers, "_LOOK_S", 0.05)
    service = Service()
    await service.get()
    service.store.answering.clear()
    service.now_s += 100
    assert (await service.get())[2][b"age"] == b"100"
    service.now_s += 100
    assert (await service.get())[2][b"age"] == b"200"  # without waiting for the first look
    service.store.answering.set()
    await until(lambda: service.answers._look is None)
    monkeypatch.setattr(answers, "_LOOK_S", PATIENT_S)
    assert b"age" not in (await service.get())[2]


@in_loop
async def test_jobs_that_were_never_seen_are_answered_while_the_database_is_away():
    service = Service(Application(variants=2))
    await service.get(job="first")
    service.store.away = True
    service.now_s += 3600
    answers = [await service.get(job=f"job{n}") for n in range(1000)]
    assert {status for status, _, _ in answers} == {200}
    assert {body for _, body, _ in answers} == {b"answer 1, variant 0", b"answer 1, variant 1"}
    assert service.app.made == 1


@in_loop
async def test_a_job_is_given_one_answer_whatever_is_published_meanwhile():
    service = Service()
    first = (await service.get(job="mine"))[1]
    service.store.change("a", "m")
    service.now_s += SAME_START_S / 2
    assert (await service.get(job="other"))[1] == b"answer 2"
    assert (await service.get(job="mine"))[1] == first == b"answer 1"
    service.app.status = 404  # it was retired: a node that comes late still gets what the others have
    service.store.change("a", "m")
    assert (await service.get(job="mine"))[1] == b"answer 1"
    assert (await service.get(job="new"))[0] == 404
    service.now_s += SAME_START_S / 2
    assert (await service.get(job="mine"))[0] == 404


@in_loop
async def test_what_jobs_were_given_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(answers, "_MOST_JOBS", 10)
    service = Service()
    for n in range(30):
        await service.get(job=f"j{n}")
    assert len(service.answers._given) == 10
    service.now_s += SAME_START_S
    await service.get(job="last")
    assert len(service.answers._given) == 1


@in_loop
async def test_a_key_of_another_cluster_is_passed_on_to_the_route():
    service = Service(key=ApiKey(id="k", role=Role.ENV, clusters=("b",)))
    service.app.status = 404
    with pytest.raises(KeyError):  # the route makes its own answer
        await service.get("a")
    assert (await service.get("b"))[0] == 404


def test_the_job_is_taken_out_of_the_query(subtests):
    for query, split in [
        (b"model=m", (b"model=m", "")),
        (b"model=m&job=a%20b", (b"model=m", "a b")),
        (b"job=a&model=m&job=b", (b"model=m", "b")),
        (b"model=m&%6Aob=a", None),
        (b"model=%C3%BC", (b"model=%C3%BC", "")),
        (b"model=m&job=" + b"x" * 301, None),
        (b"job=%E2%82%AC", (b"", "\u20ac")),
    ]:
        with subtests.test(query=query):
            assert split_job(query) == split


@in_loop
async def test_errors_and_what_an_old_store_says_are_not_kept():
    broken = Service(Application(status=404))
    assert [(await broken.get())[:2] for _ in range(2)] == [(404, b"answer 1"), (404, b"answer 2")]
    old = Service()
    old.store.old = True
    assert [(await old.get())[1] for _ in range(2)] == [b"answer 1", b"answer 2"]


@in_loop
async def test_many_answers_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(answers, "_MOST_BYTES", 10 * (answers._ENTRY_BYTES + 10))
    service = Service()
    for n in range(30):
        await service.get(model=f"m{n}")
    assert len(service.answers._kept) == 10
    assert (await service.get(model="m29"))[1] == b"answer 30"
    assert (await service.get(model="m0"))[1] == b"answer 31"


@in_loop
async def test_a_known_tag_costs_no_new_answer():
    service = Service()
    assert (await service.get(if_none_match=b'"1"'))[:2] == (304, b"")
    status, body, headers = await service.get(if_none_match=b'W/"1"')
    assert (status, body, headers[b"etag"]) == (304, b"", b'"1"')
    assert b"content-length" not in headers
    assert (await service.get(if_none_match=b'"2"'))[:2] == (200, b"answer 1")
    assert service.app.made == 1


def test_another_process_publishes_and_the_next_job_is_given_it(samples, empty_store):
    samples.fill(empty_store)
    with TestClient(create_app(empty_store, fresh_s=0)) as service, open_store(empty_store.url) as other:
        first = service.get(ENV, params={"model": "bert", **JOB})
        again = service.get(ENV, params={"model": "bert", **JOB})
        assert (first.text, first.headers["etag"]) == (again.text, again.headers["etag"])
        assert first.headers["x-request-id"] != again.headers["x-request-id"]
        newer = other.revisions.publish(replace(empty_store.recommendations.get("0c0ffee1"), id="0c0ffeed", created=""))
        assert service.get(ENV, params={"model": "bert", **JOB}).headers["x-ncclt-recommendation"] == newer.id


def test_head_is_answered_like_get_without_the_body(client):
    for path in (f"{ENV}?model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3", "/v1/studies", "/"):
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-length"] == get.headers["content-length"]

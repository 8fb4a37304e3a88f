"""Web hooks: what is posted to a receiver of ours, its signature, when it is posted again, and where it never goes."""

import base64
import contextlib
import json
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from ncclt.core.life import Action, By, ClusterRules
from ncclt.core.recheck import Check, Freshness
from ncclt.core.rollout import RollOutState
from ncclt.core.tuning_job import TuningJob
from ncclt.errors import StoreError, UsageError
from ncclt.store import open_store
from ncclt.store.hooks import MOST_WAIT_S
from ncclt.testing.samples import sample_recommendation, sample_workload
from ncclt_api import hooks, telemetry
from ncclt_api.app import create_app
from ncclt_api.hooks import GIVE_UP_S, HookPlan, WebHooks, hook_plan, signature

KEY = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
DEADLINE_S = 120.0
ANN = By(who="ann")


class Log:
    """A logger that remembers."""

    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        return lambda event, **facts: self.lines.append((level, event, facts))


class Receiver(ThreadingHTTPServer):
    """Answers with the next of some statuses, the last one from then on, and remembers what it got."""

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.statuses, self.got = list(statuses), []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/in/token-of-the-receiver?a=b"

    def types(self):
        return [json.loads(body)["type"] for _, _, body in self.got]


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receive():
    with contextlib.ExitStack() as stack:

        def start(*statuses):
            server = stack.enter_context(Receiver(*(statuses or (204,))))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as opened:
        yield opened


@pytest.fixture
def posting(store):
    """Return a context manager that posts the history of the store, and gives the log."""

    @contextlib.contextmanager
    def run(*urls, allow=("127.0.0.0/8",), **more):
        log = Log()
        plan = HookPlan(urls=urls, key=KEY, allowed=tuple(map(hooks.ipaddress.ip_network, allow)))
        web_hooks = WebHooks(plan, store=lambda: store, log=log, poll_s=0.01, first_wait_s=0.01, **more)
        for url in urls:  # known from now on
            assert not web_hooks._post_next(url)
        web_hooks.start()
        try:
            yield log
        finally:
            web_hooks.stop()

    return run


def until(true):
    end_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def verify(key, headers, body):
    """Verify as a receiver does (standardwebhooks.com)."""
    sent = {name.lower(): value for name, value in headers.items()}
    assert abs(time.time() - int(sent["webhook-timestamp"])) < 300
    return sent["webhook-signature"] == signature(key, sent["webhook-id"], int(sent["webhook-timestamp"]), body)


def test_the_signature_is_that_of_the_reference_vector():
    made = signature(KEY, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_kind_of_event_is_posted_signed_and_in_order(store, posting, receive):
    receiver = receive()
    store.publish(sample_recommendation("early"), by=ANN)  # before the receiver was known
    with posting(receiver.url, public_url="https://tuner"):
        store.publish(sample_recommendation("a"), by=ANN)
        store.publish(sample_recommendation("b"), by=ANN)
        store.roll_back("a", By(who="key k", why="b hangs on rack 7"))
        check = Check(
            id="c", recommendation="a", cluster="pair", model="toy", freshness=Freshness.STALE,
            reasons=("the gain is lost",), changes=(), launches=0, launcher="", created="2026-01-02T03:04:05",
        )  # fmt: skip
        store.add_check(check)
        store.add_check(replace(check, id="d"))  # it was stale
        for _ in range(2):
            store.note_job_failed(TuningJob(id="j", cluster="pair", model="toy"), "no GPU\nanywhere")
        store.set_rules(ClusterRules(cluster="pair", percent=50), ANN)
        store.publish(sample_recommendation("e"), by=ANN)
        store.end_rollout(store.rollouts()[0].id, RollOutState.LOST, "3 % slower", By(who="guard"))
        until(lambda: len(receiver.got) == 7)
    published, stale, back = "recommendation.published", "recommendation.stale", "recommendation.rolled_back"
    assert receiver.types() == [published, published, back, stale, "job.failed", published, back]
    assert all(verify(KEY, headers, body) for _, headers, body in receiver.got)
    assert not verify(b"x" * 24, *receiver.got[0][1:])
    path, headers, body = receiver.got[2]
    assert (path, headers["Content-Type"]) == ("/in/token-of-the-receiver?a=b", "application/json")
    message = json.loads(body)
    assert message["data"] == {
        "cluster": "pair", "model": "toy", "recommendation": "a", "action": "rolled-back", "who": "key k",
        "why": "b hangs on rack 7", "number": message["data"]["number"], "url": "https://tuner/recommendations/a",
    }  # fmt: skip
    assert message["timestamp"].startswith("20")
    why = [json.loads(body)["data"]["why"] for _, _, body in receiver.got]
    assert why[3] == "the check of 2026-01-02 03:04 found: the gain is lost"
    assert why[4] == "job j: no GPU anywhere"
    assert json.loads(receiver.got[6][2])["data"]["recommendation"] == "e"
    ids = [headers["webhook-id"] for _, headers, _ in receiver.got]
    assert len(set(ids)) == 7


def test_a_workload_that_is_replaced_makes_its_revisions_stale_in_the_history(store):
    workload = replace(sample_workload(), name="own")
    store.add_workload(workload)
    made = replace(sample_recommendation("a"), model="own", source_digest=workload.digest())
    store.publish(made, by=ANN)
    store.add_workload(replace(workload, messages=workload.messages[:1]), replace=True)
    newest = store.history()[0]
    assert (newest.action, newest.recommendation) == (Action.STALE, "a")
    assert newest.why == store.recommendation("a").stale


@pytest.mark.parametrize("statuses", [(500, 503, 200), (404, 200), (302, 204)])
def test_what_was_refused_is_posted_again_with_the_same_id(store, posting, receive, statuses):
    receiver = receive(*statuses)
    with posting(receiver.url) as log:
        store.publish(sample_recommendation("a"), by=ANN)
        store.publish(sample_recommendation("b"), by=ANN)
        until(lambda: len(receiver.got) == len(statuses) + 1)
    first, *again, last = [headers["webhook-id"] for _, headers, _ in receiver.got]
    assert set(again) == {first} != {last}
    assert receiver.got[0][2] == receiver.got[1][2]
    failed = [facts for level, _, facts in log.lines if level == "warning"]
    assert [facts["cause"] for facts in failed] == [f"answered {status}" for status in statuses[:-1]]
    assert [facts["again_in_s"] for facts in failed] == [0.01 * 2**n for n in range(len(failed))]


def test_a_receiver_that_is_away_delays_no_other_and_no_publication(store, posting, receive):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        away = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        receiver = receive()
        hooks_before = hooks._TIMEOUT_S
        hooks._TIMEOUT_S = 0.5
        try:
            with posting(away, receiver.url) as log:
                began_s = time.monotonic()
                store.publish(sample_recommendation("a"), by=ANN)
                took_s = time.monotonic() - began_s
                until(lambda: receiver.got and any(facts.get("cause") for _, _, facts in log.lines))
        finally:
            hooks._TIMEOUT_S = hooks_before
    assert took_s < 30
    assert "timed out" in next(facts["cause"] for _, _, facts in log.lines if facts.get("cause"))


def test_no_secret_is_in_the_log_or_the_store(store, posting, receive, tmp_path):
    receiver = receive(500, 200)
    with posting(receiver.url) as log:
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: len(receiver.got) == 2 and len(log.lines) == 2)
    said = repr(log.lines) + repr(HookPlan(urls=(), key=KEY))
    assert "127.0.0.1" in said
    kept = (tmp_path / "ncclt.db").read_bytes()
    for secret in (base64.b64encode(KEY).decode(), repr(KEY), "token-of-the-receiver"):
        assert secret not in said
        assert secret.encode() not in kept


def test_an_event_is_given_up_after_days_and_the_next_one_is_posted(store, posting, receive):
    receiver = receive(500)
    with posting(receiver.url):
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: receiver.got)
    with store._database.alone() as connection:
        connection.exec_driver_sql(f"UPDATE hooks SET due_s = 0, since_s = {time.time() - GIVE_UP_S}")
    receiver.statuses[:] = [500, 200]
    receiver.got.clear()
    log = Log()
    plan = HookPlan(urls=(receiver.url,), key=KEY, allowed=(hooks.ipaddress.ip_network("127.0.0.0/8"),))
    again = WebHooks(plan, store=lambda: store, log=log)
    store.publish(sample_recommendation("b"), by=ANN)
    assert not again._post_next(receiver.url)
    assert again._post_next(receiver.url)
    assert [level for level, _, _ in log.lines] == ["error", "info"]
    assert [json.loads(body)["data"]["recommendation"] for _, _, body in receiver.got] == ["a", "b"]


def test_two_replicas_post_an_event_once_and_a_dead_one_is_replaced(store):
    actions = (Action.PUBLISHED,)
    assert store.take_hook_event("h", actions, held_s=60) is None
    store.publish(sample_recommendation("a"), by=ANN)
    due = store.take_hook_event("h", actions, held_s=60)
    assert (due.event.recommendation, due.attempts) == ("a", 0)
    assert store.take_hook_event("h", actions, held_s=60) is None
    assert store.take_hook_event("other", actions, held_s=60) is None  # a receiver that is new
    store.delay_hook_event("h", due, wait_s=0)
    taken = store.take_hook_event("h", actions, held_s=0)
    assert (taken.event, taken.attempts) == (due.event, 1)
    assert store.waiting_hook_event("h", actions) == due.event
    store.end_hook_event("h", due.event.number)
    assert store.waiting_hook_event("h", actions) is None
    store.delay_hook_event("h", due, wait_s=60)  # a slow replica knows no better
    store.publish(sample_recommendation("b"), by=ANN)
    assert store.take_hook_event("h", actions, held_s=60).event.recommendation == "b"


def test_a_clock_that_was_set_back_delays_nothing_for_longer_than_an_hour(store):
    actions = (Action.PUBLISHED,)
    store.take_hook_event("h", actions, held_s=60)
    store.publish(sample_recommendation("a"), by=ANN)
    due = store.take_hook_event("h", actions, held_s=60)
    store.delay_hook_event("h", due, wait_s=10 * MOST_WAIT_S)
    assert store.take_hook_event("h", actions, held_s=60) is None
    with store._database.alone() as connection:
        connection.exec_driver_sql(f"UPDATE hooks SET due_s = {time.time() + 2 * MOST_WAIT_S}")
    assert store.take_hook_event("h", actions, held_s=60) is not None


def test_a_store_that_is_away_is_waited_for_and_said_once(receive):
    class Away:
        looks = 0

        def take_hook_event(self, *_, **__):
            self.looks += 1
            raise StoreError("no connection")

    store, log = Away(), Log()
    web_hooks = WebHooks(HookPlan(urls=("http://a/",), key=KEY), store=lambda: store, log=log, poll_s=0.001)
    web_hooks.start()
    until(lambda: store.looks > 3)
    web_hooks.stop()
    assert log.lines == [("warning", "web hooks wait for the store", {"cause": "no connection"})]


@pytest.mark.parametrize("where", ["take_hook_event", "_message"])
def test_an_unexpected_error_is_logged_once_and_the_deliveries_go_on(store, posting, receive, monkeypatch, where):
    receiver, fails, counted = receive(), [3], []
    owner = type(store) if where == "take_hook_event" else WebHooks
    real = getattr(owner, where)

    def buggy(self, *words, **options):
        if threading.current_thread().name == "ncclt-hooks" and fails[0]:
            fails[0] -= 1
            raise KeyError("a bug")
        return real(self, *words, **options)

    with posting(receiver.url, count=lambda *result: counted.append(result)) as log:
        monkeypatch.setattr(owner, where, buggy)
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: receiver.got)
        until(lambda: ("127.0.0.1", "delivered") in counted)
    (bug,) = [facts for level, _, facts in log.lines if level == "error"]
    assert (bug["host"], bug["cause"]) == ("127.0.0.1", "KeyError: 'a bug'")
    assert "Traceback" in bug["trace"]
    assert "token-of-the-receiver" not in repr(log.lines)
    assert counted == [("127.0.0.1", "failed")] * 3 + [("127.0.0.1", "delivered")]


def test_figures_tell_of_deliveries_and_of_the_oldest_event_that_waits(store, receive, monkeypatch):
    monkeypatch.setattr(telemetry, "_COUNTED_AGAIN_S", 0.0)
    receiver = receive(500)
    plan = HookPlan(urls=(receiver.url,), key=KEY, allowed=(hooks.ipaddress.ip_network("127.0.0.0/8"),))
    with TestClient(create_app(store, fresh_s=0, hooks=plan)) as client:
        until(lambda: _known(store))

        def figure(name, **labels):
            found = text_string_to_metric_families(client.get("/metrics").text)
            return next(
                (s.value for f in found for s in f.samples if s.name == name and s.labels.items() >= labels.items()),
                None,
            )

        deliveries, oldest = "ncclt_hook_deliveries_total", "ncclt_hook_oldest_undelivered_seconds"
        last = "ncclt_hook_last_success_timestamp_seconds"
        assert (figure(deliveries, result="failed"), figure(oldest), figure(last)) == (0, 0, None)
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: figure(deliveries, result="failed", host="127.0.0.1") == 1)
        assert figure(oldest, host="127.0.0.1") > 0
        receiver.statuses[:] = [204]
        with store._database.alone() as connection:
            connection.exec_driver_sql("UPDATE hooks SET due_s = 0")
        until(lambda: figure(deliveries, result="delivered") == 1)
        until(lambda: figure(oldest) == 0)
        assert abs(figure(last) - time.time()) < DEADLINE_S
        assert figure(deliveries, result="given_up") == 0
        assert "token-of-the-receiver" not in client.get("/metrics").text


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "fe80::1", "fd00::1", "0.0.0.0",
     "100.64.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "ff02::1", "255.255.255.255"],
)  # fmt: skip
def test_an_address_of_this_network_is_refused_unless_it_is_named(address):
    parsed = hooks.ipaddress.ip_address(address)
    assert not hooks._is_allowed(parsed, ())
    assert hooks._is_allowed(parsed, (hooks.ipaddress.ip_network(address),))
    assert not hooks._is_allowed(parsed, (hooks.ipaddress.ip_network("10.9.0.0/16"),))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_the_public_internet_is_allowed(address):
    assert hooks._is_allowed(hooks.ipaddress.ip_address(address), ())


def test_a_name_is_checked_when_it_is_looked_up_and_not_looked_up_again(store, posting, receive, monkeypatch):
    """A public name that resolves to this network, as in DNS rebinding; also where one of its addresses is public."""
    receiver, asked = receive(), []
    port = receiver.server_address[1]

    def look_up(host, *_, **__):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("93.184.216.34", "127.0.0.1")]

    monkeypatch.setattr(hooks.socket, "getaddrinfo", look_up)
    with posting(f"http://hooks.example:{port}/", allow=()) as log:
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: log.lines)
    assert "hooks.example is 127.0.0.1, which --hook-allow does not name" in log.lines[0][2]["cause"]
    assert (receiver.got, set(asked)) == ([], {"hooks.example"})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9/", "not on the public Internet"), ("http://[::1]/", "not on the public Internet"),
        ("http://169.254.169.254/latest", "not on the public Internet"), ("ftp://host/", "http or https"),
        ("file:///etc/passwd", "http or https"), ("http://", "http or https"), ("http://host:0/", "http or https"),
        ("http://a:b@host/", "no user name"), ("http://host/\r\nX: y", "http or https"),
        ("http://[::1", "http or https"),
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_posted_to_are_refused_at_the_start(tmp_path, url, said):
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")
    with pytest.raises(UsageError, match=said):
        hook_plan([url], secret_file=str(secret))
    assert hook_plan(["http://127.0.0.1:9/"], secret_file=str(secret), allow=["127.0.0.1"]).key == KEY
    assert hook_plan([], secret_file="") is None
    with pytest.raises(UsageError, match="--hook-allow"):
        hook_plan(["https://host/"], secret_file=str(secret), allow=["10.0.0.1/8"])


@pytest.mark.parametrize(
    "text", ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_not base64", "\u00fc"]
)
def test_a_secret_that_cannot_be_used_is_refused_without_being_shown(tmp_path, text):
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        hook_plan(["https://host/"], secret_file=str(path))
    assert not text or text not in f"{refused.value} {refused.value.hint}"
    with pytest.raises(UsageError, match="cannot be read"):
        hook_plan(["https://host/"], secret_file=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="--hook-secret-file"):
        hook_plan(["https://host/"], secret_file="")


def test_the_service_posts_while_it_runs(store, receive):
    receiver = receive()
    plan = HookPlan(urls=(receiver.url,), key=KEY, allowed=(hooks.ipaddress.ip_network("127.0.0.0/8"),))
    with TestClient(create_app(store, fresh_s=0, hooks=plan)) as client:
        until(lambda: store._database and _known(store))
        store.publish(sample_recommendation("a"), by=ANN)
        until(lambda: receiver.got)
        assert client.get("/healthz").status_code == 200
    assert receiver.types() == ["recommendation.published"]
    assert not any(thread.name == "ncclt-hooks" for thread in threading.enumerate())


def _known(store):
    with store._database.reading() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM hooks").scalar()

"""Users whom a proxy signs in: only its address is believed, and a browser has no more rights than with a cookie."""

import http.client
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.core.revision import Actor
from ncclt.errors import UsageError
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation
from ncclt_api.app import ServiceOptions, create_app
from ncclt_api.proxy_users import ProxyUsers, note_peer, proxy_plan

free_port = runpy.run_path(str(Path(__file__).parents[2] / "fakes" / "ports.py"))["free_port"]
PROXY, STRANGER = "10.0.0.7", "10.0.0.8"
PLAN = proxy_plan([PROXY, "fd00::/64"], ["staff=read", "ops=admin", "leads=approve"])
ANN = {"X-Forwarded-Email": "ann@example.com", "X-Forwarded-Groups": "staff,leads"}


class Log:
    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        return lambda event, **facts: self.lines.append((level, event, facts))


@pytest.fixture
def store(tmp_path, profiles):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=profiles) as opened:
        opened.revisions.publish(sample_recommendation("a"), by=Actor(who="key one"))
        yield opened


@pytest.fixture
def service(store):
    """Return a function that gives a client at some address."""
    log = Log()
    inner = create_app(store, ServiceOptions(users=PLAN), fresh_s=0, log=log)
    app = note_peer(inner)

    def at(address, **headers):
        client = TestClient(app, client=(address, 50000), headers=headers)
        client.log, client.sessions = log, inner.state.sessions
        return client

    with TestClient(app):
        yield at


@pytest.mark.parametrize("peer", [PROXY, "::ffff:10.0.0.7", "fd00::5"])
def test_the_named_proxy_signs_a_user_in_with_the_best_role_of_the_groups(service, peer):
    assert service(peer, **ANN).get("/v1/studies").status_code == 200
    reader = service(peer, **{**ANN, "X-Forwarded-Groups": "staff"})
    refused = reader.post("/recommendations/a/pin", data={"token": ""})
    detail = "the user ann@example.com may read; this needs approve"
    assert (refused.status_code, refused.json()["detail"]) == (403, detail)


@pytest.mark.parametrize("peer", [STRANGER, "127.0.0.1", "fd01::5", "testclient", ""])
def test_the_header_of_a_stranger_is_ignored_and_logged_once(service, peer):
    client = service(peer, **ANN)
    for _ in range(3):
        assert client.get("/v1/studies").status_code == 401
    facts = {"peer": peer, "hint": "--trust-user-header does not name it"}
    warnings = [line for line in client.log.lines if line[0] == "warning"]
    assert warnings == [("warning", "header of a user ignored", facts)]
    assert "ann@" not in repr(client.log.lines)


def test_strangers_cannot_fill_the_log():
    log = Log()
    users = ProxyUsers(PLAN, log=log)
    for number in range(1000):
        scope = {"type": "http", "headers": [(b"x-forwarded-user", b"ann")], "ncclt.peer": f"192.0.2.{number}"}
        assert users.user(scope) is None
    assert len(log.lines) == 64


@pytest.mark.parametrize(
    "headers",
    [
        *({}, {"X-Forwarded-Groups": "ops"}, {"X-Forwarded-Email": "ann@x.org"}),
        *({**ANN, "X-Forwarded-Groups": groups} for groups in ("others", "STAFF", "staff leads")),
        *({**ANN, "X-Forwarded-Email": name} for name in ("", "a b", "x" * 201)),
    ],
)
def test_without_a_name_or_a_group_with_a_role_a_key_is_needed(service, headers):
    assert service(PROXY, **headers).get("/v1/studies").status_code == 401


def test_two_names_are_not_one():
    headers = [(b"x-forwarded-email", b"ann@x.org"), (b"x-forwarded-email", b"bob@x.org")]
    groups = [(b"x-forwarded-groups", b"staff")]
    users = ProxyUsers(PLAN)
    assert users.user({"type": "http", "headers": [*headers, *groups], "ncclt.peer": PROXY}) is None
    one = users.user({"type": "http", "headers": [headers[0], *groups], "ncclt.peer": PROXY})
    assert (one.holder, one.role) == ("user ann@x.org", Role.READ)
    assert users.user({"type": "http", "headers": [headers[0], *groups]}) is None  # nothing saw the socket


def test_every_user_and_the_name_without_a_domain():
    users = ProxyUsers(proxy_plan([PROXY], ["*=read", "ops=admin"]))
    scope = {"type": "http", "headers": [(b"x-forwarded-user", b"ann")], "ncclt.peer": PROXY}
    assert (users.user(scope).id, users.user(scope).role) == ("user ann", Role.READ)
    scope["headers"].append((b"x-forwarded-groups", b"dev, ops"))
    assert users.user(scope).role is Role.ADMIN


def test_a_key_is_looked_at_first_and_a_basic_password_of_the_proxy_is_not_a_key(service, store):
    store.keys.add(ApiKey(id="one", role=Role.READ), digest=hash_secret("one"))
    both = service(PROXY, **ANN, Authorization="Bearer one").post("/recommendations/a/pin", data={"token": ""})
    assert both.json()["detail"] == "the key one may read; this needs approve"
    assert service(PROXY, **ANN, Authorization="Bearer wrong").get("/v1/studies").status_code == 401
    assert service(PROXY, **ANN, Authorization="Basic YW5uOg==").get("/v1/studies").status_code == 200


def test_a_user_writes_by_the_forms_of_pages_alone_each_with_a_token_of_this_user(service, store, samples):
    samples.fill(store)
    store.revisions.publish(replace(store.recommendations.get("0c0ffee1"), id="0c0ffee9"), by=Actor(who="key one"))
    ann, bob = service(PROXY, **ANN), service(PROXY, **{**ANN, "X-Forwarded-Email": "bob@example.com"})
    assert ann.post("/v1/recommendations/0c0ffee1/rollback", json={}).status_code == 401

    def token(browser):
        page = browser.get("/recommendations/0c0ffee1", headers={"Accept": "text/html"}).text
        assert "Sign out" not in page  # that is the proxy's
        return re.search(r'name="token" value="([^"]+)"', page)[1]

    back = {"why": "b hangs", "verb": "rollback"}
    for wrong in (token(bob), "", ann.sessions.form_token("")):
        refused = ann.post("/recommendations/0c0ffee1/rollback", data={**back, "token": wrong}, follow_redirects=False)
        assert refused.status_code in (403, 422)
    answer = ann.post("/recommendations/0c0ffee1/rollback", data={**back, "token": token(ann)}, follow_redirects=False)
    assert answer.status_code == 303
    newest = store.revisions.history(recommendation="0c0ffee1")[0]
    assert (newest.action.value, newest.who) == ("rolled-back", "user ann@example.com")


def test_without_keys_the_service_is_not_open_and_its_sign_in_does_not_lead_in_circles(service):
    browser = service(STRANGER, Accept="text/html")
    assert browser.get("/", follow_redirects=False).headers["location"] == "/sign-in"
    assert browser.get("/sign-in", follow_redirects=False).status_code == 200
    assert service(STRANGER).get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("proxies", "roles", "message"),
    [
        *(([address], ["*=read"], "must not name every address") for address in ("0.0.0.0/0", "::/0")),
        *(([address], ["*=read"], "--trust-user-header") for address in ("*", "proxy.example")),
        *(([PROXY], [role], "GROUP=ROLE") for role in ("ops", "ops=root", "=read")),
        ([PROXY], [], "needs --user-role"),
        ([], ["*=read"], "needs --trust-user-header"),
    ],
)
def test_options_that_would_let_everyone_in_are_refused(proxies, roles, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        proxy_plan(proxies, roles)
    assert proxy_plan([], []) is None


def test_the_served_process_looks_at_the_socket_and_not_at_forwarded_for(tmp_path):
    """127.0.0.1 is the proxy and 127.0.0.2 a stranger; X-Forwarded-For of both is believed for the log."""
    port, url = free_port(), f"sqlite:///{tmp_path}/n.db"
    open_store(url).close()
    options = f"--port {port} --storage {url} --trust-user-header 127.0.0.1 --user-role staff=read"
    argv = [sys.executable, "-m", "ncclt", "serve", *options.split()]

    def get(source, path="/v1/studies", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
        connection.request("GET", path, headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    environment = {**os.environ, "FORWARDED_ALLOW_IPS": "*"}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            deadline_s = time.monotonic() + 240
            while True:
                try:
                    assert get("127.0.0.1", "/healthz") == 200
                    break
                except OSError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline_s
                    time.sleep(0.05)
            spoofed = {"X-Forwarded-For": "127.0.0.1", **ANN}
            assert get("127.0.0.2", **spoofed) == get("127.0.0.2", **ANN) == 401
            assert get("127.0.0.1", **{"X-Forwarded-For": "192.0.2.1", **ANN}) == 200
            assert get("127.0.0.1") == 401
        finally:
            process.send_signal(signal.SIGTERM)
            log = [json.loads(line) for line in process.communicate(timeout=240)[1].splitlines() if line[0] == "{"]
    assert [line["peer"] for line in log if line["event"] == "header of a user ignored"] == ["127.0.0.2"]
    assert "192.0.2.1" in [line.get("client") for line in log]

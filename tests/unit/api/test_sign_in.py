"""Browsers sign in: a key is exchanged for a cookie that names it, and forms carry a token of the session."""

import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from itsdangerous import URLSafeTimedSerializer

from ncclt.core.api_key import ApiKey, Role, hash_secret, new_secret
from ncclt.errors import UsageError
from ncclt_api import sign_in
from ncclt_api.app import ServiceOptions, create_app
from ncclt_api.sign_in import COOKIE, Sessions

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
SECRET = "s" * 32


@pytest.fixture
def store(own_store):
    return own_store


@pytest.fixture
def keys(store):
    """The secret of a key of each role, by role."""
    found = {role: new_secret() for role in Role}
    for role, secret in found.items():
        store.keys.add(ApiKey(id=f"id-{role}", role=role), digest=hash_secret(secret))
    return found


@pytest.fixture
def browser(store):
    app = create_app(store, ServiceOptions(session_secret=SECRET), fresh_s=0)
    with TestClient(app, headers=BROWSER) as opened:
        yield opened


def token_of(page):
    return re.search(r'name="token" value="([^"]+)"', page.text)[1]


def enter(browser, secret, **more):
    token = token_of(browser.get("/sign-in"))
    return browser.post("/sign-in", data={"token": token, "key": secret, **more}, follow_redirects=False)


def test_a_key_is_exchanged_for_a_cookie_that_does_not_hold_it(browser, keys):
    asked = browser.get("/studies/5e1f00aa?page=1", follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2Fstudies%2F5e1f00aa%3Fpage%3D1")
    form = browser.get(asked.headers["location"]).text
    assert 'value="/studies/5e1f00aa?page=1"' in form
    answer = enter(browser, keys[Role.READ], next="/studies/5e1f00aa")
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/5e1f00aa")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Max-Age=43200", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    page = browser.get("/studies/5e1f00aa")
    assert page.status_code == 200
    for text in (cookie, page.text, answer.text):
        assert keys[Role.READ] not in text
        assert hash_secret(keys[Role.READ]) not in text


def test_over_https_the_cookie_is_secure(store, keys):
    for app, url in (
        (create_app(store, fresh_s=0), "https://testserver"),
        (create_app(store, ServiceOptions(public_url="https://tuner"), fresh_s=0), "http://testserver"),
    ):
        with TestClient(app, headers=BROWSER, base_url=url) as browser:
            assert "; Secure" in enter(browser, keys[Role.READ]).headers["set-cookie"]


def test_what_is_no_key_gets_no_cookie(browser, keys):
    for secret in (" ", "wrong", "ncclt_" + "x" * 43):
        answer = enter(browser, secret)
        assert "set-cookie" not in answer.headers, secret
        assert answer.status_code in (401, 422), secret


def test_a_revoked_key_ends_the_session_at_once(browser, keys, store):
    enter(browser, keys[Role.READ])
    assert browser.get("/", follow_redirects=False).status_code == 200
    store.keys.revoke("id-read", now="2026-11-22")
    assert browser.get("/", follow_redirects=False).headers["location"] == "/sign-in"
    assert enter(browser, keys[Role.READ]).status_code == 401
    part = browser.get("/live", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-refresh"]) == (401, "true")


def test_an_expired_key_and_an_old_cookie_end_it_too(browser, keys, store, monkeypatch):
    secret = new_secret()
    store.keys.add(ApiKey(id="short", role=Role.READ, expires="2020-01-01"), digest=hash_secret(secret))
    browser.cookies.set(COOKIE, str(browser.app.state.sessions._cookies.dumps(["short", "m"])))
    assert browser.get("/", follow_redirects=False).status_code == 303
    browser.cookies.clear()
    enter(browser, keys[Role.READ])
    assert browser.get("/", follow_redirects=False).status_code == 200
    monkeypatch.setattr(sign_in, "SESSION_S", -1)
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_a_cookie_that_was_not_signed_here_is_none(browser, keys):
    foreign = str(URLSafeTimedSerializer("another" * 8, salt="ncclt session").dumps(["id-admin", "m"]))
    for cookie in ("", "x", "a.b.c", "\u00fc", "x" * 10_000, foreign):
        header = f"{COOKIE}={cookie}".encode()
        assert browser.get("/", headers={"Cookie": header}, follow_redirects=False).status_code == 303, cookie


def test_a_token_of_a_form_is_no_session_and_the_reverse():
    sessions = Sessions(SECRET)
    assert sessions.read(f"{COOKIE}={sessions.form_token('mark')}") is None
    assert sessions.is_token_of("mark", sessions.form_token("mark"))
    assert not sessions.is_token_of("other", sessions.form_token("mark"))
    assert not sessions.is_token_of("mark", Sessions("t" * 32).form_token("mark"))


def test_replicas_with_one_secret_share_sessions_and_a_short_one_is_refused():
    assert Sessions(SECRET).is_token_of("m", Sessions(SECRET).form_token("m"))
    assert not Sessions().is_token_of("m", Sessions().form_token("m"))
    with pytest.raises(UsageError, match="at least 32"):
        Sessions("short")


def test_after_the_sign_in_nobody_is_sent_elsewhere(browser, keys):
    for next in ("//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nSet-Cookie: x"):
        assert enter(browser, keys[Role.READ], next=next).headers["location"] == "/", next


def test_a_key_of_one_cluster_is_offered_no_other(browser, store):
    store.clusters.add(replace(store.clusters.get("leonardo"), name="elsewhere"))
    secret = new_secret()
    store.keys.add(ApiKey(id="mine", role=Role.TUNE, clusters=("leonardo",)), digest=hash_secret(secret))
    enter(browser, secret)
    for path in ("/", "/studies", "/jobs"):
        choosers = re.findall(r'<select name="cluster".*?</select>', browser.get(path).text, re.S)
        assert len(choosers) == (2 if path == "/jobs" else 1)
        for chooser in choosers:
            assert re.findall(r'<option value="([^"]+)"', chooser) == ["leonardo"], path


def test_sign_out_needs_the_token_of_the_session(browser, keys):
    enter(browser, keys[Role.READ])
    token = token_of(browser.get("/studies"))
    stranger = browser.app.state.sessions.form_token("")
    assert browser.post("/sign-out", data={"token": stranger}).status_code == 403
    assert browser.get("/", follow_redirects=False).status_code == 200
    assert browser.post("/sign-out", data={"token": token}, follow_redirects=False).status_code == 303
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_a_cookie_never_writes_by_the_api(browser, keys):
    enter(browser, keys[Role.ADMIN])
    assert browser.get("/v1/studies").status_code == 200
    answer = browser.post("/v1/recommendations/0c0ffee1/pin", json={})
    assert answer.status_code == 401


def test_every_form_that_writes_needs_its_token(browser, keys, find_routes):
    """Whatever routes are added: what a browser may post to has the check."""
    enter(browser, keys[Role.ADMIN])
    posts = {route.path for route in find_routes(browser.app) if "POST" in route.methods}
    posts = [path for path in posts if not path.startswith("/v1/")]
    assert len(posts) >= 6
    for path in posts:
        path = path.replace("{verb}", "pin").replace("{id}", "0c0ffee1")
        wrong = {"token": "wrong", "key": "x", "cluster": "leonardo", "model": "bert"}
        if path.startswith("/jobs/"):
            continue  # without such a job it is a 404 before; test_jobs_page.py has one
        assert browser.post(path, data=wrong).status_code == 403, path
        assert browser.post(path, data={k: v for k, v in wrong.items() if k != "token"}).status_code == 422, path


def test_a_page_of_another_host_may_not_sign_anybody_in(browser, keys):
    token = token_of(browser.get("/sign-in"))
    data = {"token": token, "key": keys[Role.READ]}
    assert browser.post("/sign-in", data=data, headers={"Origin": "https://evil.example"}).status_code == 403


def test_a_link_from_another_site_is_opened_once_more_by_our_own_page(browser, keys):
    """A strict cookie does not come with it: without this everybody who follows a link from a chat would sign in."""
    enter(browser, keys[Role.READ])
    cookie = browser.cookies[COOKIE]
    browser.cookies.clear()
    page = browser.get("/studies", headers={"Sec-Fetch-Site": "cross-site"}, follow_redirects=False)
    assert (page.status_code, 'http-equiv="refresh"' in page.text) == (200, True)
    browser.cookies.set(COOKIE, cookie)
    assert browser.get("/studies", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_without_keys_there_is_nothing_to_sign_in_to(browser):
    page = browser.get("/")
    assert page.status_code == 200
    assert "Sign out" not in page.text
    assert browser.get("/sign-in", follow_redirects=False).headers["location"] == "/"


def test_the_key_is_in_no_log(store, keys):
    lines = []

    class Log:
        def info(self, *words, **facts):
            lines.append(str((words, facts)))

        error = info

    with TestClient(create_app(store, fresh_s=0, log=Log()), headers=BROWSER) as browser:
        cookie = enter(browser, keys[Role.READ]).headers["set-cookie"]
        browser.get("/studies")
    assert any("/sign-in" in line for line in lines)
    assert any("id-read" in line for line in lines)
    assert not any(keys[Role.READ] in line or cookie.split(";")[0] in line for line in lines)

"""Large answers come from a process of their own, and are those that this one would give."""

import os
import re
import signal
import subprocess
import sys

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.store import open_store
from ncclt_api import large_answers
from ncclt_api.app import ServiceOptions, create_app
from ncclt_api.large_answers import LargeAnswers

OPTIONS = ServiceOptions(public_url="https://ncclt.example", optuna_dashboard_url="http://127.0.0.1:8081")


@pytest.fixture(scope="module")
def service(filled_store):
    with TestClient(create_app(filled_store, OPTIONS, large=filled_store.url)) as service:
        service.get("/studies/5e1f00aa")  # starts the process, which all tests share
        yield service


def process_of(service):
    (process,) = service.app.state.large_answers._pool._processes.values()
    return process


def test_they_are_the_same_as_here(service, filled_store, subtests):
    paths = [
        "/studies/5e1f00aa?page=1",
        "/v1/studies/5e1f00aa",
        "/v1/studies/5e1f00aa/trials?limit=5",
        "/v1/studies/5e1f00aa/evidence",
        "/v1/studies/unknown/trials",
        "/v1/studies/5e1f00aa/trials?limit=0",
        "/studies/unknown",
    ]
    with TestClient(create_app(filled_store, OPTIONS, fresh_s=0)) as client:
        for path in paths:
            with subtests.test(path=path):
                headers = {"Accept": "text/html", "X-Request-ID": "one"}
                there, here = service.get(path, headers=headers), client.get(path, headers=headers)
                assert (there.status_code, there.text) == (here.status_code, here.text)
                assert dict(there.headers) == dict(here.headers)


def test_their_process_has_every_option_that_pages_show(service):
    *_, handed = service.app.state.large_answers._started
    assert (handed.public_url, handed.optuna_dashboard_url) == (OPTIONS.public_url, OPTIONS.optuna_dashboard_url)


def test_a_process_that_was_killed_is_replaced(filled_store):
    path = "/v1/studies/5e1f00aa/trials"
    with TestClient(create_app(filled_store, large=filled_store.url)) as service:
        assert service.get(path).status_code == 200
        first = process_of(service).pid
        os.kill(first, signal.SIGKILL)
        answers = [service.get(path) for _ in range(3)]
        assert answers[-1].status_code == 200
        assert all(a.status_code == 200 or (a.status_code, a.headers["retry-after"]) == (503, "2") for a in answers)
        assert process_of(service).pid != first
        assert service.get("/healthz").status_code == 200


def test_when_too_many_wait_the_next_is_refused_and_jobs_are_not(service, monkeypatch):
    monkeypatch.setattr(large_answers, "_MOST_WAITING", 0)
    refused = service.get("/v1/studies/5e1f00aa/trials")
    assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    job = {"model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "simulated": "allow"}
    assert service.get("/v1/clusters/leonardo/env", params=job).status_code == 200


def test_the_process_ends_with_the_service(filled_store):
    with TestClient(create_app(filled_store, large=filled_store.url)) as service:
        service.get("/studies/5e1f00aa")
        process = process_of(service)
    assert not process.is_alive()
    LargeAnswers(create_app, filled_store.url).close()  # it never began


def test_the_process_ends_with_a_killed_service():
    code = """
import asyncio, os, signal
from starlette.responses import Response
from ncclt_api.large_answers import LargeAnswers
asyncio.run(LargeAnswers(Response).made({"type": "http"}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    # Both have the pipe of its output: reading it ends with the last of them.
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_browser_that_is_signed_in_sees_them_and_may_use_their_forms(filled_store, tmp_path, samples, profiles):
    """The other process neither asks for the key again nor signs forms with another secret."""
    with open_store(f"sqlite:///{tmp_path}/ncclt.db", profiles=profiles) as store:
        samples.fill(store)
        store.keys.add(ApiKey(id="one", role=Role.READ, clusters=("leonardo",)), digest=hash_secret("one"))
        with TestClient(create_app(store, fresh_s=0, large=store.url), headers={"Accept": "text/html"}) as browser:
            assert browser.get("/studies/5e1f00aa", follow_redirects=False).status_code == 303
            token = re.search(r'name="token" value="([^"]+)"', browser.get("/sign-in").text)[1]
            browser.post("/sign-in", data={"token": token, "key": "one"})
            page = browser.get("/studies/5e1f00aa", follow_redirects=False)
            assert page.status_code == 200
            token = re.search(r'name="token" value="([^"]+)"', page.text)[1]
            assert browser.post("/sign-out", data={"token": token}, follow_redirects=False).status_code == 303
            assert browser.get("/v1/studies/5e1f00aa/trials").status_code == 401

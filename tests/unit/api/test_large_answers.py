"""Large answers come from a process of their own, and are those that this one would give."""

import os
import signal

import pytest
from fastapi.testclient import TestClient

from ncclt_api import large_answers
from ncclt_api.app import create_app
from ncclt_api.large_answers import LargeAnswers


@pytest.fixture(scope="module")
def service(filled_store):
    with TestClient(create_app(filled_store, large=filled_store.url)) as service:
        service.get("/studies/5e1f00aa")  # starts the process, which all tests share
        yield service


def process_of(service):
    (process,) = service.app.state.large_answers._pool._processes.values()
    return process


@pytest.mark.parametrize(
    "path",
    ["/studies/5e1f00aa?page=1", "/v1/studies/5e1f00aa/trials?limit=5", "/v1/studies/5e1f00aa/evidence",
     "/v1/studies/unknown/trials", "/v1/studies/5e1f00aa/trials?limit=0", "/studies/unknown"],
)  # fmt: skip
def test_they_are_the_same_as_here(service, client, path):
    headers = {"Accept": "text/html", "X-Request-ID": "one"}
    there, here = service.get(path, headers=headers), client.get(path, headers=headers)
    assert (there.status_code, there.text) == (here.status_code, here.text)
    assert dict(there.headers) == dict(here.headers)


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
    LargeAnswers(create_app, filled_store.url, dashboard=False).close()  # it never began

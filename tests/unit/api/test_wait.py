"""Requests that are held until there is news."""

import threading
from dataclasses import replace

import httpx2 as httpx
import pytest

from ncclt.client.fetch import fetch_env
from ncclt.store import open_store
from ncclt_api.app import create_app

ENV = "/v1/clusters/leonardo/env"
JOB = {"model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "simulated": "allow"}
SHAPE = {"cluster": "leonardo", "model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3"}


@pytest.fixture
def url(samples, empty_store, serving):
    samples.fill(empty_store)
    with serving(create_app(empty_store, fresh_s=0)) as url:
        yield url


def test_a_request_is_held_until_another_process_publishes(url, empty_store):
    with httpx.Client(base_url=url, timeout=240) as client:
        etag = client.get(ENV, params=JOB).headers["etag"]
        # Nothing new: the wait ends with what the client has.
        assert client.get(ENV, params={**JOB, "wait": 1, "etag": etag}).status_code == 304
        assert client.get(ENV, params={**JOB, "wait": 1}, headers={"If-None-Match": etag}).status_code == 304
        # Without a tag, or with another one, there is nothing to wait for.
        assert client.get(ENV, params={**JOB, "wait": 60}).status_code == 200
        assert client.get(ENV, params={**JOB, "wait": 60, "etag": "other"}).status_code == 200
        answers = []
        held = threading.Thread(
            target=lambda: answers.append(client.get(ENV, params={**JOB, "wait": 60, "etag": etag.strip('"')}))
        )
        held.start()
        held.join(1)
        assert held.is_alive()
        with open_store(empty_store.url) as other:
            newer = other.publish(replace(other.recommendation("0c0ffee1"), id="0c0ffeed", created=""))
        held.join(240)
        assert answers[0].headers["x-ncclt-recommendation"] == newer.id
        assert client.get(ENV, params={**JOB, "wait": 61}).status_code == 422
        assert client.get(ENV, params={**JOB, "wait": "x"}).status_code == 422
        gone = client.get(ENV, params={**JOB, "nodes": 4, "wait": 60, "etag": etag})
        assert gone.status_code == 409


def test_accept_stands_in_for_the_format(url):
    with httpx.Client(base_url=url, timeout=240) as client:
        for accept, start, media in (
            ("text/x-shellscript", "export ", "text/x-shellscript; charset=utf-8"),
            ("application/json", "{", "application/json"),
            ("text/html, text/csv;q=0.9", "# ncclt-table", "text/csv; charset=utf-8"),
            ("*/*", "export ", "text/plain; charset=utf-8"),
        ):
            answer = client.get(ENV, params=JOB, headers={"Accept": accept})
            assert answer.text.startswith(start)
            assert (answer.headers["content-type"], answer.headers["vary"].partition(",")[0]) == (media, "Accept")
        both = client.get(ENV, params={**JOB, "format": "dotenv"}, headers={"Accept": "application/json"})
        assert both.headers["content-type"] == "text/plain; charset=utf-8"


def test_the_client_waits_with_what_it_keeps(url, empty_store, tmp_path):
    words = {**SHAPE, "allow": ["simulated"], "cache_dir": tmp_path / "kept", "timeout_s": 240.0}
    first = fetch_env(url, **words)
    assert fetch_env(url, **words, wait_s=1) == first
    empty_store.publish(replace(empty_store.recommendation("0c0ffee1"), id="0c0ffeed", created=""))
    assert "0c0ffeed" in fetch_env(url, **words, wait_s=60).text

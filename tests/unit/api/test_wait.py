"""Requests that are held until there is news, and the agent that keeps a file by them."""

import contextlib
import threading
from dataclasses import replace

import httpx2 as httpx
import pytest

from ncclt.client.fetch import fetch_env
from ncclt.core.recommendation import Request, TimesOrigin
from ncclt.deliver.agent import MARK, keep_up_to_date, require_own
from ncclt.errors import ServerError, UsageError
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


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Ended(Exception):  # noqa: N818  ends an endless loop
    pass


def kept(url, *, ends_after=10**9, at_first=lambda: None, **options):
    """Run an agent until it has written so many texts, the first one seen by `at_first`; return texts and lines."""
    texts, lines = [], []

    def write(text):
        texts.append(text)
        if len(texts) == 1:
            at_first()
        if len(texts) == ends_after:
            raise Ended

    def pause(_seconds):
        raise Ended

    request = Request(**SHAPE, allowed=frozenset({TimesOrigin.SIMULATED}))
    options = {"format": "nccl-conf", "timeout_s": 30.0, "pause": pause, **options}
    with contextlib.suppress(Ended):
        keep_up_to_date(request, url, write=write, say=lines.append, **options)
    return texts, lines


def test_an_agent_writes_what_is_published_and_withdraws_what_is_stale(url, empty_store, own_cache):
    found = empty_store.recommendation("0c0ffee1")
    publishing = threading.Timer(1, lambda: empty_store.publish(replace(found, id="0c0ffeed", created="")))
    texts, lines = kept(url, ends_after=2, at_first=publishing.start)
    publishing.join()
    assert [text.startswith(MARK) for text in texts] == [True, True]
    assert ("0c0ffee1" in texts[0], "0c0ffeed" in texts[1], lines) == (True, True, [])

    request = Request(**{**SHAPE, "nodes": 4})
    withdrawn = []
    keep_up_to_date(request, url, format="dotenv", timeout_s=30, write=withdrawn.append, say=lines.append, once=True)
    assert withdrawn == [MARK + "# Nothing is set: NCCL's own choice stays.\n"]
    assert "measured with 2, asked for 4" in lines[0]


def test_while_the_server_is_away_the_file_stays(own_cache):
    texts, lines = kept("http://127.0.0.1:9")
    assert texts == []
    assert "nothing listens" in lines[0]
    assert "stays as it is" in lines[0]
    with pytest.raises(ServerError, match="nothing listens"):
        kept("http://127.0.0.1:9", once=True)


def test_a_file_of_someone_else_is_left_alone(tmp_path):
    require_own(tmp_path / "new")
    (tmp_path / "own").write_text(f"{MARK}NCCL_ALGO=x\n")
    require_own(tmp_path / "own")
    (tmp_path / "nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    for name in ("nccl.conf", "."):
        with pytest.raises(UsageError, match=r"not written by an agent|cannot be read"):
            require_own(tmp_path / name)

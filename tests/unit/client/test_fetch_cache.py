"""The cache of answers that carries a job over an outage."""

import json
import time
from types import SimpleNamespace

import pytest
from answering_server import GOOD, PROBLEM, SENT, reply, serving

from ncclt.client.fetch import MAX_ANSWER_BYTES, ClientError, fetch_env


def fetch(url, **options):
    return fetch_env(url, **{"cluster": "leonardo", "model": "bert", "timeout_s": 5.0, **options})


def test_an_outage_is_bridged_by_the_last_good_answer(tmp_path):
    state = SimpleNamespace(answer=reply())
    options = {"cache_dir": tmp_path / "cache", "fallback": "cached"}
    with serving(lambda handler: state.answer(handler)) as server:
        fetch(server.url, **options)
        state.answer = reply(503, "busy")
        bridged = fetch(server.url, **options)
        with pytest.raises(ClientError, match="503"):
            fetch(server.url, cache_dir=tmp_path / "cache")
        with pytest.raises(ClientError) as caught:
            fetch(server.url, nodes=3, **options)

    assert (bridged.text, bridged.source) == (GOOD, "cache")
    assert "using the answer of 20" in bridged.warning
    assert "nothing is cached for this request" in caught.value.hint
    assert fetch(server.url, **options).source == "cache"


def test_a_long_answer_comes_whole_out_of_the_cache(tmp_path):
    """JSON within JSON: each quote of the answer takes two bytes in the file."""
    long = json.dumps({**json.loads(SENT), "more": '"' * (MAX_ANSWER_BYTES // 3)})
    with serving(reply(200, long)) as server:
        assert fetch(server.url, format="json", cache_dir=tmp_path).source == "server"
    assert fetch(server.url, format="json", cache_dir=tmp_path, fallback="cached").source == "cache"


def test_a_server_that_says_no_is_believed_whatever_the_cache_holds(tmp_path):
    """What was withdrawn must not come back out of a cache."""
    state = SimpleNamespace(answer=reply())
    with serving(lambda handler: state.answer(handler)) as server:
        fetch(server.url, cache_dir=tmp_path, fallback="cached")
        state.answer = reply(404, json.dumps(PROBLEM), "application/problem+json")

        with pytest.raises(ClientError, match="nothing fits"):
            fetch(server.url, cache_dir=tmp_path, fallback="cached")


def test_an_unchanged_answer_is_not_sent_again(tmp_path):
    def answer(handler):
        unchanged = handler.headers.get("If-None-Match") == '"v1"'
        reply(304, "")(handler) if unchanged else reply(ETag='"v1"')(handler)

    with serving(answer) as server:
        first = fetch(server.url, cache_dir=tmp_path)
        second = fetch(server.url, cache_dir=tmp_path)

    assert first == second
    assert second.source == "server"
    assert server.seen[1].headers["If-None-Match"] == '"v1"'


def test_an_answer_for_one_job_alone_is_not_kept(tmp_path):
    with serving(reply(**{"Cache-Control": "private, no-store"})) as server:
        assert fetch(server.url, cache_dir=tmp_path, job="7").text == GOOD
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1}', None])
def test_a_damaged_cache_counts_as_none(tmp_path, damage):
    with serving(reply(ETag='"v1"')) as server:
        fetch(server.url, cache_dir=tmp_path)
        (path,) = tmp_path.iterdir()
        kept = json.loads(path.read_text())
        path.write_text(json.dumps({**kept, "text": "rm -rf ~\n", "etag": 7}) if damage is None else damage)

        assert fetch(server.url, cache_dir=tmp_path).text == GOOD
    assert "If-None-Match" not in server.seen[1].headers
    assert json.loads(path.read_text())["text"] == SENT


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path):
    (tmp_path / "file").touch()
    with serving(reply()) as server:
        fetched = fetch(server.url, cache_dir=tmp_path / "file" / "cache")

    assert fetched.text == GOOD
    assert "the answer is not cached" in fetched.warning


def test_the_cache_is_for_its_owner_alone(tmp_path):
    with serving(reply()) as server:
        fetch(server.url, cache_dir=tmp_path / "cache")

    (path,) = (tmp_path / "cache").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_an_unknown_fallback_is_refused():
    with pytest.raises(ClientError, match="unknown fallback"):
        fetch("http://127.0.0.1:9", fallback="yes")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (5400, "90 minutes old"),
        (7200, "2 hours old"),
        (86400 * 9.5, "9 days old"),
        (-60, "0 seconds old"),
    ],
)
def test_the_age_of_a_cached_answer_is_shown(tmp_path, monkeypatch, seconds, said):
    with serving(reply()) as server:
        fetch(server.url, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    saved = json.loads(path.read_text())["saved"]
    monkeypatch.setattr(time, "time", lambda: saved + seconds)
    assert said in fetch(server.url, cache_dir=tmp_path, fallback="cached").warning

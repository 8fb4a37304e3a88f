"""Uploads: read by a limited process, refused early where they are too long, and never half kept."""

import gzip
import io
import json
import zipfile
from dataclasses import replace

import pytest

from ncclt_api.middleware import MOST_BODY_BYTES, MOST_UPLOAD_BYTES
from ncclt_api.routes import uploads


@pytest.fixture
def client(empty_client):
    return empty_client


def upload(client, content, **query):
    return client.post("/v1/workloads", params={"name": "mine", **query}, content=content)


def names(client):
    return {one["name"] for one in client.get("/v1/workloads").json()["items"]}


def test_a_profile_is_kept_once(client):
    profile = client.get("/v1/workloads/bert").content
    first, second = (upload(client, profile) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json() == client.get("/v1/workloads/mine").json()
    assert first.json()["digest"] == json.loads(profile)["digest"]


def test_a_name_with_a_slash_has_its_page_and_its_document(client, empty_store):
    """An upload has none, but `ncclt profile import --name` takes it."""
    empty_store.workloads.add(replace(empty_store.workloads.get("bert"), name="team/mine"))
    assert client.get("/v1/workloads/team%2Fmine").json()["name"] == "team/mine"
    assert client.get("/workloads/team%2Fmine").status_code == 200


def test_a_trace_is_read_as_by_profile_import(client):
    table = b"collective,dtype,size_bytes,calls_per_step\nall_reduce,float32,1048576,12\n"
    answer = upload(client, table, source="csv")
    assert (answer.status_code, answer.json()["messages"][0]["calls_per_step"]) == (201, 12.0), answer.text


def test_what_is_no_trace_is_refused_with_a_reason(client, subtests):
    for content in [
        b"",
        b"[" * 100_000,
        b'{"messages": 1, "provenance": {}}',
        b'{"messages": [], "provenance": {"a": 1}}',
        gzip.compress(b"hello")[:-4],
    ]:
        with subtests.test(content=content):
            answer = upload(client, content)
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), (
                answer.text
            )
            assert answer.json()["hint"]
            assert "ncclt-upload-" not in answer.text
            assert "mine" not in names(client)


def _bombs():
    yield gzip.compress(b"[" + b"0," * (100 * 1024 * 1024))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", b"0" * (200 * 1024 * 1024))
    yield zipped.getvalue()


def test_bombs_are_refused(client):
    for bomb in _bombs():
        answer = upload(client, bomb)
        assert answer.status_code == 422
        assert f"{uploads.READ_S:.0f} s" not in answer.text, "it was refused for its size, not for its time"
    assert "mine" not in names(client)


@pytest.mark.parametrize(("limit", "value"), [("READ_S", 1.0), ("READ_BYTES", 128 * 1024**2)])
def test_a_reader_that_takes_too_much_is_ended(client, monkeypatch, limit, value):
    monkeypatch.setattr(uploads, limit, value)
    rows = b",".join(b'{"a": [1, 2, 3], "b": {"c": %d}}' % number for number in range(700_000))
    answer = upload(client, b'{"traceEvents": [' + rows + b"]}")
    assert (answer.status_code, "takes more than" in answer.json()["detail"]) == (422, True), answer.text
    assert "mine" not in names(client)


def test_an_upload_that_is_announced_too_long_is_not_read(client):
    answer = client.post("/v1/workloads?name=mine", content=b"", headers={"Content-Length": str(2**30)})
    assert answer.status_code == 413


def test_an_upload_that_grows_too_long_is_refused_on_the_way(client):
    sent = []

    def chunks():
        for _ in range(MOST_UPLOAD_BYTES // 2**20 + 50):
            sent.append(1)
            yield b"x" * 2**20

    assert client.post("/v1/workloads?name=mine", content=chunks()).status_code == 413


def test_other_routes_keep_their_limit(client):
    assert client.post("/v1/jobs", content=b"x" * (MOST_BODY_BYTES + 1)).status_code == 413


def test_names_are_plain(client, subtests):
    for name in ["", " ", "my job", "../x", "a/b", "-x", "a\n", "a\u202eb", "größe", "x" * 201]:
        with subtests.test(name=name):
            assert upload(client, b"x", name=name).status_code == 422

"""Tuning jobs over HTTP: queued once, refused with a reason, followed."""

import json
import re
import subprocess
import sys

import pytest
from fastapi.testclient import TestClient

from ncclt.core.tuning_job import JobEvent
from ncclt.errors import StoreError
from ncclt.store import job_queue, open_store
from ncclt_api import telemetry
from ncclt_api.app import create_app

JOB = {"cluster": "leonardo", "model": "bert"}


@pytest.fixture
def client(empty_client):
    return empty_client


def events(text):
    """Return (id, event, data) of server-sent events."""
    found = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_is_queued_and_found(client):
    answer = client.post("/v1/jobs", json={**JOB, "nodes": 2, "trials": 7, "priority": 2})
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/jobs/{job['id']}")
    assert (job["state"], job["nodes"], job["trials"], job["priority"]) == ("queued", 2, 7, 2)
    assert client.get(answer.headers["location"]).json() == job
    assert client.get("/v1/jobs", params={"cluster": "leonardo", "state": "queued"}).json()["items"] == [job]
    assert client.get("/v1/jobs", params={"cluster": "elsewhere"}).json()["items"] == []
    assert client.get("/v1/jobs", params={"state": "failed"}).json()["items"] == []
    assert client.get("/v1/jobs", params={"cursor": "nope"}).status_code == 422


def test_the_same_idempotency_key_queues_one_job(client):
    ask = {"headers": {"Idempotency-Key": "tuesday"}}
    first, second = (client.post("/v1/jobs", json=JOB, **ask) for _ in range(2))
    assert (first.status_code, second.status_code, first.json()) == (201, 200, second.json())
    other = client.post("/v1/jobs", json={**JOB, "trials": 3}, **ask)
    assert other.status_code == 409
    assert "take another one" in other.json()["hint"]
    assert len(client.get("/v1/jobs").json()["items"]) == 1
    assert client.post("/v1/jobs", json=JOB).json()["id"] != first.json()["id"]


def test_jobs_that_request_the_same_share_a_study(client):
    one, two, again, seeded = (
        client.post("/v1/jobs", json={**JOB, **more}).json()["study"] for more in ({}, {}, {"again": True}, {"seed": 1})
    )
    assert one == two
    assert len({one, again, seeded}) == 3


def test_what_cannot_be_tuned_is_refused_with_a_reason(client, subtests):
    for body, status, word in [
        ({"cluster": "leonardo"}, 422, "give one of model and profile"),
        ({**JOB, "profile": {}}, 422, "give one of model and profile"),
        ({**JOB, "cluster": "nowhere"}, 404, "nowhere"),
        ({**JOB, "model": "nothing"}, 404, "nothing"),
        ({**JOB, "trials": 0}, 422, "trials"),
        ({**JOB, "command": "rm"}, 422, "command"),
        ({"cluster": "leonardo", "profile": {}}, 422, "has no name"),
    ]:
        with subtests.test(body=body):
            answer = client.post("/v1/jobs", json=body)
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
            assert word in answer.json()["detail"]
            assert answer.json()["hint"]
            assert client.get("/v1/jobs").json()["items"] == []


def test_a_job_of_another_shape_than_a_recording_is_refused_as_tune_refuses_it(tmp_path):
    other = {**JOB, "cluster": "mi355x-2x8"}
    with open_store(f"sqlite:///{tmp_path}/store.db") as store, TestClient(create_app(store, fresh_s=0)) as client:
        refused = client.post("/v1/jobs", json={**other, "nodes": 4})
        said = "mi355x-2x8 was recorded with nodes=2, not 4 (mi355x-2x8 is a recorded cluster)"
        assert (refused.status_code, refused.json()["detail"]) == (422, said)
        assert refused.json()["hint"] == "leave nodes out, or name another cluster from GET /v1/clusters"
        assert client.post("/v1/jobs", json={**other, "nodes": 2}).status_code == 201


def test_a_job_is_cancelled_and_tried_again(client):
    id = client.post("/v1/jobs", json=JOB).json()["id"]
    too_early = client.post(f"/v1/jobs/{id}/retry")
    assert (too_early.status_code, "wait for its end" in too_early.json()["hint"]) == (409, True)
    assert client.post(f"/v1/jobs/{id}/cancel").json()["state"] == "cancelled"
    assert client.post(f"/v1/jobs/{id}/cancel").json()["state"] == "cancelled"
    first, second = (client.post(f"/v1/jobs/{id}/retry") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"] == f"{id}-2"
    client.post(f"/v1/jobs/{id}-2/cancel")
    assert client.post(f"/v1/jobs/{id}-2/retry").json()["id"] == f"{id}-3"


def test_figures_count_what_waits_and_how_long(client, monkeypatch):
    monkeypatch.setattr(telemetry, "_COUNTED_AGAIN_S", 0.0)
    cancelled = client.post("/v1/jobs", json=JOB).json()["id"]
    for trials in (7, 8):
        client.post("/v1/jobs", json={**JOB, "trials": trials})
    client.post(f"/v1/jobs/{cancelled}/cancel")
    text = client.get("/metrics").text
    assert "ncclt_queue_up 1.0" in text
    assert 'ncclt_jobs{cluster="leonardo",state="queued"} 2.0' in text
    waited = float(re.search(r'^ncclt_jobs_waiting_seconds{cluster="leonardo"} (\S+)$', text, re.MULTILINE)[1])
    assert 0 <= waited < 3600

    def away(_self):
        raise StoreError("away")

    monkeypatch.setattr(job_queue.JobQueue, "backlog", away)
    text = client.get("/metrics").text
    assert ("ncclt_queue_up 0.0" in text, "ncclt_jobs{" in text) == (True, False)


def test_an_unknown_job_is_a_404_everywhere(client):
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")):
        answer = client.request(method, f"/v1/jobs/nope{path}")
        assert (answer.status_code, "no job 'nope'" in answer.json()["detail"]) == (404, True)


def test_the_events_of_a_job_resume_behind_the_last_one(client, monkeypatch):
    id = client.post("/v1/jobs", json=JOB).json()["id"]
    client.post(f"/v1/jobs/{id}/cancel")
    written = [JobEvent(number=n, kind="log", data={"line": f"line {n} \udc80"}) for n in range(4)]

    async def replay(_queue, _id, *, first, pause_s=0.0):
        yield None
        for event in written[first:]:
            yield event

    monkeypatch.setattr(job_queue.JobQueue, "events", replay)
    answer = client.get(f"/v1/jobs/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert ": waiting" in answer.text
    found = events(answer.text)
    logged = [(str(number), "log") for number in range(4)]
    assert [(number, kind) for number, kind, _ in found] == [(None, "status"), *logged, (None, "end")]
    assert found[-1][2]["state"] == "cancelled"
    resumed = events(client.get(f"/v1/jobs/{id}/events", headers={"Last-Event-ID": "2"}).text)
    assert [number for number, _, _ in resumed] == [None, "3", None]
    assert client.get(f"/v1/jobs/{id}/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_an_uploaded_profile_is_kept_and_tuned(client):
    profile = client.get("/v1/workloads/bert").json() | {"name": "mine"}
    job = client.post("/v1/jobs", json={"cluster": "leonardo", "profile": profile})
    assert (job.status_code, job.json()["model"]) == (201, "mine")
    assert client.get("/v1/workloads/mine").json()["digest"] == profile["digest"]
    assert client.post("/v1/jobs", json={"cluster": "leonardo", "profile": profile}).status_code == 201
    profile["messages"] = profile["messages"][:1]
    other = client.post("/v1/jobs", json={"cluster": "leonardo", "profile": profile})
    assert (other.status_code, "already" in other.json()["detail"]) == (409, True)


def test_an_uploaded_profile_has_a_name_that_a_new_workload_may_have(client, subtests):
    for name in ["", "-x", "../x", "a\nb", "a\0b", "\ud800", "x" * 300_000]:
        with subtests.test(name=name):
            profile = client.get("/v1/workloads/bert").json() | {"name": name}
            body = json.dumps({"cluster": "leonardo", "profile": profile})
            answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, "cannot name a workload" in answer.json()["detail"]) == (422, True)
            assert len(answer.content) < 2000
            assert client.get("/v1/jobs").json()["items"] == []


def test_the_service_starts_without_the_queue_and_what_tunes():
    code = (
        "import sys, ncclt_api.app; ncclt_api.app.create_app('sqlite://'); "
        "print([name for name in ('torch', 'dbos', 'ncclt.measure', 'ncclt.pipeline') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_a_service_without_the_extra_says_so(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncclt.store.job_queue", None)
    monkeypatch.delattr("ncclt.store.job_queue", raising=False)
    answer = client.get("/v1/jobs")
    assert (answer.status_code, answer.json()["hint"]) == (503, "pip install 'ncclt[jobs]'")

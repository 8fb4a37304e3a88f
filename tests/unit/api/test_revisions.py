"""The life of a revision over HTTP: who may change it, what the answers to jobs then are, and how a roll-out ends."""

import threading
import time
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, hash_secret
from ncclt.core.revision import Actor, ClusterRules
from ncclt.core.rollout import ArmState, RollOutState, Variant
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_ticket, settle
from ncclt_api.app import create_app

ENV = "/v1/clusters/pair/env"
JOB = {"model": "toy", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.28.9", "format": "json", "simulated": "allow"}


@pytest.fixture
def store(tmp_path, profiles):
    with open_store(f"sqlite:///{tmp_path}/a.db", profiles=profiles) as opened:
        opened.revisions.publish(sample_recommendation("a"), by=Actor(who="key one"))
        yield opened


@pytest.fixture
def client(store):
    with TestClient(create_app(store, fresh_s=0)) as opened:
        yield opened


@pytest.fixture
def rollout(store):
    """A roll-out of the revision b to half of the jobs, whose control is a."""
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), Actor(who="ann"))
    store.revisions.publish(sample_recommendation("b"))
    return store.revisions.rollouts()[0]


def report(rollout, job, **fields):
    """Return the step time of a job, as it is sent."""
    revision = rollout.start(job, issued_s=0.0).recommendation
    values = {"rollout": rollout.id, "job": job, "recommendation": revision, "step_us": 1e5, "steps": 20}
    return values | fields


def ask(client, job):
    return client.get(ENV, params=JOB | {"job": job}).json()


def given(client, job=""):
    answer = client.get(ENV, params=JOB | ({"job": job} if job else {}))
    assert answer.status_code == 200, answer.text
    return answer.json()["recommendation"]


def test_a_change_is_seen_by_the_next_request(store, client):
    store.revisions.publish(sample_recommendation("b"))
    assert given(client) == "b"
    answer = client.post("/v1/recommendations/a/rollback", json={"why": "b is slower on rack 7"})
    assert (answer.status_code, answer.json()["state"]) == (200, "active")
    assert given(client) == "a"
    (first, *_) = client.get("/v1/history?recommendation=a").json()["items"]
    assert (first["action"], first["why"], first["who"]) == (
        "rolled-back",
        "b is slower on rack 7",
        "local user of the service",
    )
    assert client.get("/v1/history?cluster=pair&limit=1").json()["items"] == [first]
    assert client.get("/v1/recommendations/b/state").json()["state"] == "retired"


def test_another_key_than_the_publishers_approves(store, client):
    for name in ("one", "two"):
        store.keys.add(ApiKey(id=name, role=Role.APPROVE), digest=hash_secret(name))
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), Actor(who="ann"))
    store.revisions.publish(sample_recommendation("b"), by=Actor(who="key one"))

    def approve(name):
        return client.post("/v1/recommendations/b/approve", json={}, headers={"Authorization": f"Bearer {name}"})

    refused = approve("one")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:ncclt:problem:conflict")
    assert "requires another person" in refused.json()["detail"]
    assert approve("two").json()["state"] == "active"
    again = approve("two")
    assert (again.status_code, "key two did that at" in again.json()["detail"]) == (409, True)


def test_the_rules_of_a_cluster_are_read_and_set(store, client):
    store.clusters.add(replace(sample_cluster(), name="pair"))
    assert client.get("/v1/clusters/pair/rules").json()["percent"] == 100
    answer = client.put("/v1/clusters/pair/rules", json={"percent": 10, "require_approval": True})
    assert answer.json() | {"schema": 1} == client.get("/v1/clusters/pair/rules").json()
    assert store.revisions.rules("pair") == ClusterRules(cluster="pair", percent=10, require_approval=True)
    assert client.put("/v1/clusters/pair/rules", json={"percents": 10}).status_code == 422
    for unknown in (client.put("/v1/clusters/nope/rules", json={}), client.get("/v1/clusters/nope/rules")):
        assert (unknown.status_code, unknown.json()["detail"]) == (404, "there is no cluster 'nope'")
    assert client.get("/v1/history?cluster=nope").status_code == 404


def test_a_cluster_that_is_switched_off_answers_with_nccls_own_choice(store, client):
    store.clusters.add(replace(sample_cluster(), name="pair"))
    on = client.get(ENV, params=JOB)
    for delivery, reason in ((False, "DISABLED"), (True, "TARGETING_MATCH")):
        assert client.put("/v1/clusters/pair/rules", json={"delivery": delivery}).json()["delivery"] is delivery
        answer = client.get(ENV, params=JOB)
        assert (answer.status_code, answer.headers["x-ncclt-reason"]) == (200, reason)
        assert answer.json()["reason"] == reason
        assert (answer.headers["etag"] == on.headers["etag"]) is delivery
        assert bool(answer.json()["variables"] or answer.json()["table"]) is delivery


def test_a_roll_out_is_the_same_for_every_rank_and_ends_by_itself(store, client):
    store.revisions.publish(sample_recommendation("b"), for_rollout=True)
    body = {"percent": 50, "max_cost": 1.0}
    assert client.post("/v1/recommendations/b/approve", json=body).json()["rollouts"][0]["max_cost"] == 1.0
    (rollout,) = store.revisions.rollouts()
    assert "seed" not in client.get("/v1/recommendations/b/state").json()["rollouts"][0]
    assert given(client) == "a", "without a name a job has no part in it"
    for number in range(100):
        job = f"job {number}"
        answers = [client.get(ENV, params=JOB | {"job": job}) for _ in range(2)]
        assert answers[0].text == answers[1].text
        document, head = answers[0].json(), answers[0].headers
        wanted = "a" if rollout.find_arm(job) is None else "b"
        variant = {"b": Variant.CANDIDATE, "a": Variant.ACTIVE}[wanted]
        assert (document["recommendation"], document["rollout"]) == (wanted, rollout.id)
        assert (head["cache-control"], head["x-ncclt-variant"]) == ("no-store", variant.value)
        table = client.get(ENV, params=JOB | {"job": job, "format": "tuner-csv"}).text
        assert f"id={wanted} " in table
        reported = report(rollout, job, ticket=document["ticket"], step_us=10 * (1.1 if wanted == "b" else 1))
        answer = client.post("/v1/step-times", json=reported)
        assert answer.status_code == 200, answer.text
        progress, again = answer.json(), client.post("/v1/step-times", json=reported | {"step_us": 1.0}).json()
        assert (again["state"], again["gpu_h"]) == (progress["state"], progress["gpu_h"])
        if progress["state"] != "running":
            break
    assert progress["state"] == "lost"
    assert number < 80
    assert {given(client, f"later {n}") for n in range(20)} == {"a"}
    assert client.get("/v1/history?recommendation=b").json()["items"][0]["who"] == "guard"
    assert 'ncclt_rollouts{cluster="pair",state="lost"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"rollout": "x"}, 404),
        ({"recommendation": "z"}, 409),
        *(({"step_us": step_us}, 422) for step_us in (-1, 6e7)),
        *(({"job": job}, 422) for job in ("", "a\nb", "2")),
        *(({"ticket": ticket}, 422) for ticket in ("", "a.b")),
        ({"steps": 0}, 422),
        ({"more": 1}, 422),
    ],
)
def test_a_step_time_that_cannot_be_is_refused(store, client, rollout, change, status):
    document = report(rollout, "1", ticket=ask(client, "1")["ticket"]) | change
    assert client.post("/v1/step-times", json=document).status_code == status
    assert store.revisions.job_times(rollout.id) == ()


def test_made_up_jobs_end_no_roll_out(store, client, rollout):
    """22 names that never asked were enough to give a candidate to all jobs."""
    for number in range(22):
        job = f"made up {number}"
        answer = ask(client, job)
        step_us = 1e5 if answer["recommendation"] == "b" else 2e5
        made_up = report(rollout, job, recommendation=answer["recommendation"], steps=10**6, step_us=step_us)
        assert client.post("/v1/step-times", json=made_up).status_code == 422
        refused = client.post("/v1/step-times", json=made_up | {"ticket": answer["ticket"]})
        assert (refused.status_code, "the job started" in refused.json()["detail"]) == (422, True)
    assert store.revisions.rollout(rollout.id).state is RollOutState.RUNNING
    assert store.revisions.job_times(rollout.id) == ()


def test_a_report_is_kept_with_key_and_address(store, client, rollout):
    store.keys.add(ApiKey(id="one", role=Role.ENV), digest=hash_secret("one"))
    document, issued_s = report(rollout, "1"), time.time() - 100
    ids = {"recommendation": document["recommendation"], "rollout": rollout.id}
    document["ticket"] = sample_ticket(store.ticket_secret(), "1", issued_s=issued_s, **ids)
    answer = client.post("/v1/step-times", json=document, headers={"Authorization": "Bearer one"})
    assert answer.status_code == 200, answer.text
    (time_kept,) = store.revisions.job_times(rollout.id)
    assert (time_kept.who, time_kept.address, 100 <= time_kept.waited_s < 200) == ("key one", "testclient", True)


def test_starts_are_stored_once_the_database_is_back(store, rollout, monkeypatch):
    """Answers go on while it is away; what they began is noted later."""
    monkeypatch.setattr("ncclt_api.tickets._RETRY_S", 0.01)
    tried, really = threading.Event(), store.revisions.add_job_starts

    def away(starts):
        tried.set()
        raise StoreError("away")

    with TestClient(create_app(store, fresh_s=0)) as client:
        monkeypatch.setattr(store.revisions, "add_job_starts", away)
        one, two, *_ = [job for job in map(str, range(30)) if rollout.find_arm(job) is None]
        tickets = [ask(client, job)["ticket"] for job in (one, two, one)]
        assert tickets[0] == tickets[2] != tickets[1]
        assert tried.wait(10)
        assert store.revisions.job_starts(rollout.id) == ()
        monkeypatch.setattr(store.revisions, "add_job_starts", really)
    started = [(start.job, start.recommendation) for start in store.revisions.job_starts(rollout.id)]
    assert started == [(one, "a"), (two, "a")]


def test_a_job_of_an_arm_gets_the_control_while_the_database_is_away(store, rollout, monkeypatch):
    """A start that cannot be noted gets the control, because a hang would go unseen; earlier starts keep their arm."""
    early, late, *_ = [job for job in map(str, range(30)) if rollout.find_arm(job) == 0]
    with TestClient(create_app(store, fresh_s=0)) as client:

        def served(job):
            document = ask(client, job)
            return document["recommendation"], document["rollout"], document["variant"]

        assert served(early) == ("b", rollout.id, "candidate")

        def away(*_, **__):
            raise StoreError("away")

        monkeypatch.setattr(store.revisions, "claim_start", away)
        assert served(late) == ("a", "", "active")
        assert served(early) == ("b", rollout.id, "candidate")


def test_replicas_give_a_job_one_arm_whatever_happens_to_it(store, rollout):
    """A rank that asks another replica after the arm was dropped must not get the control."""
    jobs = [job for job in map(str, range(30)) if rollout.find_arm(job) == 0]
    with TestClient(create_app(store, fresh_s=0)) as one, TestClient(create_app(store, fresh_s=0)) as two:
        given = [ask(client, job) for job in jobs for client in (one, two)]
    assert [document["ticket"] for document in given[::2]] == [document["ticket"] for document in given[1::2]]
    assert [document["recommendation"] for document in given[::2]] == ["b", "b"] + ["a"] * (len(jobs) - 2)


def test_a_win_awaits_approval_which_gives_it_to_all(store, client, rollout):
    settle(store, rollout, ArmState.WON, "faster")
    life = client.get("/v1/recommendations/b/state").json()
    assert (life["state"], life["rollouts"][0]["state"]) == ("candidate", "won")
    assert {given(client, f"job {n}") for n in range(50)} == {"a", "b"}
    assert client.post("/v1/recommendations/b/approve", json={"percent": 50}).status_code == 409
    life = client.post("/v1/recommendations/b/approve", json={}).json()
    assert (life["state"], life["rollouts"][0]["state"]) == ("active", "promoted")


@pytest.mark.usefixtures("rollout")
def test_roll_outs_are_listed_with_their_state_and_shown_with_their_progress(client):
    (listed,) = client.get("/v1/roll-outs?cluster=pair&state=running").json()["items"]
    shown = client.get(f"/v1/roll-outs/{listed['id']}").json()
    assert {**shown, "progress": None} == {**listed, "progress": None}
    assert shown["progress"]["rollout"] == listed["id"]
    assert [arm["recommendation"] for arm in shown["progress"]["arms"]] == ["b"]
    assert "seed" not in shown
    assert client.get("/v1/roll-outs?state=lost").json() == {"next_cursor": None, "items": []}
    assert client.get("/v1/roll-outs/none").status_code == 404


def test_a_roll_out_is_paused_and_resumed(store, client, rollout):
    job = next(f"job {n}" for n in range(50) if rollout.start(f"job {n}", issued_s=0.0).recommendation == "b")
    path = f"/v1/roll-outs/{rollout.id}"
    assert client.post(f"{path}/pause", json={"why": "rack 7"}).json()["state"] == "paused"
    assert given(client, job) == "a"
    assert client.post(f"{path}/pause", json={}).status_code == 409
    assert [one["id"] for one in client.get("/v1/roll-outs?state=paused").json()["items"]] == [rollout.id]
    assert client.post(f"{path}/resume", json={}).json()["state"] == "running"
    events = client.get("/v1/history?recommendation=b&limit=2").json()["items"]
    assert [(one["action"], one["why"]) for one in events] == [("roll-out-resumed", ""), ("roll-out-paused", "rack 7")]


def test_an_answer_names_the_roll_outs_that_the_request_ended(store, client, rollout):
    assert client.post("/v1/recommendations/a/pin", json={}).json()["ended_rollouts"] == [rollout.id]
    assert client.get("/v1/recommendations/a/state").json()["ended_rollouts"] == []

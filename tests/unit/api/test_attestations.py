"""Attestations: told once, checked in every part, shown with the recommendation."""

import time
from dataclasses import replace

import pytest

from ncclt.testing.samples import sample_ticket
from ncclt_api.middleware import MOST_BODY_BYTES

URL = "/v1/attestations"
KNOWN = "0c0ffee2"  # published in the samples, and nothing was told of it


@pytest.fixture
def document(samples, filled_store):
    """A new attestation, as `ncclt attest --json` prints it."""
    return samples.attestation(filled_store.recommendations.get(KNOWN)).to_document()


def ticket(store, job="1", *, recommendation=KNOWN, issued_s=None, cluster="leonardo"):
    """Return what is sent with an attestation."""
    issued_s = time.time() if issued_s is None else issued_s
    secret = store.ticket_secret()
    return {"ticket": sample_ticket(secret, job, issued_s=issued_s, recommendation=recommendation, cluster=cluster)}


def test_what_is_told_is_kept_once_and_listed(own_client, empty_store, document):
    assert own_client.get(URL, params={"recommendation": KNOWN}).json()["items"] == []
    proof = ticket(empty_store)
    first = own_client.post(URL, json=document | proof)
    again = own_client.post(URL, json={**document, **proof, "created": "2027-01-01T00:00:00+00:00"})

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == document["id"]
    (kept,) = own_client.get(URL, params={"recommendation": KNOWN}).json()["items"]
    assert kept == document | {"created": "2026-11-20T12:00:00.000+00:00"}
    assert kept["effect"] == "partly"


def test_an_attestation_counts_only_with_a_ticket_of_its_job(own_client, samples, empty_store, document):
    for wrong, said in (
        ({}, "ticket"),
        ({"ticket": "made.up"}, "no"),
        (ticket(empty_store, recommendation="0c0ffee1"), "was given 0c0ffee1, not 0c0ffee2"),
        (ticket(empty_store, recommendation=""), "was given nothing"),
        (ticket(empty_store, cluster="other"), "was given"),
        (ticket(empty_store, issued_s=1.0), "expired"),
    ):
        refused = own_client.post(URL, json=document | wrong)
        assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text
    assert own_client.get(URL, params={"recommendation": KNOWN}).json()["items"] == []
    proof = ticket(empty_store)
    assert own_client.post(URL, json=document | proof).status_code == 201
    other = samples.attestation(empty_store.recommendations.get(KNOWN), differing=0).to_document()
    second = own_client.post(URL, json=other | proof)
    assert (second.status_code, "was attested already" in second.json()["detail"]) == (409, True)
    assert own_client.post(URL, json=other | ticket(empty_store, "2")).status_code == 201


def test_what_is_wrong_is_refused_as_a_problem(client, filled_store, document, subtests):
    for change, status, said in [
        ({"recommendation": "none"}, 404, "no recommendation 'none'"),
        ({"model": "other"}, 422, "is for resnet101 on leonardo"),
        ({"effect": "took-effect"}, 422, "does not have the id of its content"),
        ({"effect": "splendid"}, 422, "effect"),
        ({"calls_as_wanted": -1}, 422, "calls_as_wanted"),
        ({"reason": "x" * 5000}, 422, "reason"),
        ({"notes": ["x"] * 101}, 422, "notes"),
        ({"rows": [{}]}, 422, "rows"),
        ({"rows": [{**document["rows"][0], "script": "x"}]}, 422, "script"),
    ]:
        with subtests.test(change=change):
            answer = client.post(URL, json=document | ticket(filled_store) | change)
            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"
            assert said in answer.json()["detail"]
            assert client.get(URL, params={"recommendation": KNOWN}).json()["items"] == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_request_that_is_too_long_is_not_read(client, announced):
    """Whether its length stands in the head or not."""
    piece = b" " * 65536
    body = piece * (MOST_BODY_BYTES // len(piece) + 1)
    content = body if announced else (piece for _ in range(MOST_BODY_BYTES // len(piece) + 1))
    answer = client.post(URL, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_recommendation_carries_what_jobs_told(client):
    (listed,) = client.get("/v1/recommendations?model=bert").json()["items"]
    one = client.get("/v1/recommendations/0c0ffee1").json()
    of_study = client.get("/v1/studies/5e1f00aa").json()["recommendations"][0]

    assert one == of_study
    assert listed.items() <= one.items()
    assert [row["effect"] for row in one["attestations"]] == ["partly", "took-effect"]
    assert one["verifications"][0]["verdict"]["speedup"] == 1.05
    assert client.get("/v1/recommendations/none").status_code == 404


def test_the_json_of_a_page_hides_commands_and_environments(own_client, empty_store, samples):
    found = empty_store.recommendations.get("0c0ffee1")
    secrets = {"argv": ("train.py", "--token=hush"), "base_env": (("TOKEN", "hush"),), "tuned_env": (("A", "hush"),)}
    empty_store.records.add_verification(replace(samples.verification(found), id="hidden", **secrets))
    view = own_client.get("/studies/5e1f00aa?format=json")
    newest = view.json()["verifications"][0]
    assert (newest["id"], newest["verdict"]["speedup"]) == ("hidden", 1.05)
    assert "hush" not in view.text


def test_the_pages_show_it(client):
    page = client.get("/studies/5e1f00aa?tab=jobs").text
    assert "In real jobs" in page
    assert '<span class="badge tuned">took effect</span>' in page
    assert "40 of 43 calls with a rule used its choice" in page
    assert "does not offer this choice" in page
    assert "Step speed-up" in page
    assert "1.050×" in page
    assert "in a job: partly" in client.get("/").text
    assert "No reports yet" in client.get("/studies/7a6bbb02?tab=jobs").text

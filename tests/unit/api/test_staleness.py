"""A stale recommendation: refused with its reason, and shown as what it is."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from ncclt.core.recommendation import Decision
from ncclt.core.revision import Actor
from ncclt_api.app import create_app

ENV = "/v1/clusters/leonardo/env"
JOB = {"nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "simulated": "allow"}


@pytest.fixture
def service(samples, empty_store):
    """The service on a store of its own."""
    samples.fill(empty_store)
    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        yield client


@pytest.fixture
def stale(service, samples, empty_store):
    """The service, whose tuned recommendation was found stale."""
    samples.make_stale(empty_store, "0c0ffee1", reason="NCCL is 2.30.7 here and was 2.22.3")
    return service


def test_it_is_gone_with_the_reason_and_what_to_do(stale):
    answer = stale.get(ENV, params={"model": "bert", **JOB})

    assert answer.status_code == 410
    problem = answer.json()
    assert problem["type"] == "urn:ncclt:problem:stale-recommendation"
    assert "NCCL is 2.30.7 here" in problem["detail"]
    assert problem["hint"] == "POST /v1/jobs/stale measures it again"


def test_lists_and_pages_say_so(stale):
    (found,) = stale.get("/v1/recommendations?model=bert").json()["items"]
    assert "2.30.7" in found["stale"]
    page = stale.get("/studies/5e1f00aa").text
    assert "No longer served: the recheck of 2026-11-21 10:00 found: NCCL is 2.30.7 here" in page
    assert "ncclt env --server" not in page
    assert '<span class="badge failed">stale</span>' in stale.get("/").text


def test_an_undecided_one_is_no_answer_and_is_shown_as_open(service, samples, empty_store):
    verdict = replace(samples.verdict(), decision=Decision.UNDECIDED, reason="no gain is proven and none refuted")
    first = empty_store.recommendations.get("0c0ffee1")
    both = {name: replace(getattr(first, name), verdict=verdict) for name in ("table", "variables")}
    empty_store.revisions.retire(
        "0c0ffee1", Actor(who="ann")
    )  # else it stays active: an undecided one displaces no proof
    empty_store.revisions.publish(replace(first, id="0c0ffee9", created="2099-01-01T00:00:00", **both))

    answer = service.get(ENV, params={"model": "bert", **JOB})
    assert answer.status_code == 404
    assert "is undecided: no gain is proven" in answer.json()["detail"]
    page = service.get("/studies/5e1f00aa").text
    assert '<span class="badge undecided">undecided</span>' in page
    assert "the A/B test is undecided: no gain is proven" in page

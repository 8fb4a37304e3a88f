"""Rules by which workloads are tuned again, over HTTP."""

import pytest
from fastapi.testclient import TestClient

from ncclt_api.app import create_app

RULE = {"cluster": "leonardo", "model": "bert", "stale": True, "every_days": 90}


@pytest.fixture
def service(empty_store):
    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        client.store = empty_store
        yield client


def test_a_rule_is_stored_replaced_listed_and_removed(service):
    made = service.put("/v1/rules/weekly", json={**RULE, "nodes": 2, "nccl_version": "22203"})
    assert (made.status_code, made.json()["id"], made.json()["nccl_version"]) == (201, "weekly", "2.22.3")
    (stored,) = service.store.job_rules()
    assert (stored.job.nodes, stored.stale, stored.every_days, stored.fingerprint_changed) == (2, True, 90, False)
    again = service.put("/v1/rules/weekly", json={**RULE, "every_days": 7})
    assert (again.status_code, again.json()["every_days"], again.json()["created"]) == (200, 7, stored.created)
    assert service.get("/v1/rules").json() == {"items": [again.json()]}
    assert service.get("/v1/rules", params={"cluster": "leonardo"}).json() == {"items": [again.json()]}
    assert service.get("/v1/rules", params={"cluster": "elsewhere"}).json() == {"items": []}
    removed = service.delete("/v1/rules/weekly")
    assert (removed.status_code, removed.content) == (204, b"")
    assert service.get("/v1/rules").json() == {"items": []}
    assert service.delete("/v1/rules/weekly").status_code == 404


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"stale": False, "every_days": None}, 422, "a rule needs a reason"),
        ({"cluster": "nowhere"}, 404, "nowhere"),
        ({"model": "nothing"}, 404, "nothing"),
        ({"every_days": 0}, 422, "every_days"),
        ({"priority": 10}, 422, "priority"),
        ({"command": "rm"}, 422, "command"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(service, change, status, word):
    answer = service.put("/v1/rules/mine", json=RULE | change)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert word in answer.json()["detail"]
    assert service.store.job_rules() == ()


def test_an_id_is_short_and_plain(service):
    assert service.put(f"/v1/rules/{'x' * 41}", json=RULE).status_code == 422
    assert service.put("/v1/rules/a%20b", json=RULE).status_code == 422

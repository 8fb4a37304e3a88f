"""What one client may ask for in a minute, and that jobs get their environments whatever else happens."""

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import ApiKey, Role, digest_of
from ncclt_api.app import create_app
from ncclt_api.rate_limits import Limits, _address_of

ENV = "/v1/clusters/leonardo/env?model=bert&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow"
LARGE = "/v1/studies/5e1f00aa/trials"


@pytest.fixture
def service(empty_store):
    for name in ("one", "two"):
        empty_store.add_key(ApiKey(id=name, role=Role.ADMIN), digest=digest_of(name))
    limits = Limits(reports=3, writes=2, large=2, wrong_keys=2)
    with TestClient(create_app(empty_store, fresh_s=0, limits=limits)) as client:
        yield client


def ask(service, method, path, key="one"):
    return service.request(method, path, headers={"Authorization": f"Bearer {key}"}, json={})


def statuses(service, method, path, times, key="one"):
    return [ask(service, method, path, key).status_code for _ in range(times)]


@pytest.mark.parametrize(
    ("method", "path", "most", "before"),
    [
        ("POST", "/v1/jobs", 2, 422), ("PUT", "/v1/clusters/nope/rules", 2, 404), ("POST", "/v1/step-times", 3, 422),
        ("GET", LARGE, 2, 404), ("HEAD", LARGE, 2, 404), ("DELETE", "/v1/jobs", 2, 405),
    ],
)  # fmt: skip
def test_each_key_has_limits_of_its_own(service, method, path, most, before):
    assert statuses(service, method, path, most + 2) == [before] * most + [429] * 2
    assert ask(service, method, path, "two").status_code == before


def test_a_refusal_says_when_to_come_again(service):
    statuses(service, "POST", "/v1/jobs", 2)
    refused = ask(service, "POST", "/v1/jobs")
    assert refused.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["detail"] == "more than 2 writes a minute"
    assert refused.json()["type"] == "urn:ncclt:problem:too-many-requests"
    assert refused.headers["x-request-id"] == refused.json()["request_id"]


def test_writes_reports_and_large_answers_are_counted_apart(service):
    statuses(service, "POST", "/v1/jobs", 3)
    assert ask(service, "POST", "/v1/step-times").status_code == 422
    assert ask(service, "GET", LARGE).status_code == 404


def test_wrong_keys_are_counted_by_address_and_a_right_one_is_answered(service):
    tried = [ask(service, "GET", "/v1/clusters", f"guess {n}") for n in range(4)]
    assert [answer.status_code for answer in tried] == [401, 401, 429, 429]
    assert (tried[-1].json()["detail"], "retry-after" in tried[-1].headers) == ("more than 2 wrong keys a minute", True)
    assert "www-authenticate" not in tried[-1].headers
    assert ask(service, "GET", "/v1/clusters").status_code == 200


def test_environments_of_jobs_are_not_counted_at_all(filled_store):
    with TestClient(create_app(filled_store, limits=Limits(reports=1, writes=1, large=1, wrong_keys=1))) as client:
        assert {client.get(ENV).status_code for _ in range(100)} == {200}


@pytest.mark.parametrize(
    ("host", "counted"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("testclient", "testclient")],
)
def test_an_address_of_ipv6_is_counted_by_its_network(host, counted):
    assert _address_of({"client": (host, 1)}) == counted
    assert _address_of({"client": None}) == ""

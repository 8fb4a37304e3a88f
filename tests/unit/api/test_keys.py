"""Keys by the API: created once with their secret, listed without it, revoked at once, never beyond one's clusters."""

import pytest
from fastapi.testclient import TestClient

from ncclt.core.api_key import PREFIX, ApiKey, Role, hash_secret
from ncclt_api.app import create_app

ADMIN, OF_LEONARDO = f"{PREFIX}admin", f"{PREFIX}leonardo"


@pytest.fixture
def service(empty_store):
    for secret, clusters in ((ADMIN, ()), (OF_LEONARDO, ("leonardo",))):
        key = ApiKey(id=secret[-8:], role=Role.ADMIN, clusters=clusters)
        empty_store.keys.add(key, digest=hash_secret(secret))
    with TestClient(create_app(empty_store, fresh_s=0)) as client:

        def ask(method, path, *, secret=ADMIN, **options):
            return client.request(method, path, headers={"Authorization": f"Bearer {secret}"}, **options)

        yield ask


def test_created_key_works_until_it_is_revoked(service):
    created = service("POST", "/v1/keys", json={"role": "read", "note": "grafana", "days": 90})
    key = created.json()
    assert (created.status_code, created.headers["Cache-Control"]) == (201, "no-store")
    assert service("GET", "/v1/studies", secret=key["secret"]).status_code == 200
    assert service("GET", "/v1/keys", secret=key["secret"]).status_code == 403
    listed = service("GET", "/v1/keys").json()["items"]
    assert [one["note"] for one in listed if one["id"] == key["id"]] == ["grafana"]
    assert key["secret"] not in str(listed)
    assert service("DELETE", f"/v1/keys/{key['id']}").json()["revoked"]
    assert service("GET", "/v1/studies", secret=key["secret"]).status_code == 401
    assert service("DELETE", "/v1/keys/none").status_code == 404
    last, before = service("GET", "/v1/history?limit=2").json()["items"]
    assert (last["action"], last["who"], last["why"]) == ("key-revoked", f"key {ADMIN[-8:]}", key["id"])
    assert (before["action"], before["why"]) == ("key-created", f"{key['id']}: read, grafana")


def test_key_of_a_cluster_creates_and_sees_no_others(service):
    whole = service("POST", "/v1/keys", json={"role": "read"}).json()
    refused = service("POST", "/v1/keys", json={"role": "env"}, secret=OF_LEONARDO)
    assert (refused.status_code, refused.json()["hint"]) == (403, "name `clusters` of the new key")
    elsewhere = service("POST", "/v1/keys", json={"role": "read", "clusters": ["mi355x-2x8"]}, secret=OF_LEONARDO)
    assert elsewhere.status_code == 404
    own = service("POST", "/v1/keys", json={"role": "read", "clusters": ["leonardo"]}, secret=OF_LEONARDO).json()
    seen = {one["id"] for one in service("GET", "/v1/keys", secret=OF_LEONARDO).json()["items"]}
    assert own["id"] in seen
    assert whole["id"] not in seen
    assert service("DELETE", f"/v1/keys/{whole['id']}", secret=OF_LEONARDO).status_code == 404


def test_key_that_cannot_be_is_refused(service):
    for body in ({"role": "root"}, {"days": 0}, {"note": "x" * 201}, {"note": "a\nb"}, {"cluster": "leonardo"}):
        assert service("POST", "/v1/keys", json={"role": "read", **body}).status_code == 422, body
    assert service("POST", "/v1/keys", json={}).status_code == 422


def test_first_key_is_not_made_by_the_api(empty_store):
    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        refused = client.post("/v1/keys", json={"role": "admin"})
        assert (refused.status_code, "--first-key" in refused.json()["hint"]) == (403, True)
        assert client.get("/v1/keys").json()["items"] == []

"""Liveness and readiness."""

from fastapi.testclient import TestClient

from ncclt.errors import StoreError
from ncclt.store import Migration
from ncclt_api.app import create_app


class BrokenStore:
    """A store whose database is gone."""

    optuna_url = "sqlite:///gone.db"

    def ping(self):
        raise StoreError("the database is gone", hint="start it again")


class OldStore:
    """A store whose tables are behind."""

    def ping(self):
        pass

    def migration(self):
        return Migration(current="0001", head="0002")


def test_a_healthy_service_is_alive_and_ready(client):
    assert client.get("/healthz").json()["status"] == "ok"
    ready = client.get("/readyz").json()
    assert ready["status"] == "ready"
    assert ready["migration"]


def test_without_its_store_the_service_is_alive_but_not_ready():
    with TestClient(create_app(BrokenStore())) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["hint"] == "start it again"


def test_tables_that_are_behind_are_not_ready_and_the_hint_says_what_to_do():
    with TestClient(create_app(OldStore())) as client:
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "0001" in answer.json()["detail"]
    assert "ncclt store migrate" in answer.json()["hint"]


def test_the_app_opens_and_closes_a_store_given_by_its_url(tmp_path):
    app = create_app(f"sqlite:///{tmp_path}/fresh.db")
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200
    assert (tmp_path / "fresh.db").exists()

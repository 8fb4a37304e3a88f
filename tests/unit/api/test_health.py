"""Liveness and readiness."""

import subprocess
import sys

import psycopg
import pytest
from fastapi.testclient import TestClient

from ncclt.errors import StoreError
from ncclt.store import open_service_store, open_store, open_to_read
from ncclt.store.recommendations import Recommendations
from ncclt_api.app import create_app


class BrokenStore:
    """A store whose database is gone."""

    optuna_url = "sqlite:///gone.db"

    def __init__(self):
        self.recommendations = self

    def changes(self, _since):
        raise StoreError("the database is gone", hint="start it again")

    def migration(self):
        raise StoreError("the database is gone", hint="start it again")


class OldStore:
    """A store whose tables are behind."""

    def __init__(self):
        self.recommendations = self

    def changes(self, since):
        return since, frozenset()

    def migration(self):
        return "0001"


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


def test_without_its_store_the_service_is_ready_while_it_keeps_answers(samples, empty_store, monkeypatch):
    """Otherwise all replicas would leave the load balancer at once, and jobs that start would get nothing."""
    samples.fill(empty_store)
    job = {"model": "bert", "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "simulated": "allow"}
    with TestClient(create_app(empty_store, fresh_s=0)) as client:
        assert client.get("/v1/clusters/leonardo/env", params={**job, "job": "first"}).status_code == 200

        def away(*_given, **_named):
            raise StoreError("the database is gone")

        monkeypatch.setattr(empty_store, "migration", away)
        for name in ("changes", "newest"):
            monkeypatch.setattr(Recommendations, name, away)
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["away"]) == (200, ["database"])
        for n in range(100):
            assert client.get("/v1/clusters/leonardo/env", params={**job, "job": f"new{n}"}).status_code == 200
        assert client.get("/v1/clusters/leonardo/env", params={**job, "nodes": 3}).status_code == 503


def test_tables_that_are_behind_are_not_ready_and_the_hint_says_what_to_do():
    with TestClient(create_app(OldStore())) as client:
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "0001" in answer.json()["detail"]
    assert "ncclt admin store migrate" in answer.json()["hint"]


def test_the_app_opens_and_closes_a_store_given_by_its_url(tmp_path):
    url = f"sqlite:///{tmp_path}/old.db"
    (tmp_path / "old.db").touch()  # an empty file is a store that is yet to be migrated
    with TestClient(create_app(url)) as client:
        assert client.get("/readyz").status_code == 200
    open_to_read(url).close()


@pytest.mark.parametrize("name", ["typo.db", "no/such/folder/typo.db"])
def test_a_named_store_that_does_not_exist_is_not_served_as_an_empty_one(tmp_path, name):
    with pytest.raises(StoreError, match="there is no store at") as refused:
        open_service_store(f"sqlite:///{tmp_path}/{name}")
    assert "ncclt admin store migrate" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_postgresql_without_tables_is_refused_at_the_start(postgresql):
    with psycopg.connect(postgresql.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE health")
    url = postgresql.get_uri(database="health")
    with pytest.raises(StoreError, match=r"^the store postgresql.* has no tables yet$") as refused:
        open_service_store(url)
    assert refused.value.hint == "run `ncclt admin store migrate` with the same --storage"
    with pytest.raises(StoreError, match="no tables yet"), TestClient(create_app(url)):
        pass
    open_store(url).close()
    open_service_store(url).close()


def test_no_request_imports_a_part_of_sqlalchemy_that_others_look_into(empty_store):
    code = f"""
import sys
from ncclt.store import open_service_store
open_service_store({empty_store.url!r}).close()
assert "sqlalchemy.orm" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_users_own_store_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with open_service_store(None) as store:
        assert store.path == tmp_path / "ncclt" / "ncclt.db"
        assert store.migration()

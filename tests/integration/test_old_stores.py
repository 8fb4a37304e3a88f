"""A store that commit d73c139 wrote is opened, brought up to date and served; no row of it is lost.

The file is a dump of the SQLite database, as `sqlite3 FILE .dump` prints it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ncclt.cli.env import main as env
from ncclt.store import open_store
from ncclt_api.app import create_app

DUMP = Path(__file__).parents[1] / "golden" / "stores" / "d73c139.sqlite.sql"
SHAPE = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")
TABLES = (
    "workloads", "clusters", "studies", "trials", "measurements", "recommendations", "verifications", "checks",
    "attestations", "preflights",
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "old.db"
    with closing(sqlite3.connect(made)) as database:
        database.executescript(DUMP.read_text())
    return made


def rows(path):
    with closing(sqlite3.connect(path)) as database:
        return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}


def test_no_row_is_lost(path):
    before = rows(path)
    assert all(before.values())

    with open_store(f"sqlite:///{path}") as store:
        assert store.migration().is_current

    assert rows(path) == before


def test_what_was_published_is_handed_to_a_job(path, capsys):
    code = env(
        ["--cluster", "pair", "--model", "toy", *SHAPE, "--storage", f"sqlite:///{path}", "--format", "tuner-csv"]
    )

    assert code == 0
    assert "\nallreduce,0,4096,tree,ll,-1,2,8\n" in capsys.readouterr().out


def test_the_service_shows_checks_and_attestations(path):
    with open_store(f"sqlite:///{path}") as store:
        assert [check.id for check in store.checks("r1")] == ["c1"]
        assert len(store.verifications(recommendation="r2")) == 1
        assert len(store.preflights(cluster="pair")) == 1
        with TestClient(create_app(store)) as service:
            shown = service.get("/v1/recommendations/r1").json()
            attested = service.get("/v1/attestations", params={"recommendation": "r2"}).json()
    assert shown["id"] == "r1"
    assert [one["effect"] for one in attested["items"]] == ["took-effect"]

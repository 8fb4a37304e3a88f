"""A store of every earlier revision is served as it is, brought up to date and served again; no row of it is lost.

The file is a dump of the SQLite database that commit d73c139 wrote, as `sqlite3 FILE .dump` prints it. The same rows
are loaded into PostgreSQL; an older store has those of its tables that were there already.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from sqlalchemy import Boolean, MetaData, Table, insert, inspect, select
from sqlalchemy.schema import CreateSchema

import ncclt.store
from ncclt.cli.env import main as env
from ncclt.core.recheck import Check
from ncclt.errors import StoreError
from ncclt.store import open_store, published
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.store.revisions import REVISIONS
from ncclt_api.app import create_app

DUMP = Path(__file__).parents[1] / "golden" / "stores" / "d73c139.sqlite.sql"
SHAPE = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")
KEPT = ("workloads", "clusters", "studies", "trials", "measurements", "recommendations")
MOVED = {"verifications": "verification", "preflights": "preflight", "checks": "check", "attestations": "attestation"}
LAST_OF_TABLES = "0006"
"""The last revision that kept each kind of record in a table of its own."""

FIRST = {"verifications": "0002", "preflights": "0004", "checks": "0005", "attestations": "0006"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Return the URL of a new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/old.db"
    server = request.getfixturevalue("postgresql")
    name = f"old_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.get_uri(database=name)


@pytest.fixture(scope="module")
def dumped():
    """Return every row of the dump by table."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(DUMP.read_text())
        database.row_factory = sqlite3.Row
        return {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in (*KEPT, *MOVED)}


def table_of(connection, name):
    return Table(name, MetaData(), autoload_with=connection)


def make_old(url, revision, dumped):
    """Make the tables of a revision and fill them."""
    database = Database(locate(url))
    config = Config()
    config.set_main_option("script_location", str(Path(ncclt.store.__file__).parent / "migrations"))
    with database.alone() as connection:
        if database.schema:
            connection.execute(CreateSchema(database.schema))
        config.attributes["connection"] = connection
        command.upgrade(config, min(revision, LAST_OF_TABLES))
        for name in [*KEPT, *(name for name in MOVED if FIRST[name] <= revision)]:
            table = table_of(connection, name)
            booleans = {column.name for column in table.columns if isinstance(column.type, Boolean)}
            for row in dumped[name]:
                # The database numbers what arrives by itself, also after these rows.
                values = {key: bool(value) if key in booleans else value for key, value in row.items()}
                connection.execute(insert(table).values({k: v for k, v in values.items() if k != "sequence"}))
        command.upgrade(config, revision)
    database.close()


def rows(url):
    """Return the rows of every table, and the names of all tables."""
    database = Database(locate(url))
    with database.reading() as connection:
        names = set(inspect(connection).get_table_names(schema=database.schema))
        found = {}
        for name in names & {*KEPT, *MOVED, "records"}:
            table = table_of(connection, name)
            ordered = select(table).order_by(*table.primary_key.columns)  # an update moves a row in PostgreSQL
            found[name] = [dict(row) for row in connection.execute(ordered).mappings()]
    database.close()
    return found, names


def newest(found):
    """Return the first of each fingerprint and origin: all that a job can be given."""
    return list({(r.fingerprint, r.origin): r for r in reversed(found)}.values())


def answers(store, url):
    """Return everything that a store says about what was published, slowly and the fast way."""
    return {
        "checks": [store.checks(id) for id in ("r1", "r2")],
        "attestations": store.attestations(["r1", "r2"]),
        "effects": store.effects(["r1", "r2", "r3"]),
        "preflights": [store.preflights(), store.preflights(cluster="pair"), store.preflights(cluster="other")],
        "verifications": [store.verifications(recommendation="r2"), store.verifications(cluster="pair", model="toy")],
        "recommendations": store.recommendations(),
        "published": newest(published(url, cluster="pair", model="toy")),
        "newest": newest(store.newest(cluster="pair", model="toy")),
        "studies": store.studies(),
        "trials": store.trials("abc123"),
    }


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_old_store_says_the_same_after_it_is_migrated_and_loses_no_row(url, revision, dumped):
    make_old(url, revision, dumped)
    old, _ = rows(url)
    with open_store(url, migrate=False) as store:
        assert store.migration().current == revision
        before = answers(store, url)
    with open_store(url) as store:
        assert store.migration().is_current
        assert answers(store, url) == before
    assert newest(before["recommendations"]) == before["published"] == before["newest"]
    assert [bool(r.stale) for r in before["recommendations"]] == [False, False, revision >= FIRST["checks"]]
    assert before["effects"] == ({"r1": "partly", "r2": "took-effect"} if revision >= FIRST["attestations"] else {})
    assert len(before["verifications"][1]) == (revision >= FIRST["verifications"])
    assert len(before["preflights"][0]) == (revision >= FIRST["preflights"])
    require_all_kept(old, *rows(url), revision, dumped)


def require_all_kept(before, after, names, revision, dumped):
    assert not names & MOVED.keys()
    assert {row.pop("origin") for row in after["recommendations"]} == {"simulated"}
    for row in (*before["recommendations"], *after["recommendations"]):
        for name in ("origin", "state", "pinned", "unverified"):
            row.pop(name, None)
    assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
    moved = {(kind, row["id"], row["document"]) for name, kind in MOVED.items() for row in before.get(name, ())}
    moved |= {(row["kind"], row["id"], row["document"]) for row in before.get("records", ())}
    assert {(row["kind"], row["id"], row["document"]) for row in after["records"]} == moved
    assert len(after["records"]) == len(moved) == sum(len(before.get(name, ())) for name in (*MOVED, "records"))
    assert len(moved) == sum(len(dumped[name]) for name in MOVED if FIRST[name] <= revision)
    assert {(row["cluster"], row["kind"] == "preflight" or row["model"]) for row in after["records"]} <= {
        ("pair", "toy"), ("pair", True),
    }  # fmt: skip


def test_many_rows_keep_their_order_and_the_newest_decides(url, dumped):
    (stale, fresh), many = dumped["checks"], 2000
    checks = [{**(fresh if n % 2 else stale), "id": f"n{many - n}", "recommendation": "r1"} for n in range(many)]
    checks[0]["document"] = "broken"  # this is said to whoever asks for it; the migration goes on
    make_old(url, "0006", dumped | {"checks": checks})

    with open_store(url) as store:
        assert store.recommendation("r1").stale == ""
        with pytest.raises(StoreError, match=f"the check n{many} in the store cannot be read"):
            store.checks("r1")
        store.add_check(replace(Check.from_document(json.loads(stale["document"])), id="newest"))
        assert "the gain is lost" in store.recommendation("r1").stale
    kept = sorted((row["sequence"], row["id"]) for row in rows(url)[0]["records"] if row["kind"] == "check")
    assert [id for _, id in kept] == [*(row["id"] for row in checks), "newest"]


def test_what_was_published_is_handed_to_a_job(url, dumped, capsys):
    make_old(url, "0006", dumped)

    code = env(["--cluster", "pair", "--model", "toy", *SHAPE, "--storage", url, "--format", "tuner-csv"])

    assert code == 0
    assert "\nallreduce,0,4096,tree,ll,-1,2,8\n" in capsys.readouterr().out


@pytest.mark.parametrize("migrate", [False, True])
def test_the_service_shows_checks_and_attestations(url, migrate, dumped):
    make_old(url, "0006", dumped)
    with open_store(url, migrate=migrate) as store, TestClient(create_app(store)) as service:
        shown = service.get("/v1/recommendations/r1").json()
        attested = service.get("/v1/attestations", params={"recommendation": "r2"}).json()
        pages = [service.get(path).status_code for path in ("/", "/studies/abc123")]
    assert (shown["id"], len(shown["attestations"])) == ("r1", 1)
    assert [one["effect"] for one in attested["items"]] == ["took-effect"]
    assert pages == [200, 200]


def test_the_very_file_of_the_old_commit_is_brought_up_to_date(tmp_path):
    with closing(sqlite3.connect(tmp_path / "old.db")) as database:
        database.executescript(DUMP.read_text())

    with open_store(f"sqlite:///{tmp_path}/old.db") as store:
        assert store.migration().is_current
        assert [check.id for check in store.checks("r1")] == ["c1"]
        assert len(store.trials("abc123")) == 3

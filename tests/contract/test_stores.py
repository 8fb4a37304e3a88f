"""The contract of the store on SQLite and on a real PostgreSQL, and what is particular to each."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgresql import new_database
from sqlalchemy import text

import store_records as records
from leases_contract import OTHER, LeasesContract
from ncclt.errors import StoreError, UsageError
from ncclt.store import known_names, open_store, open_to_read, published
from ncclt.store.database import Database
from ncclt.store.location import locate
from ncclt.store.schema import HEAD, VERSION_TABLE
from ncclt.store.tables import metadata
from ncclt.testing.samples import sample_recommendation, sample_study, sample_trial
from store_contract import StoreContract

OPTUNA_TABLES = {"studies", "trials", "version_info", "alembic_version"}
OUR_TABLES = {*metadata.tables, VERSION_TABLE}

CONTRACTS = (
    records.VerificationsContract,
    records.AttestationsContract,
    records.ConfirmedTablesContract,
    records.NamesContract,
    LeasesContract,
)

READING = (open_to_read, known_names, lambda url: published(url, cluster="pair", model="toy"))


def damaged(whole):
    """Return the bytes of a database whose pages but the first two were lost; its length is what it was."""
    return whole[:8192] + b"\xa5" * (len(whole) - 8192)


def make_optuna_storage(url):
    """Let Optuna really create its tables."""
    from optuna.storages import RDBStorage

    storage = RDBStorage(url)
    storage.remove_session()
    storage.engine.dispose()


class TestSqlite(StoreContract, *CONTRACTS):
    @pytest.fixture
    def store_url(self, tmp_path):
        return f"sqlite:///{tmp_path}/new folder/50%#.db"

    def execute(self, url, statement):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
    def test_what_is_no_file_is_refused_and_not_waited_for(self, tmp_path, make):
        path = tmp_path / "store"
        make(path)
        opened = os.open(path, os.O_RDWR | os.O_NONBLOCK) if make is os.mkfifo else None  # else it would hang, not fail
        for way in (open_store, *READING):
            with pytest.raises(StoreError, match="store is not a file"):
                way(f"sqlite:///{path}")
        if opened is not None:
            os.close(opened)

    def test_optuna_has_a_file_of_its_own(self, store, store_url):
        make_optuna_storage(store.optuna_url)
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        assert {name for (name,) in self.execute(store_url, query)} == OUR_TABLES
        assert {name for (name,) in self.execute(store.optuna_url, query)} >= OPTUNA_TABLES
        store.migration()

    def test_nothing_is_made_where_nothing_is_to_be_made(self, store_url, tmp_path):
        for way in READING:
            with pytest.raises(StoreError, match="there is no store"):
                way(store_url)
        with pytest.raises(StoreError, match="there is no store"):
            open_store(store_url, migrate=False)
        assert list(tmp_path.iterdir()) == []

    def test_a_store_that_would_be_made_is_read_as_an_empty_one_until_it_has_tables(self, store_url, tmp_path):
        with open_to_read(store_url, would_be_made=True) as store:
            assert store.studies.page().items == ()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "new folder").mkdir()
        (tmp_path / "new folder" / "50%#.db").touch()
        with open_to_read(store_url, would_be_made=True) as store:
            assert store.studies.page().items == ()
        self.execute(store_url, "CREATE TABLE studies (name TEXT)")
        with pytest.raises(StoreError, match="another program"):
            open_to_read(store_url, would_be_made=True)

    def test_another_programs_file_is_left_alone(self, store_url, tmp_path):
        (tmp_path / "new folder").mkdir()
        self.execute(store_url, "CREATE TABLE studies (name TEXT)")
        with pytest.raises(StoreError, match="another program"):
            open_store(store_url)
        with pytest.raises(StoreError, match="another program"):
            published(store_url, cluster="pair", model="toy")
        assert self.execute(store_url, "SELECT name FROM sqlite_master") == [("studies",)]

    def test_a_file_that_is_no_database_is_an_error(self, tmp_path):
        (tmp_path / "notes.db").write_text("these are notes, and they go on for a while " * 100)
        for way in (open_store, lambda url: published(url, cluster="pair", model="toy")):
            with pytest.raises(StoreError, match="not a database") as caught:
                way(f"sqlite:///{tmp_path}/notes.db")
            assert caught.value.hint

    def test_a_folder_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot be made"):
            open_store(f"sqlite:///{tmp_path}/file/sub/a.db")

    def test_an_empty_file_is_a_fresh_store(self, tmp_path):
        (tmp_path / "a.db").touch()
        url = f"sqlite:///{tmp_path}/a.db"
        for way in READING:
            with pytest.raises(StoreError, match="there is no store"):
                way(url)
        with open_store(url, migrate=False) as store:
            assert store.migration() == ""
            with pytest.raises(StoreError) as caught:
                store.recommendations.find()
            assert "`ncclt admin store migrate`" in caught.value.hint
        with open_store(url) as store:
            assert store.migration() == HEAD

    @pytest.mark.parametrize("length", [1, 100, 511])
    def test_a_file_too_short_for_a_database_is_no_empty_store(self, tmp_path, length):
        """SQLite itself takes it for an empty one, and would write over it."""
        path = tmp_path / "a.db"
        path.write_bytes(b"SQLite format 3\0".ljust(length, b"x")[:length])
        for way in (open_store, *READING):
            with pytest.raises(StoreError, match=f"has {length} bytes and is not a database"):
                way(f"sqlite:///{path}")
        assert path.stat().st_size == length

    def test_a_damaged_file_is_found_before_anything_is_written(self, store, store_url):
        """Also while the store is open: nothing is published there."""
        store.studies.open(sample_study())
        for number in range(30):
            store.trials.add("abc123", sample_trial(number, messages=20))
        path = Path(store_url.removeprefix("sqlite:///"))
        whole = path.read_bytes()
        path.write_bytes(damaged(whole))
        with pytest.raises(StoreError, match="damaged"):
            store.revisions.publish(sample_recommendation("a"))
        with pytest.raises(StoreError, match="damaged"):
            open_store(store_url)
        path.write_bytes(whole)
        assert store.recommendations.find() == ()
        store.revisions.publish(sample_recommendation("a"))

    def test_the_fast_way_undoes_what_a_killed_writer_left(self, store, store_url):
        """A write that had reached the file when its process was killed is rolled back before anything is read."""
        stored = store.revisions.publish(sample_recommendation("a"))
        store.close()
        program = f"""
import os, signal, sqlite3
c = sqlite3.connect({store_url.removeprefix("sqlite:///")!r}, isolation_level=None)
c.execute("PRAGMA cache_size = 2")
c.execute("BEGIN IMMEDIATE")
c.execute("UPDATE recommendations SET document = 'half'")
c.executemany("INSERT INTO workloads VALUES (?, ?)", [(str(i), "x" * 3000) for i in range(100)])
os.kill(os.getpid(), signal.SIGKILL)
"""
        subprocess.run([sys.executable, "-c", program], check=False, timeout=240)
        path = store_url.removeprefix("sqlite:///")
        with (
            closing(sqlite3.connect(f"file:{path.replace('%', '%25').replace('#', '%23')}?mode=ro", uri=True)) as plain,
            pytest.raises(sqlite3.OperationalError, match="readonly"),
        ):
            plain.execute("SELECT document FROM recommendations")
        assert published(store_url, cluster="pair", model="toy") == (stored,)

    def test_a_full_disk_is_an_error_of_the_store_and_keeps_what_was_there(self, store, store_url):
        store.studies.open(sample_study())
        program = f"""
import resource
from ncclt.errors import StoreError
from ncclt.store import open_store
from ncclt.testing.samples import sample_trial
with open_store({store_url!r}) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
    try:
        for number in range(500):
            store.trials.add("abc123", sample_trial(number, messages=20))
    except StoreError as error:
        print(number, error.message)
"""
        run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=240)
        number, message = run.stdout.split(maxsplit=1)
        assert "cannot be used" in message
        assert len(store.trials.find("abc123")) == int(number) < 500


class TestPostgresql(StoreContract, *CONTRACTS):
    @pytest.fixture
    def store_url(self, postgresql):
        return new_database(postgresql)

    def execute(self, url, statement):
        with psycopg.connect(url, options="-csearch_path=ncclt") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def tables(self, url, schema):
        query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
        return {name for (name,) in self.execute(url, query)}

    def test_optuna_has_a_schema_of_its_own(self, store, store_url):
        make_optuna_storage(store.optuna_url)
        assert self.tables(store_url, "ncclt") == OUR_TABLES
        assert self.tables(store_url, "optuna") >= OPTUNA_TABLES
        assert self.tables(store_url, "public") == set()
        store.migration()

    def test_another_programs_schema_is_left_alone(self, store_url):
        self.execute(store_url, "CREATE SCHEMA ncclt")
        self.execute(store_url, "CREATE TABLE ncclt.studies (name TEXT)")
        with pytest.raises(StoreError, match="another program"):
            open_store(store_url)
        assert self.tables(store_url, "ncclt") == {"studies"}

    def test_what_no_column_holds_is_an_error_of_the_request(self, store):
        """A service answers with 422 and not with 503, after which clients try again."""
        asks = (
            lambda: store.studies.get("a\0b"),
            lambda: store.workloads.get("\0"),
            lambda: store.studies.page(cursor=str(2**31)),
        )
        for ask in asks:
            with pytest.raises(UsageError, match="no store can hold"):
                ask()
        store.migration()

    def test_before_the_migration_there_is_nothing(self, store_url):
        for way in READING:
            with pytest.raises(StoreError, match="there is no store"):
                way(store_url)
        with open_store(store_url, migrate=False) as store:
            assert store.migration() == ""
            with pytest.raises(StoreError) as caught:
                store.recommendations.find()
            assert "`ncclt admin store migrate`" in caught.value.hint

    def test_schemas_that_exist_are_used_without_the_right_to_create_them(self, store_url):
        for statement in (
            "DROP ROLE IF EXISTS humble",
            "CREATE ROLE humble LOGIN",
            "CREATE SCHEMA ncclt AUTHORIZATION humble",
            "CREATE SCHEMA optuna AUTHORIZATION humble",
        ):
            self.execute(store_url, statement)
        humble = store_url.replace("postgres:@", "humble:@")
        assert humble != store_url
        with open_store(humble) as store:
            assert store.migration() == HEAD
        self.execute(store_url, "DROP OWNED BY humble")

    def test_all_queries_of_a_reader_see_one_state(self, store, store_url):
        database = Database(locate(store_url))
        with database.reading() as connection:
            counts = [connection.execute(text("SELECT count(*) FROM studies")).scalar()]
            store.studies.open(sample_study())
            counts.append(connection.execute(text("SELECT count(*) FROM studies")).scalar())
        database.close()
        assert (counts, len(store.studies.page().items)) == ([0, 0], 1)

    def test_the_migrations_make_the_tables_that_the_code_uses(self, store, store_url):
        database = Database(locate(store_url))
        with database.reading() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            assert compare_metadata(context, metadata) == []
        database.close()

    def test_a_lost_server_connection_is_an_error_and_then_mended(self, store, store_url):
        store.migration()
        mine = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
        self.execute(store_url, f"{mine} current_database()")
        store.migration()
        assert store.studies.page().items == ()

    def test_workers_whose_clocks_differ_see_each_other(self, store, monkeypatch):
        """The database's clock counts: by their own, one of them would be dead, and its launches done twice."""
        store.studies.open(sample_study())
        monkeypatch.setattr(time, "time", lambda real=time.time: real() - 3600.0)
        store.leases.enter("abc123", OTHER)
        store.jobs.enter_worker(OTHER, cluster="pair")
        monkeypatch.undo()
        assert store.leases.workers("abc123") == (OTHER,)
        assert store.jobs.workers("pair") == (OTHER,)

    def test_a_database_or_user_that_is_not_there_is_an_error(self, store_url):
        with pytest.raises(StoreError, match="does not exist") as caught:
            open_store(store_url.replace("postgres:@", "nobody:secret@"))
        assert "user and database" in caught.value.hint
        assert "secret" not in caught.value.message


def test_a_port_without_server_is_an_error_at_once():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with pytest.raises(StoreError, match="refused") as caught:
        open_store(f"postgresql://user:secret@127.0.0.1:{port}/db")
    assert "host and port" in caught.value.hint
    assert "secret" not in caught.value.message


def test_a_server_that_never_answers_is_an_error_within_seconds():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(StoreError, match="timeout"):
            open_store(f"postgresql://127.0.0.1:{port}/db?connect_timeout=2")
        assert time.monotonic() - began < 8

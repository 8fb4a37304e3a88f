"""Real failures of SQLite, each translated with a hint that fits."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError

from ncclt.errors import StoreError, UsageError
from ncclt.store import open_store
from ncclt.store.database import Database
from ncclt.store.failures import LostTransactionError, translated
from ncclt.store.location import locate


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "a.db"
    with closing(sqlite3.connect(found)) as connection:
        connection.execute("CREATE TABLE notes (note TEXT UNIQUE)")
    return found


@pytest.fixture
def database(path):
    opened = Database(locate(f"sqlite:///{path}"), busy_timeout_s=0.05)
    yield opened
    opened.close()


def write(database, note="x", **options):
    with database.writing(**options) as connection:
        connection.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


def test_a_locked_file(database, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked") as caught:
            write(database)
    assert "another process" in caught.value.hint
    write(database)


def test_a_file_that_may_only_be_read(path):
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(f"file:{path}?mode=ro", uri=True))
    with pytest.raises(StoreError, match="readonly") as caught, translated("a.db"), engine.begin() as connection:
        connection.execute(text("INSERT INTO notes VALUES ('x')"))
    engine.dispose()
    assert "right to write" in caught.value.hint


def test_whether_a_row_could_be_written_is_found_out_without_a_row(tmp_path, full_disk):
    with open_store(f"sqlite:///{tmp_path}/ncclt.db") as store:
        before = store.workloads.entries()
        store.require_writable()
        assert store.workloads.entries() == before
        with full_disk():
            assert store.workloads.entries() == before
            with pytest.raises(StoreError, match="cannot be used"):
                store.require_writable()
        store.require_writable()


def test_only_what_passes_on_postgresql_is_worth_another_attempt(subtests):
    """SQLite has waited itself."""
    for cause, kind in [
        (psycopg.OperationalError("the connection is lost"), LostTransactionError),
        (psycopg.errors.DeadlockDetected("deadlock"), LostTransactionError),
        (psycopg.errors.AdminShutdown("terminating connection"), LostTransactionError),
        (psycopg.errors.UndefinedTable("no such relation"), StoreError),
        (psycopg.InterfaceError("a mistake of ours"), StoreError),
        (sqlite3.OperationalError("database is locked"), StoreError),
    ]:
        with subtests.test(cause=cause):
            with pytest.raises(StoreError) as caught, translated("a.db"):
                raise OperationalError("SELECT 1", {}, cause)
            assert type(caught.value) is kind


def test_a_conflict_says_what_the_caller_knows(database):
    write(database)
    with pytest.raises(StoreError, match=r"^there already$"):
        write(database, conflict="there already")
    with pytest.raises(StoreError, match=r" refused a row: UNIQUE constraint failed: notes\.note$"):
        write(database)


def test_a_value_that_no_store_can_hold_is_no_failure_of_the_store(database):
    with pytest.raises(UsageError, match="no store can hold") as caught:
        write(database, "\udcff")
    assert caught.value.hint
    with pytest.raises(UsageError, match=r"no store can hold such a value: contains NUL$"), translated("a.db"):
        raise DataError("SELECT 1", {}, psycopg.DataError("contains NUL"))


def test_a_failed_block_leaves_nothing(database):
    def write_and_fail():
        with database.writing() as connection:
            connection.execute(text("INSERT INTO notes VALUES ('lost')"))
            raise KeyError("a bug of ours is not a failure of the database")

    with pytest.raises(KeyError):
        write_and_fail()
    with database.reading() as connection:
        assert connection.execute(text("SELECT * FROM notes")).all() == []


def test_foreign_keys_and_durability_are_on(database):
    with database.reading() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("foreign_keys", "synchronous")
        }
        journal = connection.execute(text("PRAGMA journal_mode")).scalar()
    assert (pragmas, journal) == ({"foreign_keys": 1, "synchronous": 2}, "delete")


def test_known_words_get_their_hint(subtests):
    for said, hinted in [
        ("database or disk is full", "room"),
        ("disk I/O error", "network file system"),
        ("disk I/O error", "quota"),
        ("connection failed: FATAL: password authentication failed for user", "password"),
        ("connection failed: FATAL: the database system is starting up", "server"),
        ("permission denied for database x", "right to create"),
        ("permission denied for table workloads", "rights to read and write the tables"),
        ("something new", "--storage"),
    ]:
        with subtests.test(said=said):
            with pytest.raises(StoreError, match="cannot be used") as caught, translated("a.db"):
                raise ProgrammingError("SELECT 1", {}, Exception(said))
            assert hinted in caught.value.hint
            assert caught.value.message == f"the store a.db cannot be used: {said}", (
                "the driver's words, not SQLAlchemy's"
            )


def test_a_postgresql_that_takes_no_writes_is_no_file():
    """A standby, or a role that only reads; psycopg names the class so."""
    said = type("ReadOnlySqlTransaction", (Exception,), {})("cannot execute INSERT in a read-only transaction")
    with pytest.raises(StoreError) as caught, translated("postgresql://host/ncclt"):
        raise ProgrammingError("INSERT", {}, said)
    assert "primary" in caught.value.hint

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from ncclt.errors import StoreError, UsageError
from ncclt.store.database import Database, engine_alone
from ncclt.store.location import locate


@pytest.fixture
def opened():
    """Open databases that nobody connects to, and close them."""
    databases = []

    def open_at(url):
        databases.append(Database(locate(url)))
        return databases[-1]

    yield open_at
    for database in databases:
        database.close()


def test_optuna_lives_in_a_schema_of_its_own_and_has_the_password(opened):
    url = make_url(opened("postgresql://me:secret@host/db").optuna_url)
    assert (url.drivername, url.password) == ("postgresql+psycopg", "secret")
    assert url.query == {"options": "-csearch_path=optuna", "connect_timeout": "5"}


def test_options_of_the_user_are_kept(opened):
    url = opened("postgresql://h/d?options=-cstatement_timeout%3D9&connect_timeout=30&sslmode=require").optuna_url
    expected = {"options": "-cstatement_timeout=9 -csearch_path=optuna", "connect_timeout": "30", "sslmode": "require"}
    assert make_url(url).query == expected


def test_what_is_shown_has_no_password(opened):
    shown = opened("postgresql://me:secret@host/db?password=secret&sslmode=require").shown
    assert shown == "postgresql+psycopg://me:***@host/db?sslmode=require"


@pytest.mark.parametrize("url", ["postgresql://host:port/db", "postgresql://[::1/db"])
def test_a_url_that_cannot_be_read_is_the_users_error(url):
    with pytest.raises(UsageError, match="cannot be read"):
        Database(locate(url))


def test_a_damaged_file_is_told_in_one_line(opened, tmp_path):
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (number INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(5000)))
    opened(f"sqlite:///{path}").require_sound()
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with pytest.raises(StoreError) as raised:
        opened(f"sqlite:///{path}").require_sound()
    assert raised.value.message.startswith(f"the store {path} is damaged: ")
    assert "page" in raised.value.message.lower()  # as SQLite calls the place
    assert "\n" not in raised.value.message
    assert "restore a backup" in raised.value.hint


def test_a_transaction_that_only_reads_so_far_keeps_others_from_beginning_where_it_is_alone(tmp_path):
    """Else two workers that count the running jobs before they take one would each take one."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, other = (engine_alone(url, busy_timeout_s=0.0) for _ in range(2))
    with one.begin() as first:
        first.execute(text("SELECT count(*) FROM sqlite_master"))
        with pytest.raises(OperationalError, match="locked"), other.begin():
            pass
    with other.begin() as second:
        assert second.execute(text("SELECT 1")).scalar() == 1
    one.dispose()
    other.dispose()
    assert engine_alone("postgresql://127.0.0.1:9/nothing", busy_timeout_s=0.0) is None

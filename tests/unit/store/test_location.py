import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from ncclt.errors import StoreError, UsageError
from ncclt.store import open_store
from ncclt.store.location import default_url, locate, no_store, prepare_file
from ncclt.store.readonly import read_published
from ncclt.testing.samples import sample_recommendation

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00/?"), min_size=1, max_size=20).map("a{}b".format)


def test_the_default_is_a_file_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/ncclt/ncclt.db"
    assert locate(None).path == tmp_path / "ncclt" / "ncclt.db"


def test_sqlite_urls_name_a_file(subtests):
    for url, path in [
        ("sqlite:///ncclt.db", "ncclt.db"),
        ("sqlite:////abs/dir/a.db", "/abs/dir/a.db"),
        ("sqlite+pysqlite:///a b.db", "a b.db"),
        (" sqlite:///a.db\n", "a.db"),
    ]:
        with subtests.test(url=url):
            assert locate(url).path == Path(path)
            assert make_url(locate(url).url).database == path


def test_postgresql_always_gets_our_driver(subtests):
    for scheme in ["postgresql", "postgres", "postgresql+psycopg"]:
        with subtests.test(scheme=scheme):
            assert locate(f"{scheme}://me:secret@host/db").url == "postgresql+psycopg://me:secret@host/db"


def test_what_is_no_url_for_us_is_refused_with_a_hint(subtests):
    for url in [
        "",
        "ncclt.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:a.db?mode=ro",
        "sqlite://host/a.db",
        "mysql://host/db",
        "postgresql+psycopg2://h/d",
    ]:
        with subtests.test(url=url):
            with pytest.raises(UsageError) as caught:
                locate(url)
            assert "sqlite:///" in caught.value.hint


def test_optuna_gets_the_file_beside():
    assert locate("sqlite:////data/my.store.db").optuna_path == Path("/data/my.store.optuna.db")
    assert locate("postgresql://h/d").optuna_path is None


def test_no_password_is_shown():
    assert "secret" not in repr(locate("postgresql://me:secret@host/db"))


@given(name=NAMES)
def test_the_uri_of_any_file_name_opens_that_file(name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.touch()
        with closing(sqlite3.connect(locate(f"sqlite:///{path}").sqlite_uri("rw"), uri=True)) as connection:
            assert connection.execute("PRAGMA database_list").fetchone()[2] == str(path)


def test_a_file_is_empty_or_has_at_least_a_page(tmp_path, subtests):
    for length, is_database in [(0, True), (1, False), (511, False), (512, True)]:
        with subtests.test(length=length):
            (tmp_path / "a.db").write_bytes(b"x" * length)
            location = locate(f"sqlite:///{tmp_path}/a.db")
            if is_database:
                location.require_database_file()
            else:
                with pytest.raises(StoreError, match=f"has {length} bytes and is not a database"):
                    location.require_database_file()


def test_a_store_is_made_with_its_folder_and_only_where_it_may_be(tmp_path):
    location = locate(f"sqlite:///{tmp_path}/deep/er/a.db")
    location.require_database_file()  # which is not there yet
    with pytest.raises(StoreError, match="there is no store at"):
        prepare_file(location, create=False)
    assert list(tmp_path.iterdir()) == []
    prepare_file(location, create=True)
    assert location.path.parent.is_dir()
    location.path.touch()
    prepare_file(location, create=False)
    prepare_file(locate("postgresql://h/d"), create=False)  # a server has no folder of ours


def test_only_the_users_own_store_need_not_exist(tmp_path):
    assert locate(None).is_default
    assert not locate(f"sqlite:///{tmp_path}/a.db").is_default
    assert f"no store at {tmp_path}/a.db" in no_store(locate(f"sqlite:///{tmp_path}/a.db")).message
    assert "this PostgreSQL database" in no_store(locate("postgresql://h/d")).message


def test_a_path_that_is_not_utf8_is_one_file_for_both_readers(tmp_path):
    """SQLAlchemy opens the path; what jobs read is opened by SQLite's own URI."""
    path = tmp_path / os.fsdecode(b"c\xff.db")
    with open_store(f"sqlite:///{path}") as store:
        kept = store.revisions.publish(sample_recommendation("r1"))
    location = locate(f"sqlite:///{path}")
    assert [found.id for found in read_published(location, cluster=kept.cluster, model=kept.model)] == ["r1"]
    with pytest.raises(UsageError, match="no store can hold such a name"):
        read_published(location, cluster=kept.cluster, model=os.fsdecode(b"\xff"))

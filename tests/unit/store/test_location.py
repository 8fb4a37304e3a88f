import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from ncclt.errors import UsageError
from ncclt.store.location import default_url, locate

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00/?"), min_size=1, max_size=20).map("a{}b".format)


def test_the_default_is_a_file_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/ncclt/ncclt.db"
    assert locate(None).path == tmp_path / "ncclt" / "ncclt.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///ncclt.db", "ncclt.db"),
        ("sqlite:////abs/dir/a.db", "/abs/dir/a.db"),
        ("sqlite+pysqlite:///a b.db", "a b.db"),
        (" sqlite:///a.db\n", "a.db"),
    ],
)
def test_sqlite_urls_name_a_file(url, path):
    assert locate(url).path == Path(path)
    assert make_url(locate(url).url).database == path


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_always_gets_our_driver(scheme):
    assert locate(f"{scheme}://me:secret@host/db").url == "postgresql+psycopg://me:secret@host/db"


@pytest.mark.parametrize(
    "url",
    ["", "ncclt.db", "/abs/a.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file:a.db?mode=ro",
     "sqlite:///a.db?timeout=5", "sqlite://host/a.db", "mysql://host/db", "https://host", "postgresql+psycopg2://h/d"],
)  # fmt: skip
def test_what_is_no_url_for_us_is_refused_with_a_hint(url):
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

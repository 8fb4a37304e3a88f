import pytest
from sqlalchemy import make_url

from ncclt.errors import UsageError
from ncclt.store.database import Database
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

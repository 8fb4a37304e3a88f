"""One fresh store for each test."""

import pytest

from ncclt.store import open_store


@pytest.fixture
def url(tmp_path):
    """The URL of a store that is not made yet."""
    return f"sqlite:///{tmp_path}/a.db"


@pytest.fixture
def store(url):
    """A store without rows."""
    with open_store(url) as opened:
        yield opened

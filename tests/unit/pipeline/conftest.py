"""Studies of these tests keep Optuna's tables in memory: in a database they take two thirds of a study's time."""

import optuna
import pytest

from ncclt.search import optuna_tables
from ncclt.store import open_store


@pytest.fixture(autouse=True)
def optuna_storages(request, monkeypatch):
    """Keep one storage in memory per URL, unless the test uses `optuna_database`."""
    if "optuna_database" not in request.fixturenames:
        storages = {}
        monkeypatch.setattr(
            optuna_tables,
            "_open_storage",
            lambda url: storages.setdefault(url, optuna.storages.InMemoryStorage()),
        )


@pytest.fixture
def optuna_database():
    """Let the studies of a test keep Optuna's tables in their database, as users' do."""


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'ncclt.db'}") as opened:
        yield opened

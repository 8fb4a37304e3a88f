"""What the package promises to whoever imports it."""

import subprocess
import sys

import pytest

import ncclt.store
from ncclt.store import open_store
from ncclt.testing.samples import sample_recommendation


def test_every_public_name_is_there():
    assert all(getattr(ncclt.store, name) is not None for name in ncclt.store.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ncclt.store.no_such_name


def test_reading_what_was_published_loads_no_sqlalchemy(tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    with open_store(url) as store:
        store.revisions.publish(sample_recommendation("a"))
    program = f"""
import sys
from ncclt.store import published
assert [r.id for r in published({url!r}, cluster="pair", model="toy")] == ["a"]
print([m for m in ("sqlalchemy", "alembic", "optuna", "numpy", "torch", "typer") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_a_missing_dependency_is_named(tmp_path):
    program = f"""
import sys
sys.modules["sqlalchemy"] = None  # as if it were not installed
from ncclt.errors import MissingDependencyError
from ncclt.store import open_store
try:
    open_store("sqlite:///{tmp_path}/a.db")
except MissingDependencyError as error:
    print(error.message)
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "sqlalchemy" in run.stdout
    assert "ncclt[store]" in run.stdout

"""The schemas that this ncclt knows, and the check of a database; imports neither alembic nor SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ncclt.errors import StoreError

REVISIONS = ("0001_release",)
"""Every migration in migrations/versions, oldest first; a test compares the two."""

HEAD = REVISIONS[-1]
"""Target of the migration in `open_store`."""

VERSION_TABLE = "ncclt_alembic_version"
"""Alembic's own table under another name: MLflow and Optuna clashed over the usual one (mlflow issue 2923)."""

VERSION_QUERY = "SELECT version_num FROM ncclt_alembic_version"
"""Returns the revision of the tables."""

POSTGRESQL_SCHEMA = "ncclt"
"""Of our tables on PostgreSQL."""

OPTUNA_SCHEMA = "optuna"
"""Of Optuna's tables on PostgreSQL; never joined to ours."""


def known_revision(shown: str, *, tables: Collection[str], read: Callable[[], str | None]) -> str:
    """Return the revision of a database's tables, empty where it has no tables yet.

    Args:
        tables: names of the tables in our schema.
        read: returns the answer to `VERSION_QUERY`; called only if that table exists.

    Raises:
        StoreError: the tables are another program's, or of another version of ncclt.
    """
    if not tables:
        return ""
    if VERSION_TABLE not in tables:
        raise StoreError(
            f"{shown} is the database of another program: it has tables, and none of them is ncclt's",
            hint="name another file or database with --storage",
        )
    revision = read() or ""
    if revision and revision not in REVISIONS:
        raise StoreError(
            f"{shown} has schema {revision!r}, which this ncclt does not know (it knows up to {HEAD!r})",
            hint="another version of ncclt wrote it; update ncclt here, or name another store with --storage",
        )
    return revision


def require_current(revision: str, store: str = "the store") -> None:
    """Raise StoreError unless the tables have the revision of this ncclt; `store` is its subject."""
    if revision != HEAD:
        state = f"is at migration {revision}, this ncclt needs {HEAD}" if revision else "has no tables yet"
        raise StoreError(f"{store} {state}", hint="run `ncclt admin store migrate` with the same --storage")

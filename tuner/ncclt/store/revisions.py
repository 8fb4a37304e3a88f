"""Which schemas this ncclt knows, and whose a database is; neither alembic nor SQLAlchemy is loaded to ask."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ncclt.errors import StoreError

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every migration in migrations/versions, oldest first; a test holds the two together."""

HEAD = REVISIONS[-1]
"""What `open_store` migrates to."""

FIRST_WITH_VERIFICATIONS = "0002"
"""The revision that brought the table of verifications; older stores are read, and have none."""

FIRST_WITH_PREFLIGHTS = "0004"
"""The revision that brought the table of preflights, likewise."""

FIRST_WITH_CHECKS = "0005"
"""The revision that brought the table of checks; older stores are read, and have none."""

FIRST_WITH_ATTESTATIONS = "0006"
"""The revision that brought the table of attestations, likewise."""

VERSION_TABLE = "ncclt_alembic_version"
"""Alembic's own table under a name of ours: MLflow and Optuna clashed over the usual one (mlflow issue 2923)."""

VERSION_QUERY = "SELECT version_num FROM ncclt_alembic_version"
"""Gives the revision of the tables."""

POSTGRESQL_SCHEMA = "ncclt"
"""Where our tables live on PostgreSQL."""

OPTUNA_SCHEMA = "optuna"
"""Where Optuna's tables live on PostgreSQL; never joined to ours."""


def known_revision(shown: str, *, tables: Collection[str], read: Callable[[], str | None]) -> str:
    """Return the revision of a database's tables, empty where it has no tables yet.

    Args:
        shown: the database, for people.
        tables: names of the tables where ours would be.
        read: gives the answer to `VERSION_QUERY`; called only if there is such a table.

    Raises:
        StoreError: the tables are another program's, or of a newer ncclt.
    """
    if not tables:
        return ""
    if VERSION_TABLE not in tables:
        raise StoreError(
            f"{shown} is the database of another program: it has tables and none of them says it is ncclt's",
            hint="name a file or database of its own with --storage",
        )
    revision = read() or ""
    if revision and revision not in REVISIONS:
        raise StoreError(
            f"{shown} has schema {revision!r}, which this ncclt does not know (it knows up to {HEAD!r})",
            hint="a newer ncclt has migrated it; update ncclt here, or name another store with --storage",
        )
    return revision

"""Which schemas this ncclt knows, and whether a database is ncclt's; imports neither alembic nor SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ncclt.errors import StoreError

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013")
"""Every migration in migrations/versions, oldest first; a test compares the two."""

HEAD = REVISIONS[-1]
"""What `open_store` migrates to."""

FIRST_WITH_LEASES = "0003"
"""The revision that added what the workers of a study do."""

FIRST_WITH_CHECKS = "0005"
"""The revision that added the table of checks; older stores can be read, and have none."""

FIRST_WITH_RECORDS = "0007"
"""The revision that moved checks, attestations, preflights and verifications into one table."""

FIRST_WITH_ORIGINS = "0008"
"""The revision that added the origin of recommendations and the numbers of changes."""

FIRST_WITH_KEYS = "0009"
"""The revision that added the keys of the service."""

FIRST_WITH_STATES = "0010"
"""The revision that added states, history and roll-outs; before it the newest of each fingerprint was served."""

FIRST_WITH_JOBS = "0011"
"""The revision that added workers and rules of tuning jobs."""

VERSION_TABLE = "ncclt_alembic_version"
"""Alembic's own table under another name: MLflow and Optuna clashed over the usual one (mlflow issue 2923)."""

VERSION_QUERY = "SELECT version_num FROM ncclt_alembic_version"
"""Returns the revision of the tables."""

POSTGRESQL_SCHEMA = "ncclt"
"""Of our tables on PostgreSQL."""

OPTUNA_SCHEMA = "optuna"
"""Of Optuna's tables on PostgreSQL; never joined to ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTable:
    """Where one kind of record was kept before the table of records.

    Attributes:
        first: the revision that added the table.
        table: its name.
        query: returns its rows with the columns of records.
    """

    first: str
    table: str
    query: str


_OF_RECOMMENDATIONS = """
    SELECT t.sequence, t.id, coalesce(r.cluster, '') AS cluster, coalesce(r.model, '') AS model, t.recommendation,
        t.{word} AS word, t.created, t.document
    FROM {table} AS t LEFT JOIN recommendations AS r ON r.id = t.recommendation
"""

EARLIER_TABLES: Mapping[str, EarlierTable] = {
    "verification": EarlierTable(
        first="0002",
        table="verifications",
        query="SELECT sequence, id, cluster, model, recommendation, decision AS word, created, document"
        " FROM verifications",
    ),
    "preflight": EarlierTable(
        first="0004",
        table="preflights",
        query="SELECT sequence, id, cluster, '' AS model, '' AS recommendation, state AS word, created, document"
        " FROM preflights",
    ),
    "check": EarlierTable(
        first=FIRST_WITH_CHECKS, table="checks", query=_OF_RECOMMENDATIONS.format(table="checks", word="freshness")
    ),
    "attestation": EarlierTable(
        first="0006", table="attestations", query=_OF_RECOMMENDATIONS.format(table="attestations", word="effect")
    ),
}
"""By kind. The migration copies the rows of these queries, and a store that is not migrated is read by them."""


def known_revision(shown: str, *, tables: Collection[str], read: Callable[[], str | None]) -> str:
    """Return the revision of a database's tables, empty where it has no tables yet.

    Args:
        shown: the database, for messages.
        tables: names of the tables in our schema.
        read: returns the answer to `VERSION_QUERY`; called only if that table exists.

    Raises:
        StoreError: the tables are another program's, or of a newer ncclt.
    """
    if not tables:
        return ""
    if VERSION_TABLE not in tables:
        raise StoreError(
            f"{shown} is the database of another program: it has tables, and none of them is ncclt's",
            hint="name a file or database of its own with --storage",
        )
    revision = read() or ""
    if revision and revision not in REVISIONS:
        raise StoreError(
            f"{shown} has schema {revision!r}, which this ncclt does not know (it knows up to {HEAD!r})",
            hint="a newer ncclt has migrated it; update ncclt here, or name another store with --storage",
        )
    return revision

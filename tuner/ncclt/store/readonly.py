"""The fast way to read what was published: one SELECT by the standard library, for `ncclt env`.

Importing SQLAlchemy takes about 320 ms (measured on a 2-core development machine), twice what the whole command may
take; the contract test of the store proves that both ways give the same result.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ncclt.core.cluster import Cluster
from ncclt.core.recommendation import Recommendation, changed_cluster, replaced_workload
from ncclt.core.rollout import OPEN_STATES
from ncclt.errors import StoreError, UsageError
from ncclt.store.documents import read_stored, stored
from ncclt.store.location import BUSY_TIMEOUT_S, Location, no_store
from ncclt.store.schema import VERSION_QUERY, known_revision

if TYPE_CHECKING:
    from ncclt.core.revision import ClusterRules
    from ncclt.core.rollout import RolledOut

_Row = tuple[str, str | None, str | None, str | None]
"""Documents of a recommendation, of its newest check, and of the added workload and cluster of its names."""

_COLUMNS = """
    r.document,
    (SELECT document FROM records WHERE kind = 'recheck' AND recommendation = r.id ORDER BY sequence DESC LIMIT 1),
    (SELECT document FROM workloads WHERE name = r.model), (SELECT document FROM clusters WHERE name = r.cluster)
"""
_OPEN = ", ".join(f"'{state}'" for state in OPEN_STATES)
NEWEST = f"""
    FROM recommendations AS r WHERE r.sequence IN (
        SELECT sequence FROM recommendations WHERE cluster = :cluster AND model = :model AND state = 'active'
        UNION ALL SELECT c.sequence FROM rollouts AS o JOIN rollout_arms AS a ON a.rollout = o.id
        JOIN recommendations AS c ON c.id = a.recommendation
        WHERE o.cluster = :cluster AND o.model = :model AND o.state IN ({_OPEN}) AND o.control = '')
    ORDER BY r.sequence DESC
"""  # noqa: S608  no input
"""Revisions of a pair that jobs can get; shared with `Recommendations.newest`."""

ROLLED_OUT = f"""
    FROM rollouts AS o JOIN rollout_arms AS a ON a.rollout = o.id JOIN recommendations AS r ON r.id = a.recommendation
    WHERE o.cluster = :cluster AND o.model = :model AND o.state IN ({_OPEN}) ORDER BY o.sequence
"""
"""Arms of the open roll-outs of a pair; shared with `Recommendations.rolled_out`."""

_TICKET_SECRET = "SELECT value FROM secrets WHERE name = 'tickets'"  # noqa: S105  a query
_RULES = "SELECT document FROM cluster_rules WHERE cluster = :cluster"

_NAMES = """
    SELECT 'cluster', name FROM clusters UNION SELECT 'cluster', cluster FROM recommendations
    UNION SELECT 'workload', name FROM workloads UNION SELECT 'workload', model FROM recommendations
    UNION SELECT 'study', name FROM studies UNION SELECT 'study', id FROM studies
"""

_RECOVERY_NEEDED = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)


def read_published(location: Location, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    """Return the candidates for `select` for a model on a cluster, newest first; empty where the user has no store yet.

    As of `Recommendations.newest`.

    Raises:
        StoreError: the named file does not exist or cannot be read, or has another program's schema.
    """
    return _read_recommendations(model, _rows(location, f"SELECT {_COLUMNS} {NEWEST}", cluster=cluster, model=model))


def read_rollouts(location: Location, *, cluster: str, model: str) -> tuple[RolledOut, ...]:
    """Return the open roll-outs of a pair, each with the revisions of its arms.

    As of `Recommendations.rolled_out`.

    Raises:
        StoreError: as for `read_published`.
    """
    query = f"SELECT {_COLUMNS}, o.document {ROLLED_OUT}"
    rows: list[tuple[str, str | None, str | None, str | None, str]] = _rows(
        location, query, cluster=cluster, model=model
    )
    if not rows:
        return ()
    from ncclt.core.rollout import RollOut, group_arms

    running = [read_stored(RollOut, "a roll-out", rollout) for *_, rollout in rows]
    return group_arms(zip(running, _read_recommendations(model, [row[:4] for row in rows]), strict=True))


def read_rules(location: Location, cluster: str) -> ClusterRules:
    """Return the rules of a cluster, as of `Revisions.rules`.

    Raises:
        StoreError: as for `read_published`.
    """
    from ncclt.core.revision import ClusterRules

    rows: list[tuple[str]] = _rows(location, _RULES, cluster=cluster)
    if not rows:
        return ClusterRules(cluster=cluster)
    return read_stored(ClusterRules, f"what the cluster {cluster} requires", rows[0][0])


def read_ticket_secret(location: Location) -> str:
    """Return the secret that tickets are signed with; empty where the user has no store yet.

    As of `Store.ticket_secret`.

    Raises:
        StoreError: as for `read_published`.
    """
    rows: list[tuple[str]] = _rows(location, _TICKET_SECRET)
    return rows[0][0] if rows else ""


def read_names(location: Location) -> list[tuple[str, str]]:
    """Return every name that an SQLite file holds, as ("cluster", "workload" or "study", name).

    Raises:
        StoreError: as for `read_published`.
    """
    return _rows(location, _NAMES)


def _read_recommendations(model: str, rows: Sequence[_Row]) -> tuple[Recommendation, ...]:
    """Return the recommendations of the rows of one pair, each with the reason why it is stale."""
    with stored("a recommendation"):
        published = [(Recommendation.from_document(json.loads(text)), check) for text, check, _, _ in rows]
        digest = _workload_digest(model, rows[0][2]) if any(r.source_digest for r, _ in published) else ""
        place = Cluster.from_document(json.loads(rows[0][3])) if rows and rows[0][3] is not None else None
        return tuple(
            replace(r, stale=_staleness(check) or replaced_workload(r, digest) or changed_cluster(r, place))
            for r, check in published
        )


def _staleness(check: str | None) -> str:
    if check is None:
        return ""
    from ncclt.core.recheck import Recheck

    return Recheck.from_document(json.loads(check)).staleness


def _workload_digest(name: str, added: str | None) -> str:
    """Return the digest of the workload of a name as it is now; a shipped one hides an added one."""
    from ncclt.core.workload import Workload
    from ncclt.store.shipped import profiles_folder

    # Each shipped workload is in a file of its name; reading all of them to find one would take too long here.
    shipped = profiles_folder() / "workloads" / f"{name}.json"
    is_shipped = shipped.name == f"{name}.json" and shipped.is_file()
    text = shipped.read_text(encoding="utf-8") if is_shipped else added
    return Workload.from_document(json.loads(text)).digest() if text is not None else ""


def _rows(location: Location, query: str, **values: str) -> list[Any]:
    """Return the answer to a query, no rows where the user has no store yet; refuse a named one that does not exist."""
    assert location.path is not None
    location.require_database_file()
    rows = None
    try:
        try:
            if location.path.exists():
                rows = _select(location, "ro", query, values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _RECOVERY_NEEDED:
                raise
            # A process was killed while it wrote: only a writable connection can roll its transaction back.
            rows = _select(location, "rw", query, values)
    except UnicodeEncodeError as error:
        raise UsageError(f"no store can hold such a name: {error}", hint="check names and ids") from error
    except sqlite3.Error as error:
        raise StoreError(
            f"{location.path} cannot be read as a store of ncclt: {error}",
            hint="check the path and its permissions, or name another store with --storage",
        ) from error
    if rows is None and not location.is_default:
        raise no_store(location)
    return rows or []


def _select(location: Location, mode: str, query: str, values: dict[str, str]) -> list[Any] | None:
    """Return the answer to a query; None where there are no tables yet."""
    uri = location.sqlite_uri(mode)
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        connection.execute("BEGIN")  # no migration may come between the two queries
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

        def read() -> str | None:
            row = connection.execute(VERSION_QUERY).fetchone()
            return row and str(row[0])

        is_made = known_revision(str(location.path), tables=tables, read=read)
        return connection.execute(query, values).fetchall() if is_made else None

"""The store: the only room that knows SQLAlchemy. Importing it costs nothing; opening a store loads the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ncclt.core.recommendation import Recommendation, Request, select
from ncclt.errors import MissingDependencyError, NccltError, StoreError, UsageError, as_ncclt_error
from ncclt.store.location import Location, locate, no_store
from ncclt.store.names import KnownNames
from ncclt.store.readonly import read_names, read_published, read_rollouts, read_rules, read_ticket_secret
from ncclt.store.schema import require_current
from ncclt.user_dirs import recorded_tables

if TYPE_CHECKING:
    from ncclt.core.revision import ClusterRules
    from ncclt.core.rollout import RolledOut
    from ncclt.store.shipped import profiles_folder
    from ncclt.store.store import Store

__all__ = [
    "Store",
    "chosen",
    "known_names",
    "only_shipped",
    "open_service_store",
    "open_store",
    "open_to_read",
    "profiles_folder",
    "published",
    "rolled_out",
    "rules_of",
    "ticket_secret",
]

# Imported on first use: most need SQLAlchemy, and the others would slow down the start of `ncclt env`, too.
_LATER = {
    "Store": "ncclt.store.store",
    "profiles_folder": "ncclt.store.shipped",
}


def open_to_read(url: str | None = None, *, would_be_made: bool = False) -> Store:
    """Open a store for a command that only reads: nothing is made or migrated.

    A user's own store that does not exist yet is read as an empty one, with only what is shipped.

    Args:
        url: as for `open_store`.
        would_be_made: the command would create the named store, or its tables; without them it is read as an empty one.

    Raises:
        UsageError, MissingDependencyError: as for `open_store`.
        StoreError: the named store does not exist, or as for `open_store`.
    """
    location = locate(url)
    if location.path is None or location.path.exists():
        store = _open(location, migrate=False)
        if store.migration():
            return store
        store.close()
    if not (location.is_default or would_be_made):
        raise no_store(location)
    try:
        return _open(Location(url="sqlite://", path=Path(":memory:")), migrate=True)
    except MissingDependencyError as error:
        return only_shipped(error)


def only_shipped(why: NccltError) -> Store:
    """Return an empty store in no database, for reading what is shipped; it raises `why` where a database is needed."""
    from ncclt.store.shipped import ShippedOnly

    return cast("Store", ShippedOnly(why))


def open_store(
    url: str | None = None,
    *,
    migrate: bool = True,
    makes: bool = True,
    clock: Callable[[], str] | None = None,
    profiles: Path | None = None,
    is_patient: bool = True,
) -> Store:
    """Open the store at a database URL, None = the user's own file.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`.
        migrate: create or update our tables. Without it a missing SQLite file is an error, missing tables are not:
            see `Store.migration`.
        makes: create a named SQLite file that does not exist; False where a mistyped name would be taken for an empty
            store. The user's own file is made in any case.
        clock: returns the current time, ISO in UTC; None = the machine's clock.
        profiles: folder of shipped workloads and clusters; None = the one that came with ncclt.
        is_patient: once it is open, wait some seconds for a PostgreSQL that restarts.

    Raises:
        UsageError: the text is not the URL of a database that ncclt can use.
        StoreError: it cannot be reached, is of another version of ncclt, or belongs to another
            program.
        MissingDependencyError: ncclt was installed without its store.
    """
    location = locate(url)
    if not makes and location.path is not None and not location.is_default and not location.path.exists():
        raise no_store(location)
    return _open(location, migrate=migrate, clock=clock, profiles=profiles, is_patient=is_patient)


def open_service_store(url: str | None) -> Store:
    """Open the store of a service: an SQLite file is migrated to this version, a shared database never is.

    Several replicas may start at once, with read-only rights: there `ncclt admin store migrate` must run first. A file
    that is named must exist: a mistyped one would be served as an empty store.

    Args:
        url: as for `open_store`; the user's own file is made if it does not exist.

    Raises:
        StoreError: the store does not exist, cannot be reached, was not migrated, or belongs to another program.
        UsageError: the URL is invalid.
    """
    # A request does not wait for the database: it is answered with 503, and the client decides about retries.
    store = open_store(url, migrate=locate(url).path is not None, makes=False, is_patient=False)
    try:
        require_current(store.migration(), f"the store {store.shown}")
        store.ticket_secret()  # from now on tickets are issued while the database is away
        # Otherwise the queue library imports it with the first tuning job, and meanwhile queries of other threads fail.
        importlib.import_module("sqlalchemy.orm")
    except StoreError:
        store.close()
        raise
    return store


def _open(
    location: Location,
    *,
    migrate: bool,
    clock: Callable[[], str] | None = None,
    profiles: Path | None = None,
    is_patient: bool = True,
) -> Store:
    try:
        from ncclt.store.store import Store

        return Store(location, migrate=migrate, clock=clock, profiles=profiles, is_patient=is_patient)
    except ModuleNotFoundError as error:
        raise as_ncclt_error(error) from error


def chosen(url: str | None, request: Request, *, partly: bool = False) -> Recommendation:
    """Return the published revision that fits a request; `partly` as for `select`.

    Raises:
        NoRecommendationError: nothing fits; StaleRecommendationError: what fits is stale.
        NotFoundError: nothing was ever published for the two names, and one of them is unknown.
        UsageError, StoreError: as `published`.
    """
    candidates = published(url, cluster=request.cluster, model=request.model)
    if not candidates:
        # Checked last: recommendations may exist here for a cluster that is defined in another store.
        known_names(url).require(cluster=request.cluster, model=request.model)
    return select(
        candidates, request, partly=partly, is_recorded=not candidates and request.cluster in recorded_tables()
    )


def published(url: str | None, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
    """Return the candidates for `select` for a model on a cluster; empty where the user has no store yet.

    Raises:
        UsageError: the text is not the URL of a database that ncclt can use.
        StoreError: the named store does not exist or cannot be read, or has another program's schema.
    """
    location = locate(url)
    if location.path is not None:
        return read_published(location, cluster=cluster, model=model)
    with open_to_read(location.url) as store:
        return store.recommendations.newest(cluster=cluster, model=model)


def rolled_out(url: str | None, *, cluster: str, model: str) -> tuple[RolledOut, ...]:
    """Return the open roll-outs of a pair, each with the revisions of its arms.

    Raises:
        UsageError, StoreError: as `published`.
    """
    location = locate(url)
    if location.path is not None:
        return read_rollouts(location, cluster=cluster, model=model)
    with open_to_read(location.url) as store:
        return store.recommendations.rolled_out(cluster=cluster, model=model)


def rules_of(url: str | None, *, cluster: str) -> ClusterRules:
    """Return the rules of a cluster.

    Raises:
        UsageError, StoreError: as `published`.
    """
    location = locate(url)
    if location.path is not None:
        return read_rules(location, cluster)
    with open_to_read(location.url) as store:
        return store.revisions.rules(cluster)


def ticket_secret(url: str | None) -> str:
    """Return the secret that tickets are signed with; empty where the user has no store yet.

    Raises:
        UsageError, StoreError: as `published`.
    """
    location = locate(url)
    if location.path is not None:
        return read_ticket_secret(location)
    with open_to_read(location.url) as store:
        return store.ticket_secret()


def known_names(url: str | None) -> KnownNames:
    """Return every name of a cluster and of a workload; the shipped ones where there is no store yet.

    Raises:
        UsageError, StoreError: as `published`.
    """
    location = locate(url)
    if location.path is not None:
        names = read_names(location)
    else:
        with open_to_read(location.url) as store:
            names = [
                *(("cluster", cluster.name) for cluster, _ in store.clusters.entries()),
                *(("workload", workload.name) for workload, _ in store.workloads.entries()),
                *(
                    pair
                    for r in store.recommendations.find()
                    for pair in (("cluster", r.cluster), ("workload", r.model))
                ),
            ]
    return _with_shipped(names)


def local_names(url: str | None) -> KnownNames:
    """Return the names that are known without a database server, and nothing else of what `known_names` does.

    Raises:
        InputError: what is shipped is missing.
    """
    names: list[tuple[str, str]] = []
    with suppress(UsageError, StoreError):
        if (location := locate(url)).path is not None:
            names = read_names(location)
    return _with_shipped(names)


def _with_shipped(names: list[tuple[str, str]]) -> KnownNames:
    from ncclt.store.shipped import profiles_folder

    folder = profiles_folder()  # its files are called by their names
    return KnownNames(
        clusters=frozenset(path.stem for kind in ("clusters", "landscapes") for path in (folder / kind).glob("*.toml"))
        | {name for kind, name in names if kind == "cluster"},
        workloads=frozenset(path.stem for path in (folder / "workloads").glob("*.json"))
        | {name for kind, name in names if kind == "workload"},
        studies=frozenset(name for kind, name in names if kind == "study"),
    )


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)

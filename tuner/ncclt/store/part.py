"""Base of the classes of a store: the database, the clock, and the clusters that may be seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Concatenate

from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt.store.database import Database
from ncclt.store.failures import Answer, Given, Owner
from ncclt.store.names import unknown_name
from ncclt.store.shipped import named_clusters, profiles_folder, shipped_workloads
from ncclt.store.tables import Names


def unscoped(method: Callable[Concatenate[Owner, Given], Answer]) -> Callable[Concatenate[Owner, Given], Answer]:
    """Refuse a method within a scope, because it reaches every cluster; AttributeError, as for a missing one."""

    @wraps(method)
    def guarded(self: Owner, /, *args: Given.args, **named: Given.kwargs) -> Answer:
        if self._scope:
            raise AttributeError(f"{method.__qualname__} knows no scope")
        return method(self, *args, **named)

    return guarded


class Shipped:
    """The workloads and clusters that come with ncclt, read when they are first needed.

    Args:
        folder: of the profiles; None = the one that came with ncclt.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        """Return the workloads by name."""
        return shipped_workloads(self._folder or profiles_folder())

    @cached_property
    def clusters(self) -> dict[str, Cluster]:
        """Return the clusters by name."""
        return named_clusters(self._folder or profiles_folder())


class StorePart:
    """Base of the classes of a store.

    Every method raises StoreError if the database cannot be reached or fails, and nothing of SQLAlchemy. Lists leave
    out clusters beyond the scope, and an object of such a cluster is not found, as if it did not exist.

    Args:
        clock: returns the current time, ISO in UTC.
        scope: names of the clusters that may be seen; empty = all.
    """

    def __init__(
        self, database: Database, shipped: Shipped, clock: Callable[[], str], scope: frozenset[str] = frozenset()
    ) -> None:
        self._database = database
        self._shipped = shipped
        self._clock = clock
        self._scope = scope
        self.is_patient = database.is_patient

    def _is_visible(self, cluster: str) -> bool:
        return not self._scope or cluster in self._scope

    def _require_visible(self, cluster: str) -> None:
        if not self._is_visible(cluster):
            raise unknown_name("cluster", cluster, self._scope)

    def _within(self, cluster: Names) -> Names:
        """Return those of the named clusters that may be seen, as the argument of a query."""
        if not self._scope:
            return cluster
        if cluster is None:
            return self._scope
        return self._scope & ({cluster} if isinstance(cluster, str) else set(cluster))

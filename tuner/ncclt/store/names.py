"""Known names, and hints for mistyped ones; imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ncclt.errors import NotFoundError

CLUSTER_LIST = "ncclt cluster list"
WORKLOAD_LIST = "ncclt profile list"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Every name known to a store: shipped, added, or of something published.

    Attributes:
        clusters: of clusters, also of those that were tuned but are defined in another store.
        workloads: likewise.
    """

    clusters: frozenset[str]
    workloads: frozenset[str]

    def require(self, *, cluster: str, model: str) -> None:
        """Refuse unknown names, for which nothing was published.

        Raises:
            NotFoundError: for the first of them; the hint gives close ones.
        """
        asked = (
            ("cluster", cluster, self.clusters, CLUSTER_LIST),
            ("workload", model, self.workloads, WORKLOAD_LIST),
        )
        for kind, name, known, command in asked:
            if name not in known:
                raise NotFoundError(
                    f"nothing has been tuned for {model} on {cluster}: no {kind} {name!r} is known here",
                    hint=f"{close_names(name, known, command=command)}; --storage or --server name another store",
                )


def close_names(name: str, names: Iterable[str], *, command: str) -> str:
    """Return the hint for an unknown name."""
    close = difflib.get_close_matches(name, sorted(set(names)), n=3, cutoff=0.5)
    listing = f"`{command}` lists all"
    return f"did you mean {' or '.join(close)}? {listing}" if close else listing

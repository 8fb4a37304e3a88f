"""Known names, and hints for mistyped ones; imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ncclt.errors import NccltError, NotFoundError, UsageError

_LISTS = {"cluster": "ncclt cluster list", "workload": "ncclt profile list", "study": "ncclt studies list"}
_ADDS = {"cluster": "ncclt cluster detect --name NAME", "workload": "ncclt profile import FILE --name NAME"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Every name known to a store: shipped, added, or of something published.

    Attributes:
        clusters: of clusters, also of those that were tuned but are defined in another store.
        workloads: likewise.
        studies: names and ids of studies, of an SQLite store only.
    """

    clusters: frozenset[str]
    workloads: frozenset[str]
    studies: frozenset[str] = frozenset()

    def require(self, *, cluster: str, model: str) -> None:
        """Refuse unknown names, for which nothing was published.

        Raises:
            NotFoundError: for the first of them; the hint gives close ones.
            UsageError: it is empty.
        """
        asked = (
            ("cluster", cluster, self.clusters),
            ("workload", model, self.workloads),
        )
        for kind, name, names in asked:
            if not name:
                raise unknown_name(kind, name, names)
            if name not in names:
                raise NotFoundError(
                    f"nothing has been tuned for {model} on {cluster}: no {kind} {name!r} is known here",
                    hint=f"{_close_names(name, names, kind)}; --storage or --server name another store",
                )


def unknown_name(kind: str, name: str, names: Iterable[str]) -> NccltError:
    """Return the error of a name that no cluster, workload or study has.

    An empty name of a cluster or workload is a mistake of the command, as of a variable that is not set.
    """
    if not name and kind in _ADDS:
        return UsageError(f"the name of the {kind} is empty", hint=f"`{_LISTS[kind]}` shows the names")
    adds = f"; `{_ADDS[kind]}` adds one" if kind in _ADDS else ""
    return NotFoundError(f"there is no {kind} {name!r}", hint=_close_names(name, names, kind) + adds)


def unknown_recommendation(id: str) -> NotFoundError:
    """Return the error of an id that no revision has."""
    return NotFoundError(
        f"there is no recommendation {id!r}", hint="`ncclt admin recommendations list` shows what was published"
    )


def unknown_rollout(id: str) -> NotFoundError:
    """Return the error of an id that no roll-out has."""
    return NotFoundError(f"there is no roll-out {id!r}", hint="`ncclt admin recommendations list` names open ones")


def _close_names(name: str, names: Iterable[str], kind: str) -> str:
    close = difflib.get_close_matches(name, sorted(set(names)), n=3, cutoff=0.5)
    listing = f"`{_LISTS[kind]}` lists all"
    return f"did you mean {' or '.join(close)}? {listing}" if close else listing

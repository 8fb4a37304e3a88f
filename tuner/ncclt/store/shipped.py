"""The workloads and clusters that come with ncclt, the recorded ones too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import parse_cluster_toml
from ncclt.core.preflight import Preflight
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import StudyPage
from ncclt.core.workload import Workload
from ncclt.errors import InputError, NccltError, reason
from ncclt.store.names import unknown_name
from ncclt.user_dirs import landscape_folder, shipped_folder

Entry = TypeVar("Entry", Workload, Cluster)


class ShippedOnly:
    """A store without a database: it has the shipped entries, and no studies, records and recommendations.

    Args:
        lacks: raised for everything that needs a database.
    """

    def __init__(self, lacks: NccltError) -> None:
        self._lacks = lacks
        self.workloads = _ShippedEntries("workload", shipped_workloads)
        self.clusters = _ShippedEntries("cluster", named_clusters)
        self.studies = self.records = self.recommendations = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> Any:
        raise self._lacks

    def page(self, **_filters: object) -> StudyPage:
        """Return a page without studies."""
        return StudyPage(items=(), next_cursor=None)

    def preflights(self, **_filters: object) -> tuple[Preflight, ...]:
        """Return no preflights."""
        return ()

    def find(self, **_filters: object) -> tuple[Recommendation, ...]:
        """Return no recommendations."""
        return ()


class _ShippedEntries(Generic[Entry]):
    """The shipped workloads or clusters."""

    def __init__(self, kind: str, read: Callable[[Path], dict[str, Entry]]) -> None:
        self._kind = kind
        self._read: Callable[[Path], dict[str, Entry]] = read

    def entries(self) -> tuple[tuple[Entry, bool], ...]:
        """Return every entry by name, each marked as shipped."""
        shipped = self._read(profiles_folder())
        return tuple((shipped[name], True) for name in sorted(shipped))

    def get(self, name: str) -> Entry:
        """Return an entry; NotFoundError for an unknown name."""
        shipped = self._read(profiles_folder())
        if name not in shipped:
            raise unknown_name(self._kind, name, shipped)
        return shipped[name]


def profiles_folder() -> Path:
    """Return the folder of what is shipped.

    Raises:
        InputError: there is none.
    """
    folder = shipped_folder()
    if folder is None:
        raise InputError("the workloads and clusters that ncclt ships are missing", hint="reinstall ncclt")
    return folder


def shipped_workloads(folder: Path) -> dict[str, Workload]:
    """Read every workload of a profiles folder, by name.

    Raises:
        InputError: a file is broken or repeats a name; the message names the file.
    """
    return _read(folder / "workloads", ".json", lambda text: Workload.from_document(json.loads(text)))


def is_demo(name: str) -> bool:
    """Tell a shipped workload, for which a recording is replayed where nothing can be launched."""
    return name in shipped_workloads(profiles_folder())


def shipped_clusters(folder: Path) -> dict[str, Cluster]:
    """Read every cluster of a profiles folder that can be simulated, by name; InputError as for `shipped_workloads`."""
    return _read(folder / "clusters", ".toml", lambda text: parse_cluster_toml(text, "it"))


def recorded_clusters(folder: Path) -> dict[str, Cluster]:
    """Read the cluster of every recorded landscape, of a profiles folder or imported, by name; InputError as above."""
    imported = _read(landscape_folder(), ".toml", lambda text: parse_cluster_toml(text, "it"), kind="imported")
    return imported | _read(folder / "landscapes", ".toml", lambda text: parse_cluster_toml(text, "it"))


def named_clusters(folder: Path) -> dict[str, Cluster]:
    """Read every cluster of a profiles folder, and the recorded ones, by name; InputError as above."""
    return recorded_clusters(folder) | shipped_clusters(folder)


def _read(folder: Path, suffix: str, parse: Callable[[str], Entry], *, kind: str = "shipped") -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob(f"*{suffix}")):
        try:
            entry = parse(path.read_text(encoding="utf-8"))
        # ValueError: broken JSON, TOML or UTF-8; AttributeError: JSON or TOML that is not a table.
        except (NccltError, OSError, ValueError, AttributeError, TypeError) as error:
            raise InputError(
                f"the {kind} file {path.name} is broken: {reason(error)}",
                hint=f"{'repair or remove' if kind == 'imported' else 'reinstall ncclt or repair'} {path}",
            ) from error
        if entry.name in entries:
            raise InputError(
                f"the {kind} file {path.name} repeats the name {entry.name!r}", hint=f"rename it in {path}"
            )
        entries[entry.name] = entry
    return entries

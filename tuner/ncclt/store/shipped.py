"""The workloads and clusters that come with ncclt."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt.errors import InputError, NccltError, reason


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """Return the name."""
        ...


Entry = TypeVar("Entry", bound=Named)


def profiles_folder() -> Path:
    """Return the folder of what is shipped: inside an installed wheel, else the repository's `profiles`.

    Raises:
        InputError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    # pyproject.toml force-includes profiles/ as ncclt/profiles_data; an editable install has only the repository.
    for folder in (package / "profiles_data", package.parents[1] / "profiles"):
        if folder.is_dir():
            return folder
    raise InputError("the workloads and clusters that ncclt ships are missing", hint="reinstall ncclt")


def shipped_workloads(folder: Path) -> dict[str, Workload]:
    """Read every workload of a profiles folder, by name.

    Raises:
        InputError: a file is broken or repeats a name; the message names the file.
    """
    return _read(folder / "workloads", ".json", lambda text: Workload.from_document(json.loads(text)))


def shipped_clusters(folder: Path) -> dict[str, Cluster]:
    """Read every cluster of a profiles folder, by name; InputError as for `shipped_workloads`."""
    return _read(folder / "clusters", ".toml", lambda text: Cluster.from_document(tomllib.loads(text)))


def _read(folder: Path, suffix: str, parse: Callable[[str], Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for path in sorted(folder.glob(f"*{suffix}")):
        try:
            entry = parse(path.read_text(encoding="utf-8"))
        # ValueError: broken JSON, TOML or UTF-8; AttributeError: JSON or TOML that is not a table.
        except (NccltError, OSError, ValueError, AttributeError, TypeError) as error:
            raise InputError(
                f"the shipped file {path.name} is broken: {reason(error)}", hint=f"reinstall ncclt or repair {path}"
            ) from error
        if entry.name in found:
            raise InputError(
                f"the shipped file {path.name} repeats the name {entry.name!r}", hint=f"rename it in {path}"
            )
        found[entry.name] = entry
    return found

"""Values that hold for every command: flag > NCCLT_* > project file > user file > default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclt.errors import UsageError

KEYS: dict[str, str] = {
    "storage": "database URL of the local store",
    "server": "URL of an ncclt server to fetch from",
    "launcher": "where trials run: simulate, replay, local, torchrun, mpirun, slurm, ssh, kubernetes",
    "cluster": "cluster that is meant when --cluster is left out",
}
"""What a configuration file may set, and what it means."""

PROJECT_FILE = "ncclt.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A value and where it came from."""

    key: str
    value: str | None
    origin: str


def user_file() -> Path:
    """Return the path of the user's configuration file."""
    # The XDG rule by hand: importing platformdirs would cost `ncclt env` several milliseconds for one path.
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "ncclt" / "config.toml"


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it is TOML: key = 'value'") from error
    for key, value in values.items():
        if key not in KEYS or not isinstance(value, str):
            raise UsageError(f"{path} sets {key!r}, which is no text value of ncclt", hint=f"known: {', '.join(KEYS)}")
    return values


def origins() -> tuple[Origin, ...]:
    """Return every value as it holds without flags, and where it comes from."""
    project, user = _read(Path(PROJECT_FILE)), _read(user_file())
    found = []
    for key in KEYS:
        variable = f"NCCLT_{key.upper()}"
        if os.environ.get(variable):
            found.append(Origin(key=key, value=os.environ[variable], origin=variable))
        elif key in project:
            found.append(Origin(key=key, value=project[key], origin=str(Path(PROJECT_FILE).resolve())))
        elif key in user:
            found.append(Origin(key=key, value=user[key], origin=str(user_file())))
        else:
            found.append(Origin(key=key, value=None, origin="default"))
    return tuple(found)


def lookup(key: str) -> Origin:
    """Return the value of one key without flags, and where it comes from."""
    return next(origin for origin in origins() if origin.key == key)


def default_map() -> dict[str, Any]:
    """Return the values of the files in the form in which the command line looks defaults up, per command."""
    values = {**_read(user_file()), **_read(Path(PROJECT_FILE))}
    if not values:
        return {}
    nested = dict.fromkeys(("list", "show", "import", "add", "migrate"), values)
    plain = dict.fromkeys(("tune", "serve", "preflight"), values)
    return {**plain, **dict.fromkeys(("profile", "cluster", "studies", "store"), nested)}

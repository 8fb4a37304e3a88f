"""Values that hold for every command: flag > NCCLT_* > project file > user file > default."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclt.errors import UsageError, reason
from ncclt.home import user_folder

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
    return user_folder("XDG_CONFIG_HOME", ".config") / "ncclt" / "config.toml"


def _read(path: Path) -> dict[str, str]:
    try:
        if not path.is_file():
            return {}
    except PermissionError:
        # HOME of somebody else, as under `sudo -u`: no file of this user's can be in there.
        return {}
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", hint="it is TOML: key = 'value'") from error
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
    """Return the values of the files in the form in which the command line looks defaults up, per command.

    `attest`, `env` and `run` look for themselves: there server and store stand against each other. What a command of
    two words filters by (`studies list --cluster`) is said, not configured; only the store holds for all of them.
    """
    values = {**_read(user_file()), **_read(Path(PROJECT_FILE))}
    if not values:
        return {}
    store = {"storage": values["storage"]} if "storage" in values else {}
    plain = dict.fromkeys(("tune", "check", "verify", "preflight", "estimate", "serve"), values)
    # `doctor` starts nothing unless it is told to.
    plain["doctor"] = {key: value for key, value in values.items() if key != "launcher"}
    return {**plain, **{group: dict.fromkeys(words, store) for group, words in _GROUPS.items()}}


_GROUPS = {
    "profile": ("list", "show", "import", "record", "diff", "model"),
    "cluster": ("list", "show", "add"),
    "studies": ("list", "show", "replay"),
    "store": ("migrate",),
}
"""Commands of two words that take --storage."""

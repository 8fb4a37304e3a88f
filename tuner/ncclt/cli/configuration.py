"""Values that hold for every command: flag > NCCLT_* > project file > user file > default."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ncclt.errors import UsageError, reason
from ncclt.user_dirs import user_folder

KEYS: dict[str, str] = {
    "storage": "database URL of the local store",
    "server": "URL of an ncclt server to fetch from",
    "launcher": "where trials run: simulate, replay, local, torchrun, mpirun, slurm, ssh, kubernetes",
    "cluster": "cluster that is meant when --cluster is left out",
}
"""What a configuration file may set, and what it means."""

PROJECT_FILE = "ncclt.toml"

_MAX_BYTES = 1024 * 1024
"""Of a file; more is no configuration."""

_IRREGULAR = "it is not a regular file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A value and where it came from."""

    key: str
    value: str | None
    origin: str


def user_file() -> Path:
    """Return the path of the user's configuration file."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "ncclt" / "config.toml"


def _read(path: Path) -> tuple[dict[str, str], str]:
    """Return what a configuration file sets, and why it may be somebody else's; empty = it is ours, or not there.

    Raises:
        UsageError: it is broken.
    """
    try:
        if not path.exists():
            return {}, ""
        if not path.is_file():
            return {}, _IRREGULAR
    except PermissionError:
        # HOME of somebody else, as under `sudo -u`: no file of this user's can be in there.
        return {}, ""
    import tomllib

    try:
        # Somebody may put a pipe in its place meanwhile, which would be waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read(_MAX_BYTES)
        values = tomllib.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}", hint="it is TOML: key = 'value'") from error
    for key, value in values.items():
        if key not in KEYS or not isinstance(value, str):
            raise UsageError(
                f"{path} sets {key!r}, which is not a text setting of ncclt", hint=f"known: {', '.join(KEYS)}"
            )
    if values and facts.st_uid not in (0, os.geteuid()):
        return values, f"it belongs to user {facts.st_uid}"
    return values, "others can write to it" if values and facts.st_mode & 0o022 else ""


def _read_project() -> tuple[dict[str, str], dict[str, str]]:
    """Return what the file in the working folder sets, and what is not taken from it, with the reason.

    A server, or a store, says what a job runs with: such a name is taken from nobody but this user and root, or whoever
    can write to a folder decides what those run who start a job there.

    Raises:
        UsageError: it is broken.
    """
    values, foreign = _read(Path(PROJECT_FILE))
    if not foreign:
        return values, {}
    refused = dict.fromkeys((key for key in ("server", "storage") if key in values) if values else KEYS, foreign)
    return {key: value for key, value in values.items() if key not in refused}, refused


def _refused(key: str, why: str) -> UsageError:
    path = Path(PROJECT_FILE).absolute()
    if why == _IRREGULAR:
        return UsageError(f"{path} is not read: {why}", hint="remove it")
    return UsageError(
        f"{key} is not taken from {path}: {why}", hint=f"chmod go-w {path} where it is yours, or set {_variable(key)}"
    )


def origins() -> tuple[Origin, ...]:
    """Return every value as it holds without flags, and where it comes from."""
    refused = _read_project()[1]
    return tuple(
        Origin(key=key, value=None, origin=f"{Path(PROJECT_FILE).absolute()}: not taken, {refused[key]}")
        if key in refused and not os.environ.get(_variable(key))
        else lookup(key)
        for key in KEYS
    )


def lookup(key: str, *, warn: Callable[[str], None] | None = None) -> Origin:
    """Return the value of one key without flags, and where it comes from.

    Args:
        key: one of `KEYS`.
        warn: is given one line where the project file may not set it, which is then left out.

    Raises:
        UsageError: a file is broken; or the project file may not set it, and nobody is warned.
    """
    if value := os.environ.get(_variable(key)):
        return Origin(key=key, value=value, origin=_variable(key))
    project, refused = _read_project()
    if key in project:
        return Origin(key=key, value=project[key], origin=str(Path(PROJECT_FILE).absolute()))
    if key in refused:
        error = _refused(key, refused[key])
        if warn is None:
            raise error
        warn(f"ncclt: {error.message}")
    user, _foreign = _read(user_file())
    if key in user:
        return Origin(key=key, value=user[key], origin=str(user_file()))
    return Origin(key=key, value=None, origin="default")


def _variable(key: str) -> str:
    return f"NCCLT_{key.upper()}"


def default_map() -> dict[str, Any]:
    """Return the values of the files in the form in which the command line looks defaults up, per command.

    `attest`, `env` and `run` look for themselves: there server and store stand against each other. What a command of
    two words filters by (`studies list --cluster`) is said, not configured; only the store holds for all of them.
    """
    project, refused = _read_project()
    # Called by the framework where neither flag nor variable sets it: until then nothing is wrong.
    refusing = {key: partial(_refuse, key, why) for key, why in refused.items()}
    values: dict[str, Any] = {**_read(user_file())[0], **project, **refusing}
    if not values:
        return {}
    store = {"storage": values["storage"]} if "storage" in values else {}
    plain = dict.fromkeys(("tune", "check", "verify", "preflight", "estimate", "serve"), values)
    # `doctor` starts nothing unless it is told to.
    plain["doctor"] = {key: value for key, value in values.items() if key != "launcher"}
    return {**plain, **{group: dict.fromkeys(words, store) for group, words in _GROUPS.items()}}


def _refuse(key: str, why: str) -> NoReturn:
    raise _refused(key, why)


_GROUPS = {
    "profile": ("list", "show", "import", "record", "diff", "model"),
    "cluster": ("list", "show", "add"),
    "studies": ("list", "show", "replay"),
    "store": ("migrate",),
}
"""Commands of two words that take --storage."""

"""Values that apply to every command: flag > NCCLT_* > project file > user file > default."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ncclt.errors import UsageError, reason
from ncclt.user_dirs import user_folder

KEYS: dict[str, str] = {
    "storage": "database URL of the local store",
    "server": "URL of an ncclt server to fetch from",
    "launcher": "launcher: simulate, replay, local, torchrun, mpirun, slurm, ssh or kubernetes",
    "cluster": "default of --cluster",
}
"""Keys that a configuration file may set -> their meaning."""

PROJECT_FILE = "ncclt.toml"

_MAX_BYTES = 1024 * 1024
"""Longest file that is read as configuration."""

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
    """Return the values of a configuration file, and the reason not to trust it; empty = trusted or absent.

    Raises:
        UsageError: it is broken.
    """
    try:
        if not path.exists():
            return {}, ""
        if not path.is_file():
            return {}, _IRREGULAR
    except PermissionError:
        # HOME is another user's, as under `sudo -u`: it cannot hold a file of this user's.
        return {}, ""
    import tomllib

    try:
        # The file may have been replaced by a pipe since, and opening that would block.
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
    """Return the values of the file in the working folder, and the refused keys with their reasons.

    The server and the store decide what a job runs with, so they are only taken from a file that belongs to this user
    or root: otherwise anyone who can write to a folder could decide what the jobs started there run with.

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
    """Return every value that applies without flags, and where it comes from."""
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
        warn: receives one line if the project file may not set the key, which is then ignored.

    Raises:
        UsageError: a file is broken; or the project file may not set the key, and there is no `warn`.
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


_storage: ContextVar[str | None] = ContextVar("storage", default=None)


def keep_storage(url: str | None) -> None:
    """Keep the value of --storage, an option of every command and of the program itself."""
    if url is not None:
        _storage.set(url)


def forget_storage() -> None:
    """Forget the value of --storage."""
    _storage.set(None)


def storage_flag() -> str | None:
    """Return the value of --storage."""
    return _storage.get()


def storage_url() -> str | None:
    """Return the URL of the store by flag, variable or configuration file; None = the user's own store."""
    flag = storage_flag()
    return flag if flag is not None else lookup("storage").value


def require_one_source(server: str | None, storage: str | None) -> None:
    """Refuse two flags for the place of the results.

    Raises:
        UsageError: both are given.
    """
    if server and storage:
        raise UsageError("--server and --storage cannot be combined", hint="give one of them")


def _variable(key: str) -> str:
    return f"NCCLT_{key.upper()}"


def default_map() -> dict[str, Any]:
    """Return cluster and launcher of the files as the framework's map of defaults per command.

    `attest`, `env` and `run` call `lookup` themselves, and so does every command for its store. What a command of two
    words filters by (`studies list --cluster`) is never configured.
    """
    project, refused = _read_project()
    # The framework calls it only where neither flag nor variable sets the value.
    refusing = {key: partial(_refuse, key, why) for key, why in refused.items()}
    settings: dict[str, Any] = {**_read(user_file())[0], **project, **refusing}
    values = {key: value for key, value in settings.items() if key in ("cluster", "launcher")}
    if not values:
        return {}
    # `doctor` launches nothing unless --launcher is given.
    doctor = {key: value for key, value in values.items() if key != "launcher"}
    commands = ("autotune", "tune", "recheck", "verify", "preflight", "advise", "upgrade")
    return {
        **dict.fromkeys(commands, values),
        "doctor": doctor,
        "cluster": {"simulate": values},
        "admin": {"worker": values},
    }


def _refuse(key: str, why: str) -> NoReturn:
    raise _refused(key, why)

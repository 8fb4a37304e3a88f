"""Folders of the files of a user, even one whom the machine knows by number only, and of those that ncclt ships."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_NOBODYS = "/"
"""Home folder of a user id without an account, as of container runtimes; such a user can rarely write there."""


def with_home(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a HOME: its own if absolute, else that of the account, else `/`."""
    named = environ.get("HOME", "")
    return {**environ, "HOME": named if Path(named).is_absolute() else _account_home()}


def user_folder(variable: str, beside: str) -> Path:
    """Return a folder of this process's user.

    The XDG rule by hand: importing platformdirs would cost `ncclt env` several milliseconds for one path.

    Args:
        variable: that names it, for example XDG_CACHE_HOME; a relative path is ignored (XDG base directories).
        beside: its default, relative to the home folder.
    """
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path(with_home(os.environ)["HOME"]) / beside


def shipped_folder() -> Path | None:
    """Return the folder of what is shipped: inside an installed wheel, else the repository's `profiles`."""
    package = Path(__file__).resolve().parent
    # pyproject.toml force-includes profiles/ as ncclt/profiles_data; an editable install has only the repository.
    return next((f for f in (package / "profiles_data", package.parents[1] / "profiles") if f.is_dir()), None)


def landscape_folder() -> Path:
    """Return the folder of the landscapes that this user imported; it need not exist."""
    return user_folder("XDG_DATA_HOME", ".local/share") / "ncclt" / "landscapes"


def recorded_tables() -> Mapping[str, Path]:
    """Return the tables of recorded clusters by name: those that ncclt ships, then those that this user imported."""
    shipped = shipped_folder()
    folders = (*([shipped / "landscapes"] if shipped else []), landscape_folder())
    tables: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.csv")):
            tables.setdefault(path.stem, path)
    return tables


def account_name() -> str:
    """Return the name of the account that this process runs as, not what LOGNAME says; its number without one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _account_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # as in a container that is started with `--user 1234`
        return _NOBODYS

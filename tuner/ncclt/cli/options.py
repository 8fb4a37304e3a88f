"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.configuration import lookup
from ncclt.core.option import Group

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
    return _storage.get() or lookup("storage").value


Model = Annotated[str, typer.Option(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the result without storing it.")]

ReplaceCluster = Annotated[bool, typer.Option("--replace", help="Replace an added cluster of this name.")]

ReplaceWorkload = Annotated[bool, typer.Option("--replace", help="Replace an imported workload of this name.")]

StepsPerDay = Annotated[
    int | None,
    typer.Option(
        help="Training steps per day, to state the gain in GPU hours.",
        min=1,
        rich_help_panel=Group.BUDGET,
    ),
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print messages, facts and remarks too.")]


def storage_option(storage: str | None, shown: str) -> str:
    """Return the option that another command needs to find this store; empty where it needs none.

    Args:
        storage: the URL given to this command, None = the user's own store.
        shown: the store as shown to users, without password.
    """
    if storage is None:
        return ""
    if storage.startswith("sqlite"):
        return f" --storage {shlex.quote(f'sqlite:///{Path(shown).absolute()}')}"
    # A password is not printed: where the shell has the URL with one, it stays the only one that works.
    return "" if storage == os.environ.get("NCCLT_STORAGE") != shown else f" --storage {shlex.quote(shown)}"

"""Options that several commands share, so that they are spelled and explained alike."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

Storage = Annotated[
    str | None,
    typer.Option(
        envvar="NCCLT_STORAGE",
        help="Database URL of the store, for example sqlite:///ncclt.db or postgresql://user@host/db. "
        "Default: an SQLite file in your data folder.",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be stored; store nothing.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]


def storage_option(storage: str | None, shown: str) -> str:
    """Return the option with which another command finds the store, empty when it finds it by itself.

    Args:
        storage: the URL that this command was given, None = the user's own store.
        shown: the store for people, without password.
    """
    if storage is None or storage == os.environ.get("NCCLT_STORAGE"):
        return ""
    url = storage if storage.startswith("sqlite") else shown
    return f" --storage {shlex.quote(url)}"

"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.completion import model_names
from ncclt.core.option import Group

Storage = Annotated[
    str | None,
    typer.Option(
        envvar="NCCLT_STORAGE",
        help="Database URL of the store, for example sqlite:///ncclt.db or postgresql://user@host/db. "
        "Default: an SQLite file in your data folder.",
        show_default=False,
        rich_help_panel=Group.OUTPUT,
    ),
]

Model = Annotated[str, typer.Option(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=Group.OUTPUT)]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be stored; store nothing.")]

ReplaceCluster = Annotated[bool, typer.Option("--replace", help="Replace an added cluster of this name.")]

ReplaceWorkload = Annotated[bool, typer.Option("--replace", help="Replace an imported workload of this name.")]

StepsPerDay = Annotated[
    int | None,
    typer.Option(
        help="Training steps that the job makes per day, for what a gain is worth. Default: steps as recorded, around "
        "the clock; where their length is not known, one per second.",
        min=1,
        rich_help_panel=Group.BUDGET,
    ),
]

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.", rich_help_panel=Group.OUTPUT)
]

Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Show the messages, all facts and remarks as well.", rich_help_panel=Group.OUTPUT
    ),
]


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

"""`ncclt store`: the database."""

from __future__ import annotations

import sys

import typer

from ncclt.cli.options import Storage

app = typer.Typer(help="Create and migrate the database.", no_args_is_help=True)


@app.callback()
def store() -> None:
    """Manage the database."""


@app.command("migrate")
def migrate(storage: Storage = None) -> None:
    """Create the tables or bring them up to this version of ncclt."""
    from ncclt.store import open_store

    with open_store(storage) as opened:
        state = opened.migration()
        sys.stdout.write(f"{opened.shown} is at {state.current}\n")

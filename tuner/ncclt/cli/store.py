"""`ncclt store`: the database."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.options import Storage

app = typer.Typer(help="Create, migrate, copy and move the database.", no_args_is_help=True)


@app.callback()
def store() -> None:
    """Manage the database."""


@app.command("migrate")
def migrate(storage: Storage = None) -> None:
    """Create the tables or bring them up to this version of ncclt; on PostgreSQL those of the job queue too."""
    from ncclt.store import open_store

    with open_store(storage) as opened:
        state = opened.migration()
        if opened.path is None and importlib.util.find_spec("dbos"):
            from ncclt_api.job_queue import prepare

            prepare(opened.url)
        sys.stdout.write(f"{opened.shown} is at {state.current}\n")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="New file, for example store.jsonl.gz.")], storage: Storage = None
) -> None:
    """Write everything but keys to a file, which `import` reads into any other store."""
    from ncclt.store.archive import export_store
    from ncclt.store.location import locate

    _say(export_store(locate(storage), file))


@app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="File that `export` wrote.")], storage: Storage = None) -> None:
    """Fill an empty store from an export: all of it or nothing. SQLite to PostgreSQL and back."""
    from ncclt.store import open_store
    from ncclt.store.archive import import_store
    from ncclt.store.location import locate

    open_store(storage).close()  # makes the tables
    _say(import_store(locate(storage), file))


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="New file, a copy of the SQLite file with its keys.")],
    storage: Storage = None,
) -> None:
    """Copy an SQLite store while it is in use. For PostgreSQL use pg_dump."""
    from ncclt.store.archive import back_up
    from ncclt.store.location import locate

    back_up(locate(storage), file)
    sys.stdout.write(f"{file} is a copy; restore it by using it: --storage sqlite:///{file.absolute()}\n")


def _say(counts: dict[str, int]) -> None:
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in counts.items()) + "\n")

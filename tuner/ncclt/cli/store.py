"""`ncclt admin store`: the database."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import spread
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError
from ncclt.store import open_store
from ncclt.store.location import locate

app = typer.Typer(help="Create, migrate, export, import and prune the store.", no_args_is_help=True)


@app.command("migrate")
def migrate() -> None:
    """Create or upgrade the tables of the store and job queue."""
    with open_store(storage_url()) as opened:
        revision = opened.migration()
        if importlib.util.find_spec("dbos"):
            from ncclt.store.job_queue import prepare

            prepare(opened.url)
        sys.stdout.write(f"{opened.shown} is at {revision}\n")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Path to a new file: store.jsonl.gz, or copy.db for SQLite.")],
) -> None:
    """Export the store to a file, even while it is in use.

    A file for `import` holds everything but the keys. A name that ends in .db is a copy of an SQLite store, keys
    included.
    """
    from ncclt.store.archive import back_up, export_store

    location = locate(storage_url())
    if file.suffix == ".db":
        back_up(location, file)
        sys.stdout.write(f"copied to {file}; use it with --storage sqlite:///{file.absolute()}\n")
    else:
        _say(export_store(location, file))


@app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="Path to a file written by `export`.")]) -> None:
    """Import an export into an empty store."""
    from ncclt.store.archive import import_store

    _say(import_store(locate(storage_url()), file))


@app.command("prune")
@spread
def prune(
    older_than: Annotated[str, Option("Min age in days, such as 180d.")],
    dry_run: Annotated[bool, Option("List what would be removed; remove nothing.")] = False,
) -> None:
    """Remove old records and studies that no job depends on.

    Removes attestations, rechecks, verifications, segments, preflights, step times and ended tuning jobs of that age,
    and studies whose revisions are all retired and replaced. Keeps the history, evidence of staleness, and the newest
    preflight of each cluster.
    """
    from ncclt.store.retention import prune_store

    if not re.fullmatch(r"[1-9][0-9]{0,4}d", older_than):
        raise UsageError(f"--older-than {older_than!r} is not a number of days", hint="for example 180d; at least 1d")
    age, location = timedelta(days=int(older_than.removesuffix("d"))), locate(storage_url())
    before = (datetime.now(UTC) - age).isoformat(timespec="milliseconds")
    counts = prune_store(location, before, dry_run=dry_run, forget=_forget)
    # Their tables are another library's, and on SQLite another file: a transaction of their own.
    if importlib.util.find_spec("dbos"):
        from ncclt.store.job_queue import prune_jobs

        counts["tuning jobs"] = prune_jobs(location.url, before=before, dry_run=dry_run)
    sys.stdout.write("would remove " if dry_run else "removed ")
    _say(counts)


def _forget(optuna_url: str, names: Sequence[str]) -> None:
    from ncclt.search.optuna_tables import forget_studies

    forget_studies(optuna_url, names)


def _say(counts: dict[str, int]) -> None:
    plurals = {name.replace("_", " "): count for name, count in counts.items() if count}
    some = [count_noun(count, re.sub(r"ies$", "y", many).removesuffix("s"), many) for many, count in plurals.items()]
    sys.stdout.write((", ".join(some) or "nothing") + "\n")

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

from ncclt.cli.options import Storage
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError

app = typer.Typer(help="Create, migrate, copy, move and prune the database.", no_args_is_help=True)


@app.callback()
def store() -> None:
    """Manage the database."""


@app.command("migrate")
def migrate(storage: Storage = None) -> None:
    """Create the tables or bring them up to this version of ncclt, and those of the job queue too."""
    from ncclt.store import open_store

    with open_store(storage) as opened:
        state = opened.migration()
        if importlib.util.find_spec("dbos"):
            from ncclt.store.job_queue import prepare

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
    from ncclt.store.archive import import_store
    from ncclt.store.location import locate

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


@app.command("prune")
def prune(
    older_than: Annotated[str, typer.Option(help="Age in days, for example 180d.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    storage: Storage = None,
) -> None:
    """Remove what no longer matters; never what jobs get or may get, nor the history.

    Of that age: attestations, checks, verifications, preflights, step times and ended tuning jobs, and studies with
    their trials and revisions, if those are all retired and a newer one exists. What decides whether a revision is
    stale stays, and the newest preflight of each cluster.
    """
    from ncclt.store.location import locate
    from ncclt.store.retention import prune_store

    before, location = _days_ago(older_than), locate(storage)
    counts = prune_store(location, before, dry_run=dry_run, forget=_forget)
    # Their tables are another library's, and on SQLite another file: a transaction of their own.
    if importlib.util.find_spec("dbos"):
        from ncclt.store.job_queue import prune_jobs

        counts["tuning jobs"] = prune_jobs(location.url, before=before, dry_run=dry_run)
    sys.stdout.write("would remove " if dry_run else "removed ")
    _say(counts)


def _days_ago(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        raise UsageError(f"--older-than {text!r} is not a number of days", hint="for example 180d; at least 1d")
    return (datetime.now(UTC) - timedelta(days=int(text.removesuffix("d")))).isoformat(timespec="milliseconds")


def _forget(optuna_url: str, names: Sequence[str]) -> None:
    from ncclt.search.optuna_tables import forget_studies

    forget_studies(optuna_url, names)


def _say(counts: dict[str, int]) -> None:
    plurals = {name.replace("_", " "): count for name, count in counts.items() if count}
    some = [count_noun(count, re.sub(r"ies$", "y", many).removesuffix("s"), many) for many, count in plurals.items()]
    sys.stdout.write((", ".join(some) or "nothing") + "\n")

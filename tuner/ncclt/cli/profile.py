"""`ncclt profile`: the workloads of training jobs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.completion import model_names
from ncclt.cli.options import AsJson, DryRun, ReplaceWorkload, storage_url
from ncclt.cli.output import print_json, print_table, say
from ncclt.cli.profile_diff import diff
from ncclt.cli.profile_model import model
from ncclt.cli.record import CONTEXT_SETTINGS, record
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.workload import Workload

app = typer.Typer(help="List, show, import, record, merge and compare workloads.", no_args_is_help=True)


@app.callback()
def profile() -> None:
    """List, show, import, record, merge and compare workloads."""


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List shipped and imported workloads."""
    from ncclt.core.message import format_bytes
    from ncclt.store import open_to_read

    with open_to_read(storage_url()) as store:
        entries = store.workloads.entries()
    if as_json:
        rows = [
            {
                "name": e.item.name,
                "shipped": e.shipped,
                "source": e.item.provenance.source,
                "messages": len(e.item.messages),
                "bytes_per_step": e.item.bytes_per_step,
                "whole_file": e.item.provenance.whole_file,
            }
            for e in entries
        ]
        print_json({"schema": 1, "workloads": rows})
        return
    print_table(
        ("name", "source", "messages", "bytes per step", "collectives", "origin"),
        [
            (
                w.name,
                w.provenance.source,
                str(len(w.messages)),
                format_bytes(round(w.bytes_per_step)) + (" in all" if w.provenance.whole_file else ""),
                ", ".join(sorted(w.collectives)),
                "shipped" if e.shipped else "imported",
            )
            for e in entries
            for w in (e.item,)
        ],
        numbers=("messages", "bytes per step"),
    )


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)
    ],
    limit: Annotated[int, typer.Option(help="Max rows; 0 = all.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Show the messages of a workload, largest share first."""
    from ncclt.store import open_to_read

    if limit < 0:
        raise UsageError(f"--limit must be 0 or more, not {limit}")
    from ncclt.cli.profile_view import print_profile, profile_document

    with open_to_read(storage_url()) as store:
        workload = store.workloads.get(name)
    if as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=limit)


@app.command("import")
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(help="Traces of one job: files, one per rank, a folder, a pipe, or - for stdin."),
    ],
    name: Annotated[str, typer.Option(help="Name of the workload.")],
    source: Annotated[
        str | None, typer.Option(help="Kind of source, such as kineto; default: recognised by content.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps in files that mark none."),
    ] = None,
    replace: ReplaceWorkload = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Import traces of a training job as a workload.

    Ranks are merged; a call that several of them recorded counts once.
    """
    from ncclt.core.name import check_name
    from ncclt.profile import read_workload

    check_name(name, "--name")
    workload = read_workload(files, name=name, source=source)
    if steps is not None:
        workload = workload.over_steps(steps, f"calls of the whole file, divided by its {steps} steps (--steps)")
    _keep(workload, storage_url(), replace=replace, dry_run=dry_run, as_json=as_json)


def _keep(workload: Workload, storage: str | None, *, replace: bool, dry_run: bool, as_json: bool) -> None:
    """Store a new workload and print it."""
    from ncclt.store import open_store

    if not dry_run:
        with open_store(storage) as store:
            store.workloads.add(workload, replace=replace)
            say(f"ncclt: stored {workload.name} in {store.shown}")
    if as_json:
        print_json(workload.to_document())
    else:
        from ncclt.cli.profile_view import print_profile

        print_profile(workload, limit=40)
        if not dry_run:
            name = shlex.quote(workload.name)
            if workload.step_time_us and workload.exposed_us is not None:
                print(f"next: `ncclt advise --model {name}` predicts changes that shorten the step")
            print(f"next: `ncclt tune --model {name}` where the job runs: in a Slurm allocation or on its GPUs")


@app.command("merge")
def merge(
    parts: Annotated[
        list[str],
        typer.Argument(metavar="A B...", help="Names of the workloads to merge.", autocompletion=model_names),
    ],
    name: Annotated[str, typer.Option(help="Name of the merged workload.")],
    weights: Annotated[
        str | None,
        typer.Option(help="Comma-separated steps of each part per merged step; default: 1 each."),
    ] = None,
    replace: ReplaceWorkload = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Merge workloads, to find one policy for all of them."""
    storage = storage_url()
    from datetime import UTC, datetime

    from ncclt.core.name import check_name
    from ncclt.core.workload import merge_workloads
    from ncclt.store import open_store, open_to_read

    check_name(name, "--name")
    try:
        if weights is not None and ("_" in weights or not weights.isascii()):  # float() takes 1_0 for 10
            raise ValueError
        numbers = [1.0] * len(parts) if weights is None else [float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError(f"--weights is {weights!r}", hint="it is one number per workload, for example 3,1") from None
    if len(numbers) != len(parts):
        raise UsageError(
            f"--weights gives {len(numbers)} number{'s' * (len(numbers) != 1)} for {len(parts)} workloads",
            hint="give one for each",
        )
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        found = [(store.workloads.get(part), weight) for part, weight in zip(parts, numbers, strict=True)]
    workload = merge_workloads(found, name=name, created=datetime.now(UTC).date().isoformat())
    _keep(workload, storage, replace=replace, dry_run=dry_run, as_json=as_json)


app.command("record", context_settings=CONTEXT_SETTINGS)(record)
app.command("diff")(diff)
app.command("model")(model)

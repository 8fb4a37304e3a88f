"""`ncclt report`: a study as one file to send around."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.options import Storage
from ncclt.cli.output import say
from ncclt.errors import require_extra

app = typer.Typer()


@app.command()
def report(
    key: Annotated[str, typer.Argument(metavar="STUDY", help="Id, start of an id, or name of the study.")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; - = standard output.")] = "-",
    storage: Storage = None,
) -> None:
    """Write a study as one HTML file to send around: verdict, command, charts with their tables, trials.

    It is made from the store; no server has to run. The file opens from a disk and loads nothing.
    """
    require_extra("api")
    from ncclt.cli.env import write_whole
    from ncclt.store import open_to_read
    from ncclt_api.pages.report import study_report

    with open_to_read(storage) as store:
        text = study_report(store, store.study(key))
    if output == "-":
        # Whatever the locale is: the page says that it is UTF-8.
        sys.stdout.buffer.write(text.encode())
        return
    write_whole(Path(output), text, option="--output")
    say(f"report written to {output}")

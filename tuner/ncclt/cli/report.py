"""`ncclt report`: a study as one file to send around."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ncclt.cli.completion import study_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.render import say
from ncclt.cli.stdio import Styled
from ncclt.errors import require_extra

if TYPE_CHECKING:
    from io import TextIOWrapper

app = typer.Typer()


@app.command()
def report(
    ctx: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="Name of the study, its id, or the start of it.", autocompletion=study_names
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Path to the file; - = stdout.")] = "-",
) -> None:
    """Write a study as one HTML file.

    Reads the store; needs no server. The file is self-contained.
    """
    require_extra("api")
    from ncclt.cli.env import write_whole
    from ncclt.cli.serve import service_command

    argv, environment = service_command("report", storage_url(), ctx, study=key)
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, env=environment)
    if done.returncode:
        raise typer.Exit(done.returncode)
    if output == "-":
        # UTF-8 as the page declares, whatever the locale. Errors of `buffer` itself would go unreported.
        cast("TextIOWrapper", sys.stdout).reconfigure(encoding="utf-8")
        Styled(sys.stdout).write(done.stdout.decode())
        return
    write_whole(Path(output), done.stdout.decode(), option="--output")
    say(f"report written to {output}")

"""`ncclt run` among the other commands: listed in the help, and reached with options before it."""

from __future__ import annotations

import sys

import typer

from ncclt.cli.run import main

app = typer.Typer(add_completion=False)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def run(ctx: typer.Context) -> None:
    """Start a job with what was proven for it, and say afterwards whether it took effect."""
    # The framework swallows the `--` that parts our options from the command.
    raise typer.Exit(main(sys.argv[sys.argv.index("run") + 1 :]))

"""`ncclt env` among the other commands: listed in the help, and reached with options before it."""

from __future__ import annotations

import typer

from ncclt.cli.env import main

app = typer.Typer(add_completion=False)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def env(ctx: typer.Context) -> None:
    """Print the environment that was proven for a workload on a cluster, and nothing else."""
    raise typer.Exit(main(ctx.args))

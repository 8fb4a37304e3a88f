"""The commands. Each one is a module, imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ncclt import __version__
from ncclt.cli.configuration import default_map
from ncclt.cli.edge import report
from ncclt.errors import NccltError

COMMANDS: dict[str, str] = {
    "tune": "ncclt.cli.tune",
    "check": "ncclt.cli.check",
    "verify": "ncclt.cli.verify",
    "doctor": "ncclt.cli.doctor",
    "preflight": "ncclt.cli.preflight",
    "env": "ncclt.cli.env_command",
    "run": "ncclt.cli.run_command",
    "attest": "ncclt.cli.attest",
    "profile": "ncclt.cli.profile",
    "cluster": "ncclt.cli.cluster",
    "estimate": "ncclt.cli.estimate",
    "studies": "ncclt.cli.studies",
    "serve": "ncclt.cli.serve",
    "store": "ncclt.cli.store",
    "plugin": "ncclt.cli.plugin",
    "config": "ncclt.cli.config",
}
"""Command -> module; each module has a typer application named `app`."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are needed, and the one place where our errors reach people."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn our errors into one readable sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except NccltError as error:
            if ctx.params.get("debug"):
                raise
            raise typer.Exit(report(error)) from error


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ncclt {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Find, prove and serve the NCCL configuration that moves one training workload fastest on one cluster.

    Start with: ncclt tune --model bert --nodes 2
    """
    ctx.default_map = default_map()

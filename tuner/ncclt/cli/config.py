"""`ncclt config`: what holds, and where it comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from ncclt.cli.configuration import KEYS, PROJECT_FILE, origins, user_file
from ncclt.cli.edge import print_json

app = typer.Typer(help="Show the configuration and where each value comes from.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration and where each value comes from."""


@app.command("show")
def show(as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> None:
    """Show every value that holds when no flag says otherwise, with its origin."""
    found = origins()
    if as_json:
        print_json({"schema": 1, "values": {o.key: {"value": o.value, "origin": o.origin} for o in found}})
        return
    from ncclt.cli.tables import print_table

    print_table(
        ("key", "value", "origin", "meaning"),
        [(o.key, o.value or "-", o.origin, KEYS[o.key]) for o in found],
        caption=f"flag > NCCLT_* > ./{PROJECT_FILE} > {user_file()} > default",
    )

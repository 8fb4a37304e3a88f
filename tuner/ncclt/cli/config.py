"""`ncclt config`: the values in effect, and where each comes from."""

from __future__ import annotations

from dataclasses import replace

import typer

from ncclt.cli.configuration import KEYS, PROJECT_FILE, origins, user_file
from ncclt.cli.options import AsJson
from ncclt.cli.output import print_json, print_table
from ncclt.errors import hide_passwords
from ncclt.store.location import default_url

app = typer.Typer(help="Show the configuration and the origin of each value.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration and the origin of each value."""


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show the values that apply without flags, and their origins."""
    found = [
        replace(o, value=default_url()) if (o.key, o.value, o.origin) == ("storage", None, "default") else o
        for o in origins()
    ]
    if as_json:
        print_json({"schema": 1, "values": {o.key: {"value": _shown(o.value), "origin": o.origin} for o in found}})
        return
    print_table(
        ("key", "value", "origin", "meaning"),
        [(o.key, _shown(o.value) or "-", o.origin, KEYS[o.key]) for o in found],
        caption=f"flag > NCCLT_* > ./{PROJECT_FILE} > {user_file()} > default",
    )


def _shown(value: str | None) -> str | None:
    return None if value is None else hide_passwords(value)

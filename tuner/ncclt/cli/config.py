"""`ncclt config`: the values in effect, and where each comes from."""

from __future__ import annotations

from dataclasses import replace

import typer

from ncclt.cli.configuration import KEYS, PROJECT_FILE, origins, user_file
from ncclt.cli.options import AsJson
from ncclt.cli.render import Column, print_json, print_table
from ncclt.errors import hide_passwords
from ncclt.store.location import default_url

app = typer.Typer(help="Show the configuration and the origin of each value.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration and the origin of each value."""


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show the values that apply without flags, and their origins."""
    settings = [
        replace(setting, value=default_url())
        if (setting.key, setting.value, setting.origin) == ("storage", None, "default")
        else replace(setting, value=setting.value and hide_passwords(setting.value))
        for setting in origins()
    ]
    if as_json:
        print_json({"schema": 1, "values": {o.key: {"value": o.value, "origin": o.origin} for o in settings}})
        return
    print_table(
        settings,
        [
            Column("key", lambda setting: setting.key),
            Column("value", lambda setting: setting.value or "-"),
            Column("origin", lambda setting: setting.origin),
            Column("meaning", lambda setting: KEYS[setting.key], drop=1),
        ],
        caption=f"flag > NCCLT_* > ./{PROJECT_FILE} > {user_file()} > default",
    )

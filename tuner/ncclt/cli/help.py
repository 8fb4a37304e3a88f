"""Help: commands by verb, options under their headings, and plain text where no terminal shows it."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from ncclt.core.option import Group

VERBS: dict[str, tuple[str, ...]] = {
    "Profile: what a job sends": ("profile", "estimate", "advise"),
    "Search: the best settings": ("tune", "autotune"),
    "Measure: the cluster": ("cluster", "landscape", "simulate", "doctor", "preflight", "upgrade"),
    "Prove: whether it helps": ("verify", "check"),
    "Deliver: to jobs": ("env", "run", "attest", "plugin"),
    "Store and service": (
        "studies",
        "report",
        "recommendations",
        "store",
        "serve",
        "jobs",
        "worker",
        "keys",
        "config",
    ),
}
"""Heading -> commands, in the order of the help."""


def heading_of(command: str) -> str | None:
    """Return the verb that a command belongs to; None for a command of a command."""
    return next((verb for verb, names in VERBS.items() if command in names), None)


def arrange(command: Any) -> None:
    """Order the options of a command by their headings; outside of a terminal, its help is text without boxes."""
    order = ["", *Group]
    command.params.sort(key=lambda one: order.index(one.rich_help_panel or ""))
    if not sys.stdout.isatty():
        command.rich_markup_mode = None
        command.format_options = partial(_write_plainly, command)


def _write_plainly(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for one in command.get_params(ctx):
        usual = "Arguments" if one.param_type_name == "argument" else "Options"
        if record := one.get_help_record(ctx):
            sections.setdefault(one.rich_help_panel or usual, []).append(record)
    # --help has no heading and is the last parameter.
    for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
        below = command.get_command(ctx, name)
        text = " ".join((below.help or "").partition("\n\n")[0].split())
        sections.setdefault(below.rich_help_panel or "Commands", []).append((name, text))
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)

"""`ncclt admin`: operate the store, the service and the job queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from ncclt.cli.help import LazyGroup


class AdminGroup(LazyGroup):
    """Commands of operators."""

    modules: ClassVar[Mapping[str, str]] = {
        name: f"ncclt.cli.{name}" for name in ("jobs", "worker", "recommendations", "store", "keys", "plugin")
    }


app = typer.Typer(cls=AdminGroup, no_args_is_help=True)


@app.callback()
def admin() -> None:
    """Manage jobs, recommendations, store, keys and tuner plugin."""

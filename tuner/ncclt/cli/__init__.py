"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line.

    `ncclt env` and `ncclt run` stand in the way of every launch of a training job, so they go without the framework
    that the other commands are made with: that one alone takes a quarter of a second to parse an option
    (docs/adr/0004).
    """
    if sys.argv[1:2] == ["env"]:
        from ncclt.cli.env import main as env

        sys.exit(env(sys.argv[2:]))
    if sys.argv[1:2] == ["run"]:
        from ncclt.cli.run import main as run

        sys.exit(run(sys.argv[2:]))
    from ncclt.cli.application import app

    app()

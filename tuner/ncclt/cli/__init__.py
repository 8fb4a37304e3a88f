"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ncclt.cli.stdio import prepare


def main() -> None:
    """Run the command line; even with broken streams it ends with an error message and an exit code."""
    stdout = prepare()
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        from ncclt.cli.exits import EXIT_INTERRUPTED

        code = EXIT_INTERRUPTED
    except OSError as error:
        if stdout is None or error is not stdout.failure:
            raise
        code = 1
    sys.exit(stdout.settle(code) if stdout else code)


def _run(words: Sequence[str]) -> int:
    """Run one command and return its exit code.

    `ncclt env` and `ncclt run` delay every launch of a training job, so they do without the CLI framework
    of the other commands, which alone takes a quarter of a second to parse an option
    (docs/adr/0004).
    """
    try:
        if words[:1] == ["env"] or words[:2] == ["--debug", "env"]:
            from ncclt.cli.env import main as env

            return env(words[words.index("env") + 1 :], debug=words[0] == "--debug")
        if words[:1] == ["run"] or words[:2] == ["--debug", "run"]:
            from ncclt.cli.run import main as run

            return run(words[1:] if words[0] == "run" else [words[0], *words[2:]])
        from ncclt.cli.application import app

        app()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        return end.code or 0
    return 0

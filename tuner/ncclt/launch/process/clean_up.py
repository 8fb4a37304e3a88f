"""Commands that end what a launch has left on other machines."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, new_mark

CLEAN_UP_S = 30.0
"""For one command: connecting to a host that does not answer, and the grace periods of its processes there."""


def clean_up(commands: Sequence[Sequence[str]], *, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Run commands one after another, also after one has failed.

    Returns:
        one sentence for each command that failed.
    """
    complaints = (_complaint(argv, environment) for argv in commands)
    return tuple(complaint for complaint in complaints if complaint)


def _complaint(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    mark = new_mark()
    # A file, not a pipe: a grandchild that holds a pipe open would make us wait for it.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                argv,
                env={**environment, MARK_VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                timeout=CLEAN_UP_S,
                check=False,
            )
        except OSError as error:
            return f"{argv[0]} cannot be started: {error.strerror or error}"
        except subprocess.TimeoutExpired:
            return f"{argv[0]} was not done after {CLEAN_UP_S:.0f} s"
        finally:
            end_members(mark)
        if done.returncode == 0:
            return ""
        said.seek(0)
        lines = said.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{argv[0]} ended with exit code {done.returncode}: {last}"

"""Slurm's own commands, asked so that one which hangs or is interrupted does no harm."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

_QUESTION_S = 60.0
"""A busy controller answers within this, or not at all."""


def ask(
    argv: Sequence[str], environment: Mapping[str, str] | None, *, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; one that does not answer has failed."""
    try:
        return subprocess.run(
            argv,
            env=None if environment is None else dict(environment),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=_QUESTION_S,
            check=False,
            # Ctrl-C is meant for ncclt, which is in the middle of a question perhaps.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 1, "", f"{argv[0]} did not answer within {_QUESTION_S:.0f} s")

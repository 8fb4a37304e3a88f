"""How the ranks below mpirun ended, where its exit code alone does not tell."""

from __future__ import annotations

import re
from dataclasses import replace

from ncclt.launch.launcher import LaunchResult

_CANNOT_START = ("unable to launch the specified application", "unable to access the specified app", "execvp error on")
"""What Open MPI (two versions of it) and Hydra say of a program that is not there; their exit codes differ."""

_NOT_STARTED_CODE = 127  # a shell's word for it (POSIX sh, 2.8.2)

_HYDRA_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (?P<number>\d+)\)")
"""Hydra exits with the signal's bare number (seen with 4.0.2), Open MPI with 128 + its number."""


def ending_of_mpi(result: LaunchResult) -> LaunchResult:
    """Return a result with an exit code that says how the first rank failed."""
    if result.exit_code is None or result.exit_code <= 0:
        return result
    said = result.stderr + result.stdout
    if any(words in said for words in _CANNOT_START):
        return replace(result, exit_code=_NOT_STARTED_CODE)
    if (ended := _HYDRA_SIGNAL.search(said)) and int(ended["number"]) == result.exit_code:
        return replace(result, exit_code=-result.exit_code)
    return result

"""How the ranks below torchrun and mpirun ended, where their exit code alone does not show it.

torchrun exits with 1 whatever happened and buries the reason under its own traceback. The words are those of
torch/distributed/elastic/multiprocessing/errors (ChildFailedError), seen with 2.13.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ncclt.launch.launcher import LaunchResult

_CANNOT_START = ("unable to launch the specified application", "unable to access the specified app", "execvp error on")
"""What Open MPI (in two versions) and Hydra print for a program that does not exist; their exit codes differ."""

_NOT_STARTED_CODE = 127  # as a shell exits (POSIX sh, 2.8.2)

_HYDRA_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (?P<number>\d+)\)")
"""Hydra exits with the signal's bare number (seen with 4.0.2), Open MPI with 128 + its number."""

_TRACEBACK = "Traceback (most recent call last):"
_BANNER = re.compile(r"^torch\.distributed\.elastic\.\S*ChildFailedError:.*\n=+\n(?P<text>(?:(?!=+$).*\n)*)=+\n?", re.M)
_STOPPED = re.compile(r"^torch\.distributed\.elastic\.\S*SignalException:.*\n?", re.M)
_ROOT = re.compile(r"^Root Cause .*\n(?P<text>(?:.*\n)*)", re.M)
_FIELD = re.compile(r"^ +(?P<name>time|host|rank|exitcode) +: +(?P<value>[^ \n]+)", re.M)
_SIGTERM_CODE = -15


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedRank:
    time: str
    host: str
    rank: str
    exit_code: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} failed first, with exit code {self.exit_code}"


def ending_of_ranks(result: LaunchResult) -> LaunchResult:
    """Return a result with the exit code of the rank that failed first, and without torchrun's own tracebacks.

    Args:
        result: of one torchrun, or of one per node with their outputs merged.
    """
    stderr, ranks = result.stderr, []
    while banner := _BANNER.search(stderr):
        ranks += _failed_ranks(banner["text"])
        stderr = _without_traceback(stderr, banner)
    while stopped := _STOPPED.search(stderr):
        stderr = _without_traceback(stderr, stopped)
    result = replace(result, stderr=stderr)
    if result.timed_out or result.killed or result.exit_code is None or result.exit_code <= 0:
        return result
    if ranks:
        # A rank that was ended because another one had failed is not the cause.
        first = min(ranks, key=lambda rank: (rank.exit_code == _SIGTERM_CODE, rank.time))
        return replace(result, exit_code=first.exit_code, stderr=f"{stderr.rstrip()}\ntorchrun: {first}\n".lstrip())
    return result


def _without_traceback(stderr: str, last: re.Match[str]) -> str:
    """Remove torchrun's own lines, from the first one of its traceback to the end of the last match."""
    start = stderr.rfind(_TRACEBACK, 0, last.start())
    return stderr[: last.start() if start < 0 else start] + stderr[last.end() :]


def _failed_ranks(banner: str) -> list[_FailedRank]:
    root = _ROOT.search(banner)
    fields = {match["name"]: match["value"] for match in _FIELD.finditer(root["text"] if root else "")}
    try:
        return [
            _FailedRank(
                time=fields["time"], host=fields["host"], rank=fields["rank"], exit_code=int(fields["exitcode"])
            )
        ]
    except (KeyError, ValueError):
        return []


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

"""Ranks of a launch: a shell before each checks its environment, and the first one that fails gives the exit code.

The shell reports the start of its rank, and starts it only where its environment is as planned.

Variables may be set between a launcher and its ranks: by a TaskProlog of slurm.conf, a profile script that a remote
shell reads, an image. A rank with such a variable measures something other than the plan, also for the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ncclt.launch.launcher import LaunchResult

DECIDING = (
    # What ncclt itself sets or searches (nccl.parameters), and what overrides that or adds other values.
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_P2P_*_CHUNKSIZE", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
    *("NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_TUNER_*", "NCCL_CONF_FILE", "NCCL_NO_CACHE"),
    *("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER"),
    *("NCCL_THREAD_THRESHOLDS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_*", "NCCL_CTA_POLICY"),
    # What delivers a policy to a job.
    *("NCCLT_TABLE", "NCCLT_AGREEMENT", "NCCLT_POLICY", "NCCLT_POLICY_*", "NCCLT_PLUGIN_REPORT"),
    "NCCLT_RECOMMENDATION",
)
"""Patterns of the variables that must be what the plan says.

All others belong to the site (interfaces, HCAs, service levels): a training has them too, and they may differ by node.
"""

UNFIT = "ncclt: unfit: "
"""Begins the line by which a rank says why it did not start its command."""

UNEXPECTED = "unexpected"
"""Begins the part of that line about variables, which follow as NAME=VALUE."""

UNFIT_CODE = 78
"""EX_CONFIG of sysexits.h."""

_SIGN = "ncclt: started"
"""The line by which a rank says that it has reached its node; without any, nothing of the launch has run."""

_SIGN_LINE = re.compile(rf"(?m)^\S{{0,60}} ?{_SIGN}\r?$\n?|{_SIGN}\n?")
"""Launchers can put the rank before each line, and ranks write at the same time."""

_UNFIT_LINE = re.compile(rf"{re.escape(UNFIT)}(?P<why>.+?)\s*$", re.M)

# Arguments: NAME=VALUE of each deciding variable of the plan, --, the command. One line, because launchers have
# their own formats for commands. A line of `env` may be part of a longer value: only what is set is a variable.
_CHECK = (
    f"echo '{_SIGN}' >&2; odd= planned=; "
    'while [ "$1" != -- ]; do name=${1%%=*}; eval "now=\\${$name-}"; '
    '[ "$now" = "${1#*=}" ] || odd="$odd $name=$now"; planned="$planned $name "; shift; done; shift; '
    "for name in $(env | sed -n 's/^\\(NCCLT\\{0,1\\}_[A-Za-z0-9_]*\\)=.*/\\1/p'); do "
    f"case $name in {'|'.join(DECIDING)}) ;; *) continue ;; esac; "
    'case $planned in *" $name "*) continue ;; esac; '
    'eval "[ -z \\"\\${$name+set}\\" ] || odd=\\"\\$odd $name=\\$$name\\""; done; '
    f'[ -z "$odd" ] || {{ echo "{UNFIT}{UNEXPECTED}$odd on $(uname -n)" >&2; exit {UNFIT_CODE}; }}; exec "$@"'
)


def is_deciding(name: str) -> bool:
    """Return True if a variable has to be what the plan says."""
    return any(fnmatchcase(name, pattern) for pattern in DECIDING)


def wrap_rank_command(argv: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return a rank's command that reports its start, and starts `argv` only where the environment is as planned.

    Args:
        argv: the command.
        variables: all NCCL_* and NCCLT_* variables that the plan gives to the ranks.
    """
    planned = (f"{name}={value}" for name, value in sorted(variables.items()) if is_deciding(name))
    return ("sh", "-c", _CHECK, "sh", *planned, "--", *argv)


def strip_signs(text: str) -> tuple[str, bool]:
    """Return an output without the lines by which ranks reported their start, and whether there was one."""
    text_without, count = _SIGN_LINE.subn("", text)
    return text_without, count > 0


def find_unfit_reason(text: str) -> str:
    """Return the reason that kept ranks from starting their command; empty where the output has no such line."""
    match = _UNFIT_LINE.search(text)
    return match["why"] if match else ""


_CANNOT_START = ("unable to launch the specified application", "unable to access the specified app", "execvp error on")
"""Words of Open MPI (in two versions) and Hydra for a program that does not exist; their exit codes differ."""

_NOT_STARTED_CODE = 127  # as a shell exits (POSIX sh, 2.8.2)

_HYDRA_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (?P<number>\d+)\)")
"""Hydra exits with the signal's bare number (seen with 4.0.2), Open MPI with 128 + its number."""

_TRACEBACK = "Traceback (most recent call last):"
_BANNER = re.compile(r"^torch\.distributed\.elastic\.\S*ChildFailedError:.*\n=+\n(?P<text>(?:(?!=+$).*\n)*)=+\n?", re.M)
_STOPPED = re.compile(r"^torch\.distributed\.elastic\.\S*SignalException:.*\n?", re.M)
_ROOT = re.compile(r"^Root Cause .*\n(?P<text>(?:.*\n)*)", re.M)
_FIELD = re.compile(r"^ +(?P<name>time|host|rank|exitcode) +: +(?P<value>[^ \n]+)", re.M)
_NUMBER = re.compile(r"-?\d+", re.ASCII)
_SIGTERM_CODE = -15


def read_torchrun_ending(result: LaunchResult) -> LaunchResult:
    """Return a result with the exit code of the rank that failed first, and without torchrun's own tracebacks.

    Args:
        result: of one torchrun, or of one per node with their outputs merged.
    """
    stderr, ranks = result.stderr, list[dict[str, str]]()
    while banner := _BANNER.search(stderr):
        root = _ROOT.search(banner["text"])
        rank = {match["name"]: match["value"] for match in _FIELD.finditer(root["text"] if root else "")}
        if len(rank) == 4 and _NUMBER.fullmatch(rank["exitcode"]):
            ranks.append(rank)
        stderr = _without_traceback(stderr, banner)
    while stopped := _STOPPED.search(stderr):
        stderr = _without_traceback(stderr, stopped)
    result = replace(result, stderr=stderr)
    if result.timed_out or result.killed or result.exit_code is None or result.exit_code <= 0:
        return result
    if ranks:
        # A rank that was ended because another one had failed is not the cause.
        first = min(ranks, key=lambda rank: (int(rank["exitcode"]) == _SIGTERM_CODE, rank["time"]))
        code = int(first["exitcode"])
        sentence = f"torchrun: rank {first['rank']} on {first['host']} failed first, with exit code {code}"
        return replace(result, exit_code=code, stderr=f"{stderr.rstrip()}\n{sentence}\n".lstrip())
    return result


def _without_traceback(stderr: str, last: re.Match[str]) -> str:
    """Remove torchrun's own lines, from the first one of its traceback to the end of the last match."""
    start = stderr.rfind(_TRACEBACK, 0, last.start())
    return stderr[: last.start() if start < 0 else start] + stderr[last.end() :]


def read_mpi_ending(result: LaunchResult) -> LaunchResult:
    """Return a result with an exit code that says how the first rank failed."""
    if result.exit_code is None or result.exit_code <= 0:
        return result
    output = result.stderr + result.stdout
    if any(words in output for words in _CANNOT_START):
        return replace(result, exit_code=_NOT_STARTED_CODE)
    if (ended := _HYDRA_SIGNAL.search(output)) and int(ended["number"]) == result.exit_code:
        return replace(result, exit_code=-result.exit_code)
    return result

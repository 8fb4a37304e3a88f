"""A shell before each rank that reports its start, and starts the rank only where its environment is as planned.

Variables may be set between a launcher and its ranks: by a TaskProlog of slurm.conf, a profile script that a remote
shell reads, an image. A rank with such a variable measures something other than the plan, also for the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

DECIDING = (
    # What ncclt itself sets or searches (nccl.parameters), and what overrides that or adds other values.
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
    *("NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_TUNER_*", "NCCL_CONF_FILE", "NCCL_NO_CACHE"),
    *("NCCL_THREAD_THRESHOLDS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_*", "NCCL_CTA_POLICY"),
    # What delivers a policy to a job.
    *(
        "NCCLT_TABLE",
        "NCCLT_AGREEMENT",
        "NCCLT_POLICY",
        "NCCLT_POLICY_*",
        "NCCLT_PLUGIN_REPORT",
        "NCCLT_RECOMMENDATION",
    ),
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
    """Return whether a variable has to be what the plan says."""
    return any(fnmatchcase(name, pattern) for pattern in DECIDING)


def checked(argv: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return a rank's command that reports its start, and starts `argv` only where the environment is as planned.

    Args:
        argv: the command.
        variables: all NCCL_* and NCCLT_* variables that the plan gives to the ranks.
    """
    planned = (f"{name}={value}" for name, value in sorted(variables.items()) if is_deciding(name))
    return ("sh", "-c", _CHECK, "sh", *planned, "--", *argv)


def without_signs(text: str) -> tuple[str, bool]:
    """Return an output without the lines by which ranks reported their start, and whether there was one."""
    rest, count = _SIGN_LINE.subn("", text)
    return rest, count > 0


def unfit(text: str) -> str:
    """Return why ranks did not start their command; empty where the output has no such line."""
    said = _UNFIT_LINE.search(text)
    return said["why"] if said else ""

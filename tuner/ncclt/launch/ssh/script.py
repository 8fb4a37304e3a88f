"""What runs on each node of a launch by ssh: a script for its shell, the same for all nodes.

It needs Linux and a POSIX shell there, but not ncclt.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ncclt.launch.launcher import MARK
from ncclt.launch.process.process_tree import MARK_VARIABLE
from ncclt.launch.rank_check import DECIDING, UNFIT, UNFIT_CODE

RANK = "{ncclt-rank}"
"""Placeholder in a command for the rank of the node, the only difference between nodes."""

_MEMBERS = f"""\
# Everything that the launch starts here carries this mark; the shell that reads this does not.
mark={MARK}@$rank.
marked() {{
  grep -lsF -- "$mark" /proc/[0-9]*/environ | sed 's,/proc/,,; s,/environ,,'
}}
end_marked() {{ # tenths of a second between SIGTERM and SIGKILL
  ids=$(marked)
  [ -z "$ids" ] || kill -TERM $ids 2>/dev/null
  tenths=0
  while [ "$tenths" -lt "$1" ] && [ -n "$(marked)" ]; do sleep 0.1; tenths=$((tenths + 1)); done
  tenths=0
  while [ "$tenths" -lt 50 ] && ids=$(marked) && [ -n "$ids" ]; do
    kill -KILL $ids 2>/dev/null
    sleep 0.1
    tenths=$((tenths + 1))
  done
}}
say_left() {{
  ids=$(marked)
  [ -z "$ids" ] || {{ echo "ncclt: on $(uname -n) these still run after SIGKILL:" $ids >&2; return 1; }}
}}
"""
"""`marked` leaves the exit code of its last command, sed, which is 0."""


_RESOLVES = """\
import socket, sys
try:
    socket.getaddrinfo(sys.argv[1], None)
except socket.gaierror:
    sys.exit(3)
"""


def node_script(
    argv: Sequence[str],
    *,
    python: str,
    meeting_host: str,
    variables: Mapping[str, str],
    files: Sequence[tuple[str, str, str]],
    cwd: str,
    limit_s: int,
    grace_s: float,
) -> str:
    """Return the script that runs a command on a node; its arguments are a private folder there and the node's rank.

    Args:
        argv: the command; the node's rank replaces `RANK`.
        python: an interpreter there.
        meeting_host: where the ranks meet; a node that cannot resolve the name reports that at once.
        variables: for the command, which gets no other NCCL_* variables, and none of NCCLT_* that it depends on.
        files: (path, name, text): written to the folder as `name`, which replaces `path` in the command.
        cwd: folder to run it in, where the node has it.
        limit_s: after this it is ended without a request: a connection may die without either side noticing.
        grace_s: between SIGTERM and SIGKILL.
    """
    named = {path: name for path, name, _text in files}

    def word(argument: str) -> str:
        if argument == RANK:
            return '"$rank"'
        return f'"$folder"/{shlex.quote(named[argument])}' if argument in named else shlex.quote(argument)

    tenths = round(grace_s * 10)
    ours = [pattern for pattern in DECIDING if pattern.startswith("NCCLT_")]
    writes = [f'printf %s {shlex.quote(text)} >"$folder"/{shlex.quote(name)} || return' for _path, name, text in files]
    exports = [f"  export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return "\n".join(
        [
            "# Standard input stays open for as long as somebody waits for this launch.",
            "folder=$1 rank=$2",
            _MEMBERS,
            "main() {  # a function, so that nothing is done where only a part of this has arrived",
            *writes,
            "(",
            "  for name in $(env | sed -n 's/^\\(NCCLT\\{0,1\\}_[A-Za-z0-9_]*\\)=.*/\\1/p'); do",
            f'    case $name in NCCL_*|{"|".join(ours)}) unset "$name" ;; esac',
            "  done",
            *exports,
            f"  export {MARK_VARIABLE}=$mark",
            f'  cd {shlex.quote(cwd)} 2>/dev/null || cd "$folder" || exit',
            f"  {shlex.quote(python)} -I -S -c {shlex.quote(_RESOLVES)} {shlex.quote(meeting_host)} 2>/dev/null",
            "  [ $? -ne 3 ] || {",
            f'    echo "{UNFIT}$(uname -n) does not know the address of "{shlex.quote(meeting_host)} >&2',
            f"    exit {UNFIT_CODE}",
            "  }",
            f"  exec {' '.join(map(word, argv))}",
            ") </dev/null 3<&- &",
            "job=$!",
            f"( {MARK_VARIABLE}=$mark cat <&3; end_marked {tenths} ) >/dev/null 2>&1 &",
            "gone=$!",
            f"( {MARK_VARIABLE}=$mark sleep {limit_s}; end_marked {tenths} ) >/dev/null 2>&1 3<&- &",
            "late=$!",
            'wait "$job"',
            "code=$?",
            'kill "$gone" "$late" 2>/dev/null',
            f"end_marked {tenths}",
            'say_left || [ "$code" -ne 0 ] || code=1',
            'return "$code"',
            "}",
            "exec 3<&0",
            "main",
            "",
        ]
    )


def end_script(*, grace_s: float) -> str:
    """Return the script that ends what a launch has left on a node, and fails if it cannot."""
    tenths = round(grace_s * 10)
    return "\n".join(
        ["rank=$2", _MEMBERS, f"main() {{ end_marked {tenths}; sleep 0.3; end_marked 0; say_left; }}", "main", ""]
    )

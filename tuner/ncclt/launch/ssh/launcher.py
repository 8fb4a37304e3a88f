"""Starts a torchrun on each of several hosts by ssh, for clusters without a scheduler.

A script for the shell of each host runs the command there; it needs Linux and a POSIX shell, but not ncclt.

Not tested on a GPU; tested with a private sshd on one machine.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import InputError, UsageError, reason
from ncclt.launch.hostfile import Host, parse_host
from ncclt.launch.launcher import (
    FILES,
    MARK,
    NO_OPTIONS,
    PORT,
    JobShape,
    LauncherOption,
    LaunchPlan,
    LaunchResult,
    ProcessOptions,
)
from ncclt.launch.process.launcher import FORWARDED, ProcessLauncher, thread_variables
from ncclt.launch.process.process_tree import MARK_VARIABLE
from ncclt.launch.ranks import DECIDING, UNFIT, UNFIT_CODE, read_torchrun_ending, wrap_rank_command
from ncclt.launch.ssh.driver import NODES_FILE
from ncclt.launch.torchrun import MODULE, VERBATIM

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


def end_script(*, grace_s: float) -> str:
    """Return the script that ends what a launch has left on a node, and fails if it cannot."""
    tenths = round(grace_s * 10)
    return "\n".join(
        ["rank=$2", _MEMBERS, f"main() {{ end_marked {tenths}; sleep 0.3; end_marked 0; say_left; }}", "main", ""]
    )


_NODE_SCRIPT, _END_SCRIPT = "node.sh", "end.sh"
_DRIVER = (sys.executable, "-P", "-m", "ncclt.launch.ssh.driver", FILES)

_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # a password prompt could not be answered
    *("-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
    *("-o", "ClearAllForwardings=yes"),  # a forwarded port of the user's configuration can be bound only once
    *("-o", "ControlPath=none"),  # the end of a launch must not end a connection that others share
)
"""ssh uses the first value of an option, so the user's own options go before these. Host keys are left to ssh."""

_LATE_S = 60
"""Time after the launch's timeout at which a node ends its processes by itself."""


class SshLauncher(ProcessLauncher):
    """Starts the ranks of several hosts: one ssh and one torchrun on each.

    Args:
        ssh_args: further arguments of ssh, for example `-i key` or `-o StrictHostKeyChecking=accept-new`.
        address: address of the first host for the others; empty = its name.
        cwd: working folder on the hosts, if it exists there; None = the current one.
        process: `shape` names the hosts in the order of the ranks, `extra` are further options of torchrun, PATH and
            the like are forwarded from `environment`, `grace_s` applies here and on the hosts. A host's own NCCL_*
            variables never reach the command: all ranks see the same.

    Raises:
        UsageError: no hosts are named.
    """

    name = "ssh"
    needs_torch = True
    options = (
        LauncherOption(
            key="ssh-arg", metavar="ARG", help="Argument for ssh, such as -i or a key file", is_repeatable=True
        ),
    )

    def __init__(
        self,
        *,
        ssh_args: Sequence[str] = (),
        address: str = "",
        cwd: Path | None = None,
        **process: Unpack[ProcessOptions],
    ) -> None:
        super().__init__(**process)
        if not self.shape.hosts:
            raise UsageError(
                "--launcher ssh needs the names of the hosts", hint="name them with --hosts A,B or --hosts @FILE"
            )
        self._hosts = tuple(map(parse_host, self.shape.hosts))
        self._ssh_args = tuple(ssh_args)
        self._address = address or self._hosts[0].name
        self._cwd = cwd or Path.cwd()

    @classmethod
    def create(cls, *, options: Mapping[str, Any] = NO_OPTIONS, **process: Unpack[ProcessOptions]) -> Self:
        """Return the launcher for the hosts of a shape.

        Raises:
            UsageError: no hosts are named.
        """
        ssh_args = options.get("ssh_arg", ())
        shape = process.get("shape") or JobShape()
        address = _address(parse_host(shape.hosts[0]), ssh_args, process.get("environment")) if shape.hosts else ""
        return cls(ssh_args=ssh_args, address=address, **process)

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started; the script for the hosts is one of the plan's files.

        Raises:
            InputError: a file of the command cannot be read.
        """
        environment = self.environment
        for_ranks = {
            **{name: environment[name] for name in FORWARDED if name in environment},
            **thread_variables(environment, variables),
            **self.kept_variables(variables),
            **variables,
        }
        meeting_host = variables.get("MASTER_ADDR", self._address)
        script = self.node_script(
            self._torchrun(wrap_rank_command(argv, for_ranks), meeting_host, variables.get("MASTER_PORT", PORT)),
            meeting_host=meeting_host,
            variables=for_ranks,
            files=_read(files),
            limit_s=math.ceil(timeout_s) + _LATE_S,
        )
        commands = []
        for host in self._hosts:
            port = ["-p", str(host.port)] if host.port else []
            user = ["-l", host.user] if host.user else []
            commands.append(["ssh", *self._ssh_args, *_OPTIONS, *port, *user, host.name])
        nodes = json.dumps(commands, indent=1)
        return LaunchPlan(
            argv=(*_DRIVER, _NODE_SCRIPT),
            unset_env=self.removed_names(variables),
            files=((NODES_FILE, nodes), (_NODE_SCRIPT, script), (_END_SCRIPT, end_script(grace_s=self.grace_s))),
            clean_up=((*_DRIVER, _END_SCRIPT),),
            timeout_s=timeout_s,
        )

    def node_script(
        self,
        argv: Sequence[str],
        *,
        meeting_host: str,
        variables: Mapping[str, str],
        files: Sequence[tuple[str, str, str]],
        limit_s: int,
    ) -> str:
        """Return the script that runs a command on a node; its arguments are a private folder there and its rank.

        Args:
            argv: the command; the node's rank replaces `RANK`.
            meeting_host: where the ranks meet; a node that cannot resolve the name reports that at once.
            variables: for the command, which gets no other NCCL_* variables, and none of NCCLT_* that it depends on.
            files: (path, name, text): written to the folder as `name`, which replaces `path` in the command.
            limit_s: after this it is ended without a request: a connection may die without either side noticing.
        """
        named = {path: name for path, name, _text in files}

        def word(argument: str) -> str:
            if argument == RANK:
                return '"$rank"'
            return f'"$folder"/{shlex.quote(named[argument])}' if argument in named else shlex.quote(argument)

        tenths = round(self.grace_s * 10)
        writes = [
            f'printf %s {shlex.quote(text)} >"$folder"/{shlex.quote(name)} || return' for _path, name, text in files
        ]
        return "\n".join(
            [
                "# Standard input stays open for as long as somebody waits for this launch.",
                "folder=$1 rank=$2",
                _MEMBERS,
                "main() {  # a function, so that nothing is done where only a part of this has arrived",
                *writes,
                "(",
                *self._setup_lines(meeting_host, variables),
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

    def _setup_lines(self, meeting_host: str, variables: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines that set the environment and the folder of the command, and look up the meeting host."""
        meeting_host = shlex.quote(meeting_host)
        ours = "|".join(pattern for pattern in DECIDING if pattern.startswith("NCCLT_"))
        yield "  for name in $(env | sed -n 's/^\\(NCCLT\\{0,1\\}_[A-Za-z0-9_]*\\)=.*/\\1/p'); do"
        yield f'    case $name in NCCL_*|{ours}) unset "$name" ;; esac'
        yield "  done"
        yield from (f"  export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
        yield f"  export {MARK_VARIABLE}=$mark"
        yield f'  cd {shlex.quote(str(self._cwd))} 2>/dev/null || cd "$folder" || exit'
        yield f"  {shlex.quote(self.python)} -I -S -c {shlex.quote(_RESOLVES)} {meeting_host} 2>/dev/null"
        yield "  [ $? -ne 3 ] || {"
        yield f'    echo "{UNFIT}$(uname -n) does not know the address of "{meeting_host} >&2'
        yield f"    exit {UNFIT_CODE}"
        yield "  }"

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with the exit code of the rank that failed first."""
        return read_torchrun_ending(result)

    def _torchrun(self, argv: Sequence[str], meeting_host: str, meeting_port: str) -> tuple[str, ...]:
        return (
            *(self.python, "-m", MODULE),
            *("--nnodes", str(len(self._hosts))),
            *("--nproc-per-node", str(self.shape.processes_per_node)),
            *("--node-rank", RANK),
            *("--master-addr", meeting_host),
            *("--master-port", meeting_port),
            *("--max-restarts", "0"),
            *self.extra,
            VERBATIM,
            *argv,
        )


def _read(files: Sequence[Path]) -> list[tuple[str, str, str]]:
    """Return (path, name there, text) of files; equal names are numbered."""
    names = Counter(path.name for path in files)
    try:
        return [
            (str(path), path.name if names[path.name] == 1 else f"{index}-{path.name}", path.read_text("utf-8"))
            for index, path in enumerate(files)
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the hosts cannot get the files of the benchmark ({', '.join(names)}): {reason(error)}"
        ) from error


def _address(host: Host, options: Sequence[str], environment: Mapping[str, str] | None) -> str:
    """Return the host name that ssh connects to: the given one may be an alias in this machine's ssh configuration."""
    try:
        settings = subprocess.run(
            ("ssh", *options, "-G", host.name),
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    except OSError:
        return host.name
    hostname = re.search(r"(?m)^hostname (\S+)$", settings)
    return hostname[1] if hostname else host.name

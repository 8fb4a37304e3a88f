"""Starts a torchrun on each of several hosts by ssh, for clusters without a scheduler.

Not tested on a GPU; tested with a private sshd on one machine.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import InputError, UsageError, reason
from ncclt.launch.endings import ending_of_ranks
from ncclt.launch.hostfile import Host, parse_host
from ncclt.launch.launcher import (
    FILES,
    NO_OPTIONS,
    PORT,
    JobShape,
    LauncherOption,
    LaunchPlan,
    LaunchResult,
    ProcessOptions,
)
from ncclt.launch.process.launcher import FORWARDED, ProcessLauncher, thread_variables
from ncclt.launch.rank_check import checked
from ncclt.launch.ssh.driver import NODES_FILE
from ncclt.launch.ssh.script import RANK, end_script, node_script
from ncclt.launch.torchrun import MODULE, VERBATIM

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
"""How long after the launch's timeout a node ends its processes by itself."""


class SshLauncher(ProcessLauncher):
    """Starts the ranks of several hosts: one ssh and one torchrun on each.

    Args:
        hosts: in the order of the ranks.
        processes_per_node: ranks on each.
        ssh_args: further words for ssh, for example `-i key` or `-o StrictHostKeyChecking=accept-new`.
        python: the Python that has torch, on every host.
        address: of the first host for the others; empty = its name.
        cwd: folder of the command on every host that has it; None = the current one.
        process: `extra` are further options of torchrun, PATH and the like are forwarded from `environment`,
            `grace_s` applies here and on the hosts. A host's own NCCL_* variables never reach the command: all ranks
            see the same.
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
        hosts: Sequence[Host],
        processes_per_node: int = 1,
        ssh_args: Sequence[str] = (),
        python: str = sys.executable,
        address: str = "",
        cwd: Path | None = None,
        **process: Unpack[ProcessOptions],
    ) -> None:
        self._hosts = tuple(hosts)
        self._processes_per_node = processes_per_node
        self._ssh_args = tuple(ssh_args)
        self._python = python
        self._address = address or self._hosts[0].name
        self._cwd = cwd or Path.cwd()
        super().__init__(**process)

    @classmethod
    def create(
        cls,
        *,
        shape: JobShape,
        options: Mapping[str, Any] = NO_OPTIONS,
        python: str = sys.executable,
        uses_mpi: bool = True,  # noqa: ARG003  torchrun starts no ranks of MPI
        **process: Unpack[ProcessOptions],
    ) -> Self:
        """Return the launcher for the hosts of a shape.

        Raises:
            UsageError: no hosts are named.
        """
        if not shape.hosts:
            raise UsageError("--launcher ssh needs the names of the hosts", hint="name them with --hosts or --hostfile")
        hosts = tuple(map(parse_host, shape.hosts))
        ssh_args = options.get("ssh_arg", ())
        return cls(
            hosts=hosts,
            processes_per_node=shape.processes_per_node,
            ssh_args=ssh_args,
            python=python,
            address=_address(hosts[0], ssh_args, process.get("environment")),
            **process,
        )

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
            **self.kept(variables),
            **variables,
        }
        meeting_host = variables.get("MASTER_ADDR", self._address)
        script = node_script(
            self._torchrun(checked(argv, for_ranks), meeting_host, variables.get("MASTER_PORT", PORT)),
            python=self._python,
            meeting_host=meeting_host,
            variables=for_ranks,
            files=_read(files),
            cwd=str(self._cwd),
            limit_s=math.ceil(timeout_s) + _LATE_S,
            grace_s=self.grace_s,
        )
        nodes = json.dumps([self._ssh(host) for host in self._hosts], indent=1)
        return LaunchPlan(
            argv=(*_DRIVER, _NODE_SCRIPT),
            unset_env=self.removed(variables),
            files=(
                (NODES_FILE, nodes),
                (_NODE_SCRIPT, script),
                (_END_SCRIPT, end_script(grace_s=self.grace_s)),
            ),
            clean_up=((*_DRIVER, _END_SCRIPT),),
            timeout_s=timeout_s,
        )

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with the exit code of the rank that failed first."""
        return ending_of_ranks(result)

    def _ssh(self, host: Host) -> list[str]:
        port = ["-p", str(host.port)] if host.port else []
        user = ["-l", host.user] if host.user else []
        return ["ssh", *self._ssh_args, *_OPTIONS, *port, *user, host.name]

    def _torchrun(self, argv: Sequence[str], meeting_host: str, meeting_port: str) -> tuple[str, ...]:
        return (
            *(self._python, "-m", MODULE),
            *("--nnodes", str(len(self._hosts))),
            *("--nproc-per-node", str(self._processes_per_node)),
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
        said = subprocess.run(
            ("ssh", *options, "-G", host.name),
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    except OSError:
        return host.name
    found = re.search(r"(?m)^hostname (\S+)$", said)
    return found[1] if found else host.name

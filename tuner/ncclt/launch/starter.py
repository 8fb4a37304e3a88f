"""What launchers share that start a program on this machine: the environment it inherits, its start and its end."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence

from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.process import GRACE_S, KEEP_BYTES, ProcessSession

KILL_GRACE_S = 1.0
"""After `kill`, for programs that have ranks elsewhere to end: mpirun, torchrun, srun and ssh need some time for it."""

_DEBUG = "NCCL_DEBUG"
"""Log lines of NCCL go to standard output and break the rows of nccl-tests (nccl.md 7.3); they also cost time."""

FORWARDED = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""Decide which NCCL and which Python a rank loads, so they are the same on every node."""

_FIRST_PORT, _PORTS = 20000, 10000
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, from 32768)."""


class Starter:
    """Starts programs with the environment that was there when it was made; plans must not change later.

    Args:
        environment: what programs inherit; None = this program's own.
        keep_env: let inherited NCCL_* variables reach the command. Left out, every trial starts from NCCL's own
            choice, whatever the shell has exported; NCCL_DEBUG is removed in any case.
        grace_s: time between SIGTERM and SIGKILL.
        kill_grace_s: the same after `kill`.
        keep_bytes: how much of each output is kept.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        keep_env: bool = False,
        grace_s: float = GRACE_S,
        kill_grace_s: float = KILL_GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self.environment: Mapping[str, str] = dict(os.environ if environment is None else environment)
        self._keep_env = keep_env
        self._grace_s = grace_s
        self._kill_grace_s = kill_grace_s
        self._keep_bytes = keep_bytes
        self._lock = threading.RLock()  # kill may come by a signal while this very thread holds it
        self._running: list[ProcessSession] = []

    @property
    def inherited(self) -> tuple[str, ...]:
        """Return the names of the NCCL_* variables that the environment brings; plans say which are removed."""
        return tuple(sorted(name for name in self.environment if name.startswith("NCCL_")))

    def removed(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of inherited variables that must not reach a command with some variables of its own."""
        return tuple(
            name for name in self.inherited if name not in variables and (not self._keep_env or name == _DEBUG)
        )

    def kept(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the inherited NCCL_* variables that must reach every process of a command."""
        names = set(self.inherited) - {*variables, *self.removed(variables)}
        return {name: self.environment[name] for name in sorted(names)}

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start the plan's command and wait for its end."""
        kept = {name: value for name, value in self.environment.items() if name not in plan.unset_env}
        session = ProcessSession(
            plan,
            environment=kept | dict(plan.set_env),
            grace_s=self._grace_s,
            kill_grace_s=self._kill_grace_s,
            keep_bytes=self._keep_bytes,
        )
        with self._lock:
            self._running.append(session)
        try:
            return session.run()
        finally:
            with self._lock:
                self._running.remove(session)

    def kill(self) -> None:
        """End what every `run` is waiting for, at once."""
        with self._lock:
            for session in self._running:
                session.kill()


def thread_variables(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return OMP_NUM_THREADS where nobody has set it.

    torchrun sets it to 1, with a warning and only where a node has several ranks; said here, it is the same under every
    launcher and for every number of ranks.
    """
    return {} if "OMP_NUM_THREADS" in environment or "OMP_NUM_THREADS" in variables else {"OMP_NUM_THREADS": "1"}


def master_port(argv: Sequence[str], variables: Mapping[str, str], hosts: Sequence[str]) -> int:
    """Return the port on which the ranks of a command meet on their first host.

    It follows from the launch, so that a plan can be repeated, and no port of another machine can be asked for anyway.
    Two launches get the same port in 1 of 10 000 cases, which matters only at the same time on the same first host: the
    second one then fails with `address already in use`, an outcome like others. Set MASTER_PORT to choose it yourself.
    """
    words = [*argv, "", *(f"{name}={value}" for name, value in sorted(variables.items())), "", *hosts]
    digest = hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS

"""Starts commands on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.launch.process import GRACE_S, KEEP_BYTES, ProcessSession

_DEBUG = "NCCL_DEBUG"
"""Log lines of NCCL go to standard output and break the rows of nccl-tests (nccl.md 7.3); they also cost time."""


class LocalLauncher:
    """Starts commands on this machine, each in a session of its own.

    Args:
        environment: what commands inherit, copied now, for plans must not change later; None = this program's own.
        keep_env: let inherited NCCL_* variables reach the command. Left out, every trial starts from NCCL's own
            choice, whatever the shell has exported; NCCL_DEBUG is removed in any case.
        grace_s: time between SIGTERM and SIGKILL.
        keep_bytes: how much of each output is kept.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        keep_env: bool = False,
        grace_s: float = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._keep_env = keep_env
        self._grace_s = grace_s
        self._keep_bytes = keep_bytes
        self._running: ProcessSession | None = None

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        return "local"

    @property
    def inherited(self) -> tuple[str, ...]:
        """Return the names of the NCCL_* variables that the environment brings; plans say which are removed."""
        return tuple(sorted(name for name in self._environment if name.startswith("NCCL_")))

    def plan(
        self,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str],
        timeout_s: float,
        files: Sequence[Path] = (),  # noqa: ARG002  they are here already
    ) -> LaunchPlan:
        """Decide how a command would be started: the plan names every inherited variable that it removes."""
        removed = [name for name in self.inherited if not self._keep_env or name == _DEBUG]
        return LaunchPlan(
            argv=tuple(argv),
            set_env=tuple(sorted(variables.items())),
            unset_env=tuple(name for name in removed if name not in variables),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start it and wait for its end."""
        kept = {name: value for name, value in self._environment.items() if name not in plan.unset_env}
        session = ProcessSession(
            plan, environment=kept | dict(plan.set_env), grace_s=self._grace_s, keep_bytes=self._keep_bytes
        )
        self._running = session
        try:
            return session.run()
        finally:
            self._running = None

    def kill(self) -> None:
        """End what `run` is waiting for, at once."""
        running = self._running
        if running is not None:
            running.kill()


def create(*, keep_env: bool = False) -> LocalLauncher:
    """Return the launcher for this machine with the present environment."""
    return LocalLauncher(keep_env=keep_env)

"""Starts commands on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape, LaunchPlan, LaunchResult
from ncclt.launch.process.session import GRACE_S, KEEP_BYTES
from ncclt.launch.process.starter import Starter


class LocalLauncher:
    """Starts commands on this machine, one process each, in a session of its own.

    Args:
        environment: what commands inherit, copied now, for plans must not change later; None = this program's own.
        keep_env: let inherited NCCL_* variables reach the command, except NCCL_DEBUG.
        extra: words before the command, for example `numactl --interleave=all`.
        grace_s: time between SIGTERM and SIGKILL.
        keep_bytes: how much of each output is kept.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        keep_env: bool = False,
        extra: Sequence[str] = (),
        grace_s: float = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._extra = tuple(extra)
        self._starter = Starter(environment=environment, keep_env=keep_env, grace_s=grace_s, keep_bytes=keep_bytes)

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        return "local"

    @property
    def inherited(self) -> tuple[str, ...]:
        """Return the names of the NCCL_* variables that the environment brings; plans say which are removed."""
        return self._starter.inherited

    def plan(
        self,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str],
        timeout_s: float,
        files: Sequence[Path] = (),  # noqa: ARG002  they are here already
    ) -> LaunchPlan:
        """Decide how a command would be started: the plan names every inherited variable that it removes."""
        return LaunchPlan(
            argv=(*self._extra, *argv),
            set_env=tuple(sorted(variables.items())),
            unset_env=self._starter.removed(variables),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start it and wait for its end."""
        return self._starter.run(plan)

    def kill(self) -> None:
        """End what every `run` is waiting for, at once."""
        self._starter.kill()


def create(
    *,
    shape: JobShape | None = None,
    keep_env: bool = False,
    extra: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> LocalLauncher:
    """Return the launcher for one process on this machine.

    Raises:
        UsageError: more than one process is wanted.
    """
    if shape is not None and shape.world_size != 1:
        raise UsageError(
            f"--launcher local starts 1 process, not {shape.world_size}",
            hint="use --launcher torchrun, mpirun or slurm",
        )
    return LocalLauncher(environment=environment, keep_env=keep_env, extra=extra)

"""Starts one process for each rank on this machine through torchrun.

Not tried on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclt.errors import UsageError
from ncclt.launch.endings import ending_of_ranks
from ncclt.launch.launcher import JobShape, LaunchPlan, LaunchResult
from ncclt.launch.process.session import GRACE_S
from ncclt.launch.process.starter import Starter, thread_variables

MODULE = "torch.distributed.run"
"""What the program `torchrun` runs; as a module of a given Python it needs no PATH."""

VERBATIM = ("--no-python", "env")
"""Before a command that is run as it stands. `env` ends with 127 or 126 where it cannot be started and says why, where
torchrun itself would end with a traceback; and torchrun cannot be given an empty argument for the very Python that
runs it (IndexError in launcher/api.py, _get_entrypoint_name, seen with 2.13)."""


class TorchrunLauncher:
    """Starts the ranks of one node through torchrun, which tells them their rank and where to meet.

    Args:
        shape: one node, and how many ranks on it.
        keep_env: let inherited NCCL_* variables reach the command, except NCCL_DEBUG.
        extra: further options of torchrun.
        python: the Python that has torch; the command itself is run as it stands and may be of another one.
        environment: what the command inherits; None = this program's own.
        grace_s: time between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        *,
        shape: JobShape,
        keep_env: bool = False,
        extra: Sequence[str] = (),
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        if shape.nodes != 1:
            raise UsageError(
                f"--launcher torchrun starts the ranks of this machine, not of {shape.nodes} nodes",
                hint="use --launcher slurm, ssh or mpirun",
            )
        self._shape = shape
        self._extra = tuple(extra)
        self._python = python
        self._starter = Starter(environment=environment, keep_env=keep_env, grace_s=grace_s)

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        return "torchrun"

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
        """Decide how a command would be started; torchrun finds a free port for its ranks when it starts."""
        return LaunchPlan(
            argv=(
                *(self._python, "-m", MODULE),
                "--standalone",
                *("--nproc-per-node", str(self._shape.processes_per_node)),
                *("--max-restarts", "0"),  # PET_MAX_RESTARTS in the environment would repeat what has failed
                *self._extra,
                *VERBATIM,
                *argv,
            ),
            set_env=tuple(sorted({**thread_variables(self._starter.environment, variables), **variables}.items())),
            unset_env=self._starter.removed(variables),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start it and wait for its end; the exit code is that of the rank that failed first."""
        return ending_of_ranks(self._starter.run(plan))

    def kill(self) -> None:
        """End what every `run` is waiting for, at once."""
        self._starter.kill()


def create(
    *,
    shape: JobShape | None = None,
    keep_env: bool = False,
    extra: Sequence[str] = (),
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> TorchrunLauncher:
    """Return the launcher for the ranks of this machine.

    Raises:
        UsageError: more than one node is wanted.
    """
    return TorchrunLauncher(
        shape=shape or JobShape(), keep_env=keep_env, extra=extra, python=python, environment=environment
    )

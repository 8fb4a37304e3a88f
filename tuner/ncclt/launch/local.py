"""Starts commands on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import LaunchPlan, ProcessOptions
from ncclt.launch.process.launcher import ProcessLauncher


class LocalLauncher(ProcessLauncher):
    """Starts commands on this machine, one process each, in a session of its own.

    Args:
        process: `shape` is of one process; `extra` goes before the command, for example `numactl --interleave=all`.

    Raises:
        UsageError: the shape has more than one process.
    """

    name = "local"
    shares_files = True
    starts_ranks = False
    ranks_report = False

    def __init__(self, **process: Unpack[ProcessOptions]) -> None:
        super().__init__(**process)
        if self.shape.world_size != 1:
            raise UsageError(
                f"--launcher local starts 1 process, not {self.shape.world_size}",
                hint="use --launcher torchrun, mpirun or slurm",
            )

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started: the plan names every inherited variable that it removes."""
        return LaunchPlan(
            argv=(*self.extra, *argv),
            set_env=tuple(sorted(variables.items())),
            unset_env=self.removed_names(variables),
            timeout_s=timeout_s,
        )

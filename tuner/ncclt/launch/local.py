"""Starts commands on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import NO_OPTIONS, JobShape, LaunchPlan, ProcessOptions
from ncclt.launch.process.launcher import ProcessLauncher


class LocalLauncher(ProcessLauncher):
    """Starts commands on this machine, one process each, in a session of its own.

    Args:
        shape: of one process.
        process: `extra` goes before the command, for example `numactl --interleave=all`.

    Raises:
        UsageError: the shape has more than one process.
    """

    name = "local"
    shares_files = True
    starts_ranks = False
    ranks_report = False

    def __init__(self, *, shape: JobShape | None = None, **process: Unpack[ProcessOptions]) -> None:
        if shape is not None and shape.world_size != 1:
            raise UsageError(
                f"--launcher local starts 1 process, not {shape.world_size}",
                hint="use --launcher torchrun, mpirun or slurm",
            )
        super().__init__(**process)

    @classmethod
    def create(
        cls,
        *,
        shape: JobShape,
        options: Mapping[str, Any] = NO_OPTIONS,  # noqa: ARG003  there are none
        python: str = "",  # noqa: ARG003  the command names its own
        uses_mpi: bool = True,  # noqa: ARG003  one process has nobody to find
        **process: Unpack[ProcessOptions],
    ) -> Self:
        """Return the launcher of one process."""
        return cls(shape=shape, **process)

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
            argv=(*self.extra, *argv),
            set_env=tuple(sorted(variables.items())),
            unset_env=self.removed_names(variables),
            timeout_s=timeout_s,
        )

"""Starts commands on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape, LaunchPlan
from ncclt.launch.process.launcher import ProcessLauncher, ProcessOptions


class LocalLauncher(ProcessLauncher):
    """Starts commands on this machine, one process each, in a session of its own.

    Args:
        shape: of one process.
        process: `extra` goes before the command, for example `numactl --interleave=all`.

    Raises:
        UsageError: the shape has more than one process.
    """

    name = "local"
    ranks_report = False

    def __init__(self, *, shape: JobShape | None = None, **process: Unpack[ProcessOptions]) -> None:
        if shape is not None and shape.world_size != 1:
            raise UsageError(
                f"--launcher local starts 1 process, not {shape.world_size}",
                hint="use --launcher torchrun, mpirun or slurm",
            )
        super().__init__(**process)

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
            unset_env=self.removed(variables),
            timeout_s=timeout_s,
        )


create = LocalLauncher

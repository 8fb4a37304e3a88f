"""Launcher that starts one process on this machine through a program of the site."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import NO_OPTIONS, JobShape, LauncherOption, LaunchPlan, ProcessOptions
from ncclt.launch.process.launcher import ProcessLauncher
from ncclt.launch.ranks import wrap_rank_command


class LabLauncher(ProcessLauncher):
    """Starts `env COMMAND`; a launcher of a site could start `flux run -N 2 -n 16 COMMAND`."""

    name = "lab"
    shares_files = True  # the process sees temporary files of this machine
    starts_ranks = False  # one process, not one per GPU
    options = (LauncherOption(key="starter", metavar="PROGRAM", help="Program that starts the process"),)

    def __init__(self, *, starter: str = "env", **process: Unpack[ProcessOptions]) -> None:
        super().__init__(**process)
        self._starter = starter

    @classmethod
    def create(
        cls,
        *,
        shape: JobShape,
        options: Mapping[str, Any] = NO_OPTIONS,
        python: str = sys.executable,
        uses_mpi: bool = True,
        **process: Unpack[ProcessOptions],
    ) -> Self:
        """Return the launcher of jobs of one shape."""
        if shape.nodes != 1:
            raise UsageError(f"--launcher lab has 1 node, not {shape.nodes}", hint="use --nodes 1")
        return cls(**options, **process)

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Plan a launch; `wrap_rank_command` has each process report its start and check its NCCL variables."""
        return LaunchPlan(
            argv=(
                self._starter,
                *self.extra,
                *wrap_rank_command(argv, {**self.kept_variables(variables), **variables}),
            ),
            set_env=tuple(sorted(variables.items())),
            unset_env=self.removed_names(variables),
            timeout_s=timeout_s,
        )

"""Launcher that starts one process on this machine through a program of the site."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import LauncherOption, LaunchPlan, ProcessOptions
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
        if self.shape.nodes != 1:
            raise UsageError(f"--launcher lab has 1 node, not {self.shape.nodes}", hint="use --nodes 1")
        self._starter = starter

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

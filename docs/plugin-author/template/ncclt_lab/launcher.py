"""Launcher that starts the ranks through a program of the site."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape, LaunchPlan
from ncclt.launch.process.launcher import ProcessLauncher, ProcessOptions
from ncclt.launch.rank_check import checked

STARTER = ("env",)
"""Starts one process here; of a site, for example, `("flux", "run", "-N", NODES, "-n", RANKS)`."""


class LabLauncher(ProcessLauncher):
    """Starts one process on this machine."""

    name = "lab"

    def __init__(self, *, shape: JobShape | None = None, **process: Unpack[ProcessOptions]) -> None:
        if shape is not None and shape.nodes != 1:
            raise UsageError(f"--launcher lab has 1 node, not {shape.nodes}", hint="use --nodes 1")
        super().__init__(**process)

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Plan a launch; `checked` makes each rank report its start and compare its NCCL variables with the plan."""
        return LaunchPlan(
            argv=(*STARTER, *self.extra, *checked(argv, {**self.kept(variables), **variables})),
            set_env=tuple(sorted(variables.items())),
            unset_env=self.removed(variables),
            timeout_s=timeout_s,
        )


create = LabLauncher

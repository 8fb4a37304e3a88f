"""Starts one process for each rank on this machine through torchrun. Not tested on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import LaunchPlan, LaunchResult, ProcessOptions
from ncclt.launch.process.launcher import ProcessLauncher, thread_variables
from ncclt.launch.ranks import read_torchrun_ending, wrap_rank_command

MODULE = "torch.distributed.run"
"""The module that the program `torchrun` runs; started by a given Python it needs no PATH."""

VERBATIM = "--no-python"
"""Before a command that is run verbatim, by the shell of `wrap_rank_command`.

torchrun itself would print a traceback for a program that is missing, and fails on an empty argument for the very
Python that runs it (IndexError in launcher/api.py, _get_entrypoint_name, seen with 2.13).
"""


class TorchrunLauncher(ProcessLauncher):
    """Starts the ranks of one node through torchrun, which gives them their rank and meeting point.

    Args:
        process: `shape` is of one node; `python` has torch, the command itself may use another one; `extra` are
            further options of torchrun.

    Raises:
        UsageError: the shape has more than one node.
    """

    name = "torchrun"
    shares_files = True
    needs_torch = True

    def __init__(self, **process: Unpack[ProcessOptions]) -> None:
        super().__init__(**process)
        if self.shape.nodes != 1:
            raise UsageError(
                f"--launcher torchrun starts the ranks of this machine, not of {self.shape.nodes} nodes",
                hint="use --launcher slurm, ssh or mpirun",
            )

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started; torchrun finds a free port for its ranks when it starts."""
        return LaunchPlan(
            argv=(
                *(self.python, "-m", MODULE),
                "--standalone",
                *("--nproc-per-node", str(self.shape.processes_per_node)),
                *("--max-restarts", "0"),  # PET_MAX_RESTARTS in the environment would repeat what has failed
                *self.extra,
                VERBATIM,
                *wrap_rank_command(argv, {**self.kept_variables(variables), **variables}),
            ),
            set_env=tuple(sorted({**thread_variables(self.environment, variables), **variables}.items())),
            unset_env=self.removed_names(variables),
            timeout_s=timeout_s,
        )

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Return the result of a launch that failed, with the exit code of the rank that failed first."""
        return read_torchrun_ending(result)

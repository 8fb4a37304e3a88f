"""Starts commands on the nodes of a Slurm allocation: each launch is one step, begun by srun.

Not tested on a GPU; tested on a real Slurm of two nodes without any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import (
    NO_OPTIONS,
    PORT,
    JobShape,
    LauncherOption,
    LaunchPlan,
    LaunchResult,
    ProcessOptions,
)
from ncclt.launch.process.launcher import ProcessLauncher, thread_variables
from ncclt.launch.rank_check import UNFIT, checked
from ncclt.launch.slurm.allocation import Allocation, addresses_by_scontrol, allocation_of
from ncclt.launch.slurm.job import ask
from ncclt.launch.slurm.reason import step_failure
from ncclt.launch.slurm.step import STEP_NAME, StepRequest, file_variables, ship, srun_argv

_CANCEL = """\
name=$1 jobs=$2 tries=$3 how=--quiet
while :; do
  if said=$(squeue --noheader --steps --job="$jobs" --format='%i %j' 2>&1); then
    left=$(printf '%s\\n' "$said" | sed -n "s/ $name\\$//p")
    [ -n "$left" ] || exit 0
    scancel $how $left
    how='--quiet --signal=KILL'
  else
    case $said in *[Ii]nvalid\\ job\\ id*) exit 0 ;; esac
    left=$said
  fi
  tries=$((tries - 1))
  [ "$tries" -gt 0 ] || break
  sleep 0.5
done
echo "Slurm step $left still runs" | tr '\\n' ' '
exit 1
"""
"""Ends the steps of a name and waits until Slurm knows of none; an ended job has none."""

_CANCEL_TRIES = 40
"""Each takes half a second or more, all together less than the time limit of a clean-up."""


class SlurmLauncher(ProcessLauncher):
    """Starts each command as one step of an allocation.

    Args:
        shape: how many processes on how many nodes; named hosts are used in the order in which Slurm numbers ranks.
        allocation: None = there is none, so nothing can be planned.
        container: an image in which the tasks run, by pyxis.
        process: `extra` are further options for srun, for example `--mpi=pmix`; srun passes `environment` to all tasks.
    """

    name = "slurm"
    uses_allocation = True
    takes_containers = True
    job_variable = "SLURM_JOB_ID"
    options = (
        LauncherOption(key="container", metavar="IMAGE", help="Container image of the trials (needs pyxis)"),
        LauncherOption(
            key="sbatch-arg",
            metavar="ARG",
            help="Option for sbatch, such as --partition=gpu. Requests exclusive nodes, because co-located studies "
            "disturb each other; --oversubscribe disables it",
            is_repeatable=True,
        ),
        LauncherOption(key="time-limit", metavar="TIME", help="Time limit of the submitted job, such as 2:00:00"),
    )

    def __init__(
        self,
        *,
        shape: JobShape,
        allocation: Allocation | None,
        container: str | None = None,
        **process: Unpack[ProcessOptions],
    ) -> None:
        super().__init__(**process)
        self._shape = shape
        self._allocation = allocation
        self._hosts = allocation.choose(nodes=shape.nodes, hosts=shape.hosts) if allocation else ()
        if allocation and not {"--overcommit", "-O"} & set(self.extra):
            allocation.require_cpus(self._hosts, tasks_per_node=shape.processes_per_node)
        self._container = container

    @classmethod
    def create(
        cls,
        *,
        shape: JobShape,
        options: Mapping[str, Any] = NO_OPTIONS,
        python: str = "",  # noqa: ARG003  the command names its own
        uses_mpi: bool = True,  # noqa: ARG003  srun sets the variables of both
        **process: Unpack[ProcessOptions],
    ) -> Self:
        """Return the launcher for the allocation that this program runs in.

        Raises:
            UsageError: the allocation has too few nodes, or not those of the shape.
        """
        environment = process.get("environment")
        known = dict(os.environ if environment is None else environment)
        process["environment"] = known
        allocation = allocation_of(known, addresses_of=addresses_by_scontrol)
        return cls(shape=shape, allocation=allocation, container=options.get("container"), **process)

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started as a step.

        Raises:
            UsageError: there is no allocation.
        """
        if self._allocation is None:
            raise UsageError(
                "this is not a Slurm allocation (SLURM_JOB_ID is not set), so there are no nodes to launch on",
                hint="run it under salloc or sbatch",
            )
        kept = self.kept(variables)
        shipped = ship(checked(argv, {**kept, **variables}), files)
        set_env = {
            "MASTER_ADDR": self._allocation.address(self._hosts[0]),
            "MASTER_PORT": PORT,
            **thread_variables(self.environment, variables),
            **variables,
        }
        request = StepRequest(
            argv=shipped.argv,
            variables=tuple(sorted({*kept, *set_env, *file_variables(shipped.texts)})),
            container=self._container,
            extra=self.extra,
        )
        return LaunchPlan(
            argv=tuple(srun_argv(request, allocation=self._allocation, hosts=self._hosts, shape=self._shape)),
            set_env=tuple(sorted(set_env.items())),
            unset_env=self.removed(variables),
            files=shipped.texts,
            clean_up=(("sh", "-c", _CANCEL, "sh", STEP_NAME, ",".join(self._allocation.job_ids), str(_CANCEL_TRIES)),),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start the step and wait for its end, and for the end of all its tasks on all nodes."""
        carried = file_variables(plan.files).items()
        return super().run(replace(plan, set_env=(*plan.set_env, *carried), files=()))

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Move what Slurm prints about a failure into the fields of the result."""
        if result.not_started or result.timed_out:
            return result
        return _with_slurm_reason(result, self.environment)


def _with_slurm_reason(result: LaunchResult, environment: Mapping[str, str]) -> LaunchResult:
    if UNFIT in result.stderr and (prolog := _task_prolog(environment)):
        result = replace(result, stderr=re.sub(f"({UNFIT}.*)", rf"\1, from TaskProlog={prolog}", result.stderr))
    failure = step_failure(result.stderr)
    if failure.lost and not result.lost:
        result = replace(result, lost=failure.reason)
    if failure.not_started:
        return replace(result, not_started=failure.not_started)
    if not failure.reason:
        return result
    return replace(
        result,
        exit_code=result.exit_code if failure.exit_code is None else failure.exit_code,
        stderr=f"{result.stderr.rstrip()}\nncclt: Slurm says: {failure.reason}\n",
    )


def _task_prolog(environment: Mapping[str, str]) -> str:
    """Return the script that Slurm runs before each task and whose `export` lines set variables; empty = none."""
    said = re.search(r"(?m)^TaskProlog\s*=\s*(\S+)$", ask(("scontrol", "show", "config"), environment).stdout)
    return said[1] if said and said[1] != "(null)" else ""

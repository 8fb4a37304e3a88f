"""Starts commands on the nodes of a Slurm allocation: each launch is one step, begun by srun.

Not tried on a GPU; proven on a real Slurm of two nodes without any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ncclt.errors import UsageError
from ncclt.launch.launcher import PORT, JobShape, LaunchPlan, LaunchResult
from ncclt.launch.process.session import GRACE_S, KEEP_BYTES
from ncclt.launch.process.starter import Starter, thread_variables
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
"""Ends the steps of a name and waits until Slurm knows of none; a job that is gone has none."""

_CANCEL_TRIES = 40
"""Each of them takes half a second or more, all of them less than the time that a clean-up gets."""


class SlurmLauncher:
    """Starts each command as one step of an allocation.

    Args:
        shape: how many processes on how many nodes; named hosts are taken in the order in which Slurm numbers ranks.
        allocation: where; None = there is none, so nothing can be planned.
        environment: what srun inherits and hands on to all tasks, copied now; None = this program's own.
        keep_env: let inherited NCCL_* variables reach the command.
        extra: further options for srun, for example `--mpi=pmix`.
        container: an image in which the tasks run, by pyxis.
        grace_s: time between SIGTERM and SIGKILL.
        keep_bytes: how much of each output is kept.
    """

    def __init__(
        self,
        *,
        shape: JobShape,
        allocation: Allocation | None,
        environment: Mapping[str, str] | None = None,
        keep_env: bool = False,
        extra: Sequence[str] = (),
        container: str | None = None,
        grace_s: float = GRACE_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._shape = shape
        self._allocation = allocation
        self._hosts = allocation.choose(nodes=shape.nodes, hosts=shape.hosts) if allocation else ()
        self._extra = tuple(extra)
        if allocation and not {"--overcommit", "-O"} & set(extra):
            allocation.require_cpus(self._hosts, tasks_per_node=shape.processes_per_node)
        self._container = container
        self._starter = Starter(environment=environment, keep_env=keep_env, grace_s=grace_s, keep_bytes=keep_bytes)

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        return "slurm"

    @property
    def inherited(self) -> tuple[str, ...]:
        """Return the names of the NCCL_* variables that the environment brings; plans say which are removed."""
        return self._starter.inherited

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started as a step.

        Raises:
            UsageError: there is no allocation.
        """
        if self._allocation is None:
            raise UsageError(
                "this is no Slurm allocation (SLURM_JOB_ID is not set), so there are no nodes to launch on",
                hint="begin in salloc or sbatch",
            )
        kept = self._starter.kept(variables)
        shipped = ship(checked(argv, {**kept, **variables}), files)
        set_env = {
            "MASTER_ADDR": self._allocation.address(self._hosts[0]),
            "MASTER_PORT": PORT,
            **thread_variables(self._starter.environment, variables),
            **variables,
        }
        request = StepRequest(
            argv=shipped.argv,
            variables=tuple(sorted({*kept, *set_env, *file_variables(shipped.texts)})),
            container=self._container,
            extra=self._extra,
        )
        return LaunchPlan(
            argv=tuple(srun_argv(request, allocation=self._allocation, hosts=self._hosts, shape=self._shape)),
            set_env=tuple(sorted(set_env.items())),
            unset_env=self._starter.removed(variables),
            files=shipped.texts,
            clean_up=(("sh", "-c", _CANCEL, "sh", STEP_NAME, ",".join(self._allocation.job_ids), str(_CANCEL_TRIES)),),
            timeout_s=timeout_s,
        )

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start the step and wait for its end, and for the end of all its tasks on all nodes."""
        carried = file_variables(plan.files).items()
        result = self._starter.run(replace(plan, set_env=(*plan.set_env, *carried), files=()))
        return _told_by_slurm(result, self._starter.environment)

    def kill(self) -> None:
        """End what `run` is waiting for, at once."""
        self._starter.kill()


def _told_by_slurm(result: LaunchResult, environment: Mapping[str, str]) -> LaunchResult:
    """Put what Slurm says about a failure where people and outcomes look for it."""
    if result.failure or result.timed_out or result.killed or not result.exit_code:
        return result
    if UNFIT in result.stderr and (prolog := _task_prolog(environment)):
        result = replace(result, stderr=re.sub(f"({UNFIT}.*)", rf"\1, from TaskProlog={prolog}", result.stderr))
    failure = step_failure(result.stderr)
    if failure.lost and not result.lost:
        result = replace(result, lost=failure.reason)
    if not failure.started:
        return replace(result, exit_code=None, failure=failure.reason)
    if not failure.reason:
        return result
    return replace(
        result,
        exit_code=result.exit_code if failure.exit_code is None else failure.exit_code,
        stderr=f"{result.stderr.rstrip()}\nncclt: Slurm says: {failure.reason}\n",
    )


def _task_prolog(environment: Mapping[str, str]) -> str:
    """Return the script that Slurm runs before each task, whose lines of `export` set variables; empty = none."""
    said = re.search(r"(?m)^TaskProlog\s*=\s*(\S+)$", ask(("scontrol", "show", "config"), environment).stdout)
    return said[1] if said and said[1] != "(null)" else ""


def create(
    *,
    shape: JobShape | None = None,
    keep_env: bool = False,
    extra: Sequence[str] = (),
    container: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> SlurmLauncher:
    """Return the launcher for the allocation that this program runs in.

    Raises:
        UsageError: the allocation has too few nodes, or not those of the shape.
    """
    known = dict(os.environ if environment is None else environment)
    return SlurmLauncher(
        shape=shape or JobShape(),
        allocation=allocation_of(known, addresses_of=addresses_by_scontrol),
        environment=known,
        keep_env=keep_env,
        extra=extra,
        container=container,
    )

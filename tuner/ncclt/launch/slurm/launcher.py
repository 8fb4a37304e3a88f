"""Starts commands on the nodes of a Slurm allocation: each launch is one step, begun by srun.

Not tested on a GPU; tested on a real Slurm of two nodes without any.
"""

from __future__ import annotations

import base64
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

from ncclt.errors import UsageError
from ncclt.launch.launcher import (
    MARK,
    NO_OPTIONS,
    PORT,
    LauncherOption,
    LaunchPlan,
    LaunchResult,
    ProcessOptions,
)
from ncclt.launch.process.launcher import ProcessLauncher, thread_variables
from ncclt.launch.ranks import UNFIT, wrap_rank_command
from ncclt.launch.slurm.allocation import Allocation, addresses_by_scontrol, read_allocation
from ncclt.launch.slurm.job import ask

STEP_NAME = f"ncclt-{MARK}"
"""Unique for every run of a plan, so that this step can be found again."""

_FIRST_DESCRIPTOR = 3
_LAST_DESCRIPTOR = 9  # a POSIX shell needs no more than one digit
_MAX_FILE_BYTES = 90_000
"""As base64 in one variable; Linux allows 128 KiB in each (execve(2), MAX_ARG_STRLEN)."""

_TASK = (
    "linger=0.5 told=1 rank= signal= code=; "
    'hand() { linger=0 told=1 signal=$1; [ -z "$rank" ] || kill "-$1" "$rank" 2>/dev/null; }; '
    'for name in HUP TERM USR1 USR2; do trap "hand $name" "$name"; done; '
    # What a shell starts in the background ignores these two.
    'trap "hand TERM" INT QUIT; '
    '"$@" & rank=$!; [ -z "$signal" ] || hand "$signal"; '
    # A signal ends a wait before the rank has ended; and a shell may forget the code of a rank that it has waited for.
    'while [ "$told" ]; do told=; wait "$rank"; got=$?; [ "$got" = 127 ] && [ "$code" ] || code=$got; done; '
    '[ "$code" -eq 0 ] || sleep "$linger"; exit "$code"'
)
"""The shell of a task, which makes sure that no output is lost when a task fails.

As soon as one has failed, srun ends the others by SIGTERM, and when a task was ended by SIGTERM or SIGKILL, srun drops
all output that is still in flight (Slurm, src/api/step_launch.c, slurm_step_launch_wait_finish). So a shell turns every
end by a signal into an exit code, 128 + its number. It forwards signals: with proctrack/cgroup all but SIGKILL reach
only the children of slurmstepd (proctrack_cgroup.c, proctrack_p_signal), and SIGKILL comes after KillWait, 30 s. And
ranks fail together, while the first one still prints what went wrong: a shell that got no signal lingers to give it
time."""


_NO_ROOM = '{ echo "ncclt: $(uname -n) cannot write to ${TMPDIR:-/tmp}: free space there" >&2; exit 1; }'
"""End of a task that cannot write its files."""


def ship(argv: Sequence[str], files: Sequence[Path]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the command of a task, a shell that writes files and runs a command, and (name, text) of each file.

    Compute nodes need not share any folder with this machine, so the files travel in variables. Each task writes a
    file, opens it, unlinks it and reads it as /dev/fd/N: however the task ends, nothing is left behind.

    Args:
        argv: the command; paths of the files in it become those on the node.
        files: read by the command.

    Raises:
        UsageError: too many files, or one that is too long.
    """
    if len(files) > _LAST_DESCRIPTOR - _FIRST_DESCRIPTOR + 1:
        raise UsageError(f"{len(files)} files are too many to bring to the nodes of a launch")
    texts = tuple((path.name, path.read_text(encoding="utf-8")) for path in files)
    for name, text in texts:
        if len(text.encode()) > _MAX_FILE_BYTES:
            raise UsageError(f"{name} is too long to be brought to the nodes of a launch")
    script, places = "", {}
    for descriptor, (variable, path) in enumerate(zip(file_variables(texts), files, strict=True), _FIRST_DESCRIPTOR):
        script += (
            f'{{ f=$(mktemp) && printf %s "${variable}" | base64 -d >"$f" && exec {descriptor}<"$f" && rm -f "$f" '
            f"&& unset {variable}; }} || {_NO_ROOM}; "
        )
        places[str(path)] = f"/dev/fd/{descriptor}"
    return ("sh", "-c", script + _TASK, "sh", *(places.get(word, word) for word in argv)), texts


def file_variables(texts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that carry the texts of files to the tasks."""
    return {
        f"NCCLT_FILE_{number}": base64.b64encode(text.encode()).decode() for number, (_name, text) in enumerate(texts)
    }


_MAX_LINE = 300
"""Characters of a line that is quoted."""

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""As a shell exits (POSIX sh, 2.8.2)."""

_LAUNCH_FAILED = re.compile(r"(?m)^srun: error: (?:Task launch for .* failed|Application launch failed).*")
"""Of a node that cannot start its tasks; those of other nodes may have begun and wait for them."""

_NO_PROGRAM = re.compile(r"(?m)^slurmstepd.*? error: .*?execve\(\): (?P<program>.*): (?P<reason>[^:\n]+)$")
_SHELL_NO_PROGRAM = re.compile(r"(?m)^sh: (?:(?:line )?\d+: )?(?:exec: )?(?P<program>.+): (?P<reason>[^:\n]+)$")
_TASK_ENDING = re.compile(r"(?m)^srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,-]+): (?P<ending>.+?)\s*$")
_CANCELLED = re.compile(r"(?m)^slurmstepd.* error: \*\*\* (?:STEP|JOB) .* CANCELLED AT .*")
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")

# Only lines of Slurm itself: what the program prints may hold the same words. Lines that name the cause come before
# those that only report that something ended. The lines of srun and slurmstepd come in any order.
_CAUSES: tuple[tuple[re.Pattern[str], str, bool], ...] = tuple(
    (re.compile(rf"(?mi)^(?:srun|slurmstepd|salloc)\b.*(?:{words}).*"), meaning, lost)
    for words, meaning, lost in (
        (r"oom[-_ ]kill|out[-_ ]of[-_ ]memory", "a node ran out of memory", False),
        (r"node failure on ", "a node failed", True),
        (r"node failure|node_fail", "a node failed", True),
        (r"due to preemption", "Slurm took the nodes for another job", True),
        # A step may have a time limit of its own; whether the job's is over is for `job_loss` to ask.
        (r"due to time limit", "the time of the Slurm job is over", False),
        (r"due to job requeue|job \S+ has expired|invalid job", "the Slurm allocation is gone", True),
        (r"unable to contact slurm|communication connection failure|socket timed out", "Slurm does not answer", False),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    """Failure of a step.

    Attributes:
        reason: for the user; empty where Slurm printed none.
        exit_code: of the task that failed first, negative = ended by that signal; None = not known.
        lost: whether the allocation, or a node of it, was lost.
        not_started: srun's own words where the tasks of a node could not be started.
    """

    reason: str = ""
    exit_code: int | None = None
    lost: bool = False
    not_started: str = ""


def step_failure(text: str) -> StepFailure:
    """Read the standard error of an srun that failed."""
    if missing := _NO_PROGRAM.search(text):
        code = _NOT_FOUND if "No such file" in missing["reason"] else _NOT_EXECUTABLE
        return StepFailure(reason=_complaint(missing), exit_code=code)
    if failed := _LAUNCH_FAILED.search(text):
        return StepFailure(not_started=_short(failed[0]))
    task = _TASK_ENDING.search(text)
    exit_code, ending = _ending(task["ending"]) if task else (None, "")
    for pattern, meaning, lost in _CAUSES:
        if cause := pattern.search(text):
            reason = f"{meaning} ({_short(cause[0])})"
            return StepFailure(reason=reason, exit_code=exit_code, lost=lost)
    cancelled = _CANCELLED.search(text)
    if cancelled and (task is None or cancelled.start() < task.start()):
        # srun reports a task first if that task is why the others were cancelled.
        return StepFailure(reason=f"the step was cancelled ({_short(cancelled[0])})", exit_code=exit_code)
    if task is None:
        return StepFailure()
    if exit_code in (_NOT_FOUND, _NOT_EXECUTABLE) and (missing := _SHELL_NO_PROGRAM.search(text)):
        return StepFailure(reason=_complaint(missing), exit_code=exit_code)
    return StepFailure(reason=f"task {task['tasks']} on {task['node']}: {ending}", exit_code=exit_code)


def _complaint(missing: re.Match[str]) -> str:
    return f"{missing['program']}: {missing['reason']} on the compute node"


def _ending(words: str) -> tuple[int | None, str]:
    """Return exit code and text of `Exited with exit code 7` or `Segmentation fault (core dumped)`.

    The shell of a task turns an end by a signal into 128 + its number.
    """
    names = {int(number): signal.strsignal(number) for number in signal.valid_signals()}
    if exited := _EXIT_CODE.search(words):
        code = int(exited[1])
        name = names.get(code - 128)
        return (128 - code, name) if name else (code, words)
    bare = words.removesuffix("(core dumped)").strip()
    return next((-number for number, name in names.items() if name == bare), None), words


def _short(line: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in line.strip())
    return printable if len(printable) <= _MAX_LINE else printable[: _MAX_LINE - 1] + "…"


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


_TIME_LIMIT = re.compile(r"(?:\d+-\d+|\d+)(?::\d+){0,2}|unlimited|infinite", re.ASCII | re.IGNORECASE)
"""Forms of `--time` (sbatch(1)): minutes, M:S, H:M:S, D-H, D-H:M and D-H:M:S."""


def _parse_time_limit(text: str) -> str:
    if not _TIME_LIMIT.fullmatch(text):
        raise ValueError("not a time of Slurm: minutes, H:MM:SS or D-HH:MM:SS")
    return text


def _parse_sbatch_arg(text: str) -> str:
    if not text.startswith("-"):  # sbatch would take it for the script of the job
        raise ValueError("options of sbatch start with -, with their value in the same word")
    return text


class SlurmLauncher(ProcessLauncher):
    """Starts each command as one step of an allocation.

    Args:
        allocation: allocation of the launches; None = none, so `plan` fails.
        container: image of the tasks, run by pyxis.
        process: hosts in `shape` are used in the order of Slurm's ranks; `extra` are further
            options for srun, for example `--mpi=pmix`; srun passes `environment` to all tasks.
    """

    name = "slurm"
    uses_allocation = True
    job_variable = "SLURM_JOB_ID"
    options = (
        LauncherOption(key="container", metavar="IMAGE", help="Container image of the trials (needs pyxis)"),
        LauncherOption(
            key="sbatch-arg",
            metavar="ARG",
            help="Option for sbatch, such as --partition=gpu. Requests exclusive nodes, because co-located studies "
            "disturb each other; --oversubscribe disables it",
            parse=_parse_sbatch_arg,
            of_submission=True,
            is_repeatable=True,
        ),
        LauncherOption(
            key="time-limit",
            metavar="TIME",
            help="Time limit of the submitted job, such as 2:00:00",
            parse=_parse_time_limit,
            of_submission=True,
        ),
    )

    def __init__(
        self, *, allocation: Allocation | None, container: str | None = None, **process: Unpack[ProcessOptions]
    ) -> None:
        super().__init__(**process)
        self._allocation = allocation
        self._hosts = allocation.choose(nodes=self.shape.nodes, hosts=self.shape.hosts) if allocation else ()
        if allocation and not {"--overcommit", "-O"} & set(self.extra):
            allocation.require_cpus(self._hosts, tasks_per_node=self.shape.processes_per_node)
        self._container = container

    @classmethod
    def create(cls, *, options: Mapping[str, Any] = NO_OPTIONS, **process: Unpack[ProcessOptions]) -> Self:
        """Return the launcher for the allocation that this program runs in.

        Raises:
            UsageError: the allocation has too few nodes, or not those of the shape.
        """
        environment = process.get("environment")
        inherited = dict(os.environ if environment is None else environment)
        process["environment"] = inherited
        allocation = read_allocation(inherited, addresses_of=addresses_by_scontrol)
        return cls(allocation=allocation, container=options.get("container"), **process)

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
        kept_variables = self.kept_variables(variables)
        task, texts = ship(wrap_rank_command(argv, {**kept_variables, **variables}), files)
        set_env = {
            "MASTER_ADDR": self._allocation.address(self._hosts[0]),
            "MASTER_PORT": PORT,
            **thread_variables(self.environment, variables),
            **variables,
        }
        options = self.extra
        if self._container is not None:
            # Without --container-env the values of the image override ours (pyxis, README).
            names = sorted({*kept_variables, *set_env, *file_variables(texts)})
            options = (f"--container-image={self._container}", f"--container-env={','.join(names)}", *options)
        return LaunchPlan(
            argv=tuple(self._step(task, options, self._allocation)),
            set_env=tuple(sorted(set_env.items())),
            unset_env=self.removed_names(variables),
            files=texts,
            clean_up=(("sh", "-c", _CANCEL, "sh", STEP_NAME, ",".join(self._allocation.job_ids), str(_CANCEL_TRIES)),),
            timeout_s=timeout_s,
        )

    def _step(self, task: Sequence[str], options: Sequence[str], allocation: Allocation) -> list[str]:
        """Build the command that runs a task on the nodes as one step.

        On several components of a heterogeneous job the step has one part for each; Slurm numbers the ranks across all
        of them. User options come last, so they win.
        """
        tasks_per_node = self.shape.processes_per_node
        step = ["srun"]
        for number, group in enumerate(allocation.groups):
            part = [host for host in self._hosts if host in group]
            if not part:
                continue
            step += [":"] if len(step) > 1 else []
            step += [f"--het-group={number}"] if len(allocation.groups) > 1 else []
            step += (
                f"--nodes={len(part)}",
                f"--ntasks={len(part) * tasks_per_node}",
                f"--ntasks-per-node={tasks_per_node}",
                f"--nodelist={','.join(part)}",
                # Neighbouring ranks share a node, as the groups of a workload assume.
                "--distribution=block",
                # ncclt may itself run in an (interactive) step, for whose end this one must not wait.
                "--overlap",
                # Values with commas survive only in srun's own environment, not in `--export=NAME=VALUE`.
                "--export=ALL",
                "--kill-on-bad-exit=1",
                "--input=none",
                f"--job-name={STEP_NAME}",
                *((f"--cpus-per-task={allocation.cpus_per_task}",) if allocation.cpus_per_task else ()),
                *options,
                *task,
            )
        return step

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start the step and wait for its end, and for the end of all its tasks on all nodes."""
        carried = file_variables(plan.files).items()
        return super().run(replace(plan, set_env=(*plan.set_env, *carried), files=()))

    def read_ending(self, result: LaunchResult) -> LaunchResult:
        """Move what Slurm prints about a failure into the fields of the result."""
        if result.not_started or result.timed_out:
            return result
        if UNFIT in result.stderr:
            # Slurm runs this script before each task, and its `export` lines set variables.
            config = ask(("scontrol", "show", "config"), self.environment).stdout
            prolog = re.search(r"(?m)^TaskProlog\s*=\s*(?!\(null\)$)(\S+)$", config)
            where = f", from TaskProlog={prolog[1]}" if prolog else ""
            result = replace(result, stderr=re.sub(f"({UNFIT}.*)", rf"\1{where}", result.stderr))
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

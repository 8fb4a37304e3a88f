"""The srun command of one step: its nodes, its tasks, and how files get there."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.errors import UsageError
from ncclt.launch.launcher import MARK, JobShape
from ncclt.launch.slurm.allocation import Allocation

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
"""How a task ends that cannot write its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What every task of a step runs, and in what.

    Attributes:
        argv: the command, as `ShippedFiles.argv` gives it.
        variables: names of the variables that must override those of a container's image.
        container: an image for pyxis; None = no container.
        extra: further options for srun, verbatim; they come last, so they win.
    """

    argv: tuple[str, ...]
    variables: tuple[str, ...] = ()
    container: str | None = None
    extra: tuple[str, ...] = ()


def srun_argv(request: StepRequest, *, allocation: Allocation, hosts: Sequence[str], shape: JobShape) -> list[str]:
    """Return the command that runs a request on some nodes of an allocation, as one step.

    If the nodes belong to several components of a heterogeneous job, the step has a part for each; Slurm numbers the
    ranks across all of them.
    """
    argv = ["srun"]
    parts = [(number, [h for h in hosts if h in group.hosts]) for number, group in enumerate(allocation.groups)]
    for number, part in ((number, part) for number, part in parts if part):
        argv += [":"] if len(argv) > 1 else []
        argv += [f"--het-group={number}"] if len(allocation.groups) > 1 else []
        argv += _options(request, allocation=allocation, hosts=part, tasks_per_node=shape.processes_per_node)
        argv += request.argv
    return argv


def _options(
    request: StepRequest, *, allocation: Allocation, hosts: Sequence[str], tasks_per_node: int
) -> tuple[str, ...]:
    return (
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--nodelist={','.join(hosts)}",
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
        *_container(request),
        *request.extra,
    )


def _container(request: StepRequest) -> tuple[str, ...]:
    if request.container is None:
        return ()
    # Without --container-env the values of the image override ours (pyxis, README).
    return (f"--container-image={request.container}", f"--container-env={','.join(request.variables)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFiles:
    """The command of a task: a shell that writes the files of a command, and runs it.

    Compute nodes need not share any folder with this machine, so the files travel in variables. Each task writes a
    file, opens it, unlinks it and reads it as /dev/fd/N: however the task ends, nothing is left behind.

    Attributes:
        argv: the command with the paths of the files on the node.
        texts: (name, text) of the files.
    """

    argv: tuple[str, ...]
    texts: tuple[tuple[str, str], ...] = ()


def ship(argv: Sequence[str], files: Sequence[Path]) -> ShippedFiles:
    """Return the command of a task that brings files along.

    Raises:
        UsageError: too many files, or one that is too long.
    """
    if len(files) > _LAST_DESCRIPTOR - _FIRST_DESCRIPTOR + 1:
        raise UsageError(f"{len(files)} files are too many to bring to the nodes of a launch")
    texts = tuple((path.name, path.read_text(encoding="utf-8")) for path in files)
    for name, text in texts:
        if len(text.encode()) > _MAX_FILE_BYTES:
            raise UsageError(f"{name} is too long to be brought to the nodes of a launch")
    script = "".join(f"{{ {_open_file(number)}; }} || {_NO_ROOM}; " for number in range(len(files))) + _TASK
    places = {str(path): f"/dev/fd/{_FIRST_DESCRIPTOR + number}" for number, path in enumerate(files)}
    return ShippedFiles(argv=("sh", "-c", script, "sh", *(places.get(word, word) for word in argv)), texts=texts)


def file_variables(texts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that carry the texts of files to the tasks."""
    return {_variable(number): base64.b64encode(text.encode()).decode() for number, (_name, text) in enumerate(texts)}


def _open_file(number: int) -> str:
    variable, descriptor = _variable(number), _FIRST_DESCRIPTOR + number
    return (
        f'f=$(mktemp) && printf %s "${variable}" | base64 -d >"$f" && exec {descriptor}<"$f" && rm -f "$f" '
        f"&& unset {variable}"
    )


def _variable(number: int) -> str:
    return f"NCCLT_FILE_{number}"

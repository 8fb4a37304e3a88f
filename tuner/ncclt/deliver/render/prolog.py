"""Slurm's TaskProlog: a script whose lines `export NAME=value` reach every task verbatim, for one kind of job alone.

It runs in the environment of each task, that of every job of the cluster where slurm.conf names it. So it does nothing
unless the job says which workload it is. What Slurm tells it was looked up in a Slurm 22.05 (tests/integration/
test_slurm_prolog.py): SLURM_JOB_UID, SLURM_STEP_NUM_NODES and SLURM_STEP_TASKS_PER_NODE ("4(x2)") always,
SLURM_GPUS_ON_NODE where GPUs were asked for; the job's comment never.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclt.deliver.render.shell import Variables, assignments

MODEL_VARIABLE = "NCCLT_MODEL"
"""By which a job says which workload it is."""

_OWN_LAUNCH = "NCCLT_LAUNCH"
"""Set in what ncclt itself has started (`ncclt.launch.process.process_tree`): trials, which measure other settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrologJob:
    """Which jobs a script is for.

    Attributes:
        model: that the job's NCCLT_MODEL names.
        nodes, gpus_per_node: of the step.
        uid: of the job's user; None = of any.
    """

    model: str
    nodes: int
    gpus_per_node: int
    uid: int | None = None


def task_prolog(variables: Variables, comments: Iterable[str], *, job: PrologJob) -> str:
    """Return a script that sets variables.

    A task whose prolog fails is cancelled, and a prolog that waits holds up the job. So it starts no program, opens no
    connection and always ends with 0: there is nothing that would need a time limit. It does not ask a server either:
    each task would ask for itself, and NCCL hangs where ranks were told different things.

    Raises:
        SettingError: a value or the model's name holds a control character.
    """
    body = [
        *_head(comments, "It starts no program, waits for nothing and always ends with 0."),
        *_selection(job),
        *_exports(variables),
    ]
    return _text(body)


def table_prolog(
    variables: Variables,
    comments: Iterable[str],
    *,
    job: PrologJob,
    rivals: Sequence[str],
    needed: Sequence[str],
    report: str = "",
) -> str:
    """Return a script that hands the plugin and its table to every task of a step.

    Like the one for variables it starts no program, opens no connection and waits for nothing; its text is the
    decision, the same on every node. Unlike that one it can fail: a node that lacks plugin or table would choose
    otherwise than the rest, which hangs or corrupts data. Slurm does not start a task whose prolog fails, nor one whose
    prolog is not there (both tried with a real Slurm in tests/integration/test_slurm_prolog.py).

    Args:
        variables: for every task.
        comments: lines that begin with #.
        job: who is given it.
        rivals: variables of the user that stand against the table: where one is set, nothing is.
        needed: files that every node must be able to read.
        report: folder in which each step's reports get a folder of its own; empty = no reports.

    Raises:
        SettingError: a value, a path or the model's name holds a control character.
    """
    # The same refusal as for a shell.
    assignments([*(("NCCLT_NEEDED", path) for path in needed), ("NCCLT_PLUGIN_REPORT", report)], "bash")
    own = "".join(f"${{{name}+x}}" for name in sorted(rivals))
    body = [
        *_head(
            comments,
            "It starts no program and waits for nothing. On a node that lacks plugin or table it ends with 1, and the",
            "task does not start: ranks that disagree hang. Where a variable is set that stands against the table, it",
            "sets nothing.",
        ),
        *_selection(job, f'[ -z "{own}" ]'),
        f"  for file in {' '.join(map(shlex.quote, needed))}; do",
        '    if ! [ -r "$file" ]; then',
        "      printf 'print ncclt: %s cannot be read on %s, so the task does not start\\n' \\",
        '        "$file" "${SLURMD_NODENAME:-this node}"',
        "      exit 1",
        "    fi",
        "  done",
        *_exports(variables),
    ]
    if report:
        step = '"${SLURM_JOB_ID:-0}.${SLURM_STEP_ID:-0}.${SLURM_RESTART_COUNT:-0}"'
        folder = shlex.quote(f"{report}/")
        body += [
            '  if [ -z "${NCCLT_PLUGIN_REPORT:-}" ]; then',
            f"    printf 'export NCCLT_PLUGIN_REPORT=%s%s\\n' {folder} {step}",
            "  fi",
        ]
    return _text(body)


def _head(comments: Iterable[str], *promises: str) -> list[str]:
    where = "# TaskProlog of Slurm: srun --task-prolog=FILE, or TaskProlog=FILE in slurm.conf."
    return ["#!/bin/sh", *comments, where, *(f"# {line}" for line in promises)]


def _selection(job: PrologJob, *conditions: str) -> list[str]:
    """Return the beginning of an `if` that is true in the tasks of such jobs, and in no others.

    Where no GPUs were asked for, one task per GPU is what says how many there are; "4(x2)" are 4 on each of 2 nodes.
    """
    assignments([(MODEL_VARIABLE, job.model)], "bash")  # refuses control characters
    tests = [
        f'[ "${{{MODEL_VARIABLE}:-}}" = {shlex.quote(job.model)} ]',
        f'[ -z "${{{_OWN_LAUNCH}:-}}" ]',
        *([] if job.uid is None else [f'[ "${{SLURM_JOB_UID:-}}" = {job.uid} ]']),
        f'[ "${{SLURM_STEP_NUM_NODES:-${{SLURM_JOB_NUM_NODES:-}}}}" = {job.nodes} ]',
        f'{{ [ "$gpus" = {job.gpus_per_node} ] || [ "$gpus" = "{job.gpus_per_node}(x{job.nodes})" ]; }}',
        *conditions,
    ]
    user = "of any user" if job.uid is None else f"of user {job.uid}"
    return [
        f"# For jobs {user} that export {MODEL_VARIABLE} as below, in steps on {job.nodes} x {job.gpus_per_node} GPUs; "
        "in all others it does nothing.",
        'gpus="${SLURM_GPUS_ON_NODE:-${SLURM_STEP_TASKS_PER_NODE:-}}"',
        f"if {tests[0]} \\",
        *(f"  && {test} \\" for test in tests[1:-1]),
        f"  && {tests[-1]}; then",
    ]


def _exports(variables: Variables) -> list[str]:
    assignments(variables, "bash")  # refuses control characters
    lines = [shlex.quote(f"export {name}={value}") for name, value in variables]
    return ["  printf '%s\\n' \\", *(f"    {line} \\" for line in lines[:-1]), *(f"    {line}" for line in lines[-1:])]


def _text(body: list[str]) -> str:
    return "".join(f"{line}\n" for line in [*body, "fi", "exit 0"])

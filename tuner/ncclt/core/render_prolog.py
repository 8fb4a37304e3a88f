"""Slurm's TaskProlog for the plugin: the table per size, and where each task reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ncclt.core.render_shell import Variables, assignments


def table_prolog(
    variables: Variables,
    comments: Iterable[str],
    *,
    nodes: int,
    rivals: Sequence[str],
    needed: Sequence[str],
    report: str = "",
) -> str:
    """Return a script for Slurm's TaskProlog that hands the plugin and its table to every task of a step.

    Like the one for variables it starts no program, opens no connection and waits for nothing; its text is the
    decision, the same on every node. Unlike that one it can fail: a node that lacks plugin or table would choose
    otherwise than the rest, which hangs or corrupts data. Slurm does not start a task whose prolog fails, nor one whose
    prolog is not there (both tried with a real Slurm in tests/integration/test_slurm_prolog.py).

    Args:
        variables: for every task.
        comments: lines that begin with #.
        nodes: of the step; another number gets nothing.
        rivals: variables of the user that stand against the table: where one is set, nothing is.
        needed: files that every node must be able to read.
        report: folder in which each step's reports get a folder of its own; empty = no reports.

    Raises:
        SettingError: a value or path holds a control character.
    """
    # The same refusal as for a shell.
    assignments([*variables, *(("NCCLT_NEEDED", path) for path in needed), ("NCCLT_PLUGIN_REPORT", report)], "bash")
    lines = [shlex.quote(f"export {name}={value}") for name, value in variables]
    own = "".join(f"${{{name}+x}}" for name in sorted(rivals))
    body = [
        "#!/bin/sh",
        *comments,
        "# TaskProlog of Slurm: srun --task-prolog=FILE. It starts no program and waits for nothing.",
        "# On a node that lacks plugin or table it ends with 1, and the task does not start: ranks that disagree hang.",
        "# Where a variable is set that stands against the table, it sets nothing.",
        f'if [ "${{SLURM_STEP_NUM_NODES:-${{SLURM_JOB_NUM_NODES:-}}}}" = {nodes} ] && [ -z "{own}" ]; then',
        f"  for file in {' '.join(map(shlex.quote, needed))}; do",
        '    if ! [ -r "$file" ]; then',
        "      printf 'print ncclt: %s cannot be read on %s, so the task does not start\\n' \\",
        '        "$file" "${SLURMD_NODENAME:-this node}"',
        "      exit 1",
        "    fi",
        "  done",
        "  printf '%s\\n' \\",
        *(f"    {line} \\" for line in lines[:-1]),
        f"    {lines[-1]}",
    ]
    if report:
        step = '"${SLURM_JOB_ID:-0}.${SLURM_STEP_ID:-0}.${SLURM_RESTART_COUNT:-0}"'
        folder = shlex.quote(f"{report}/")
        body += [
            '  if [ -z "${NCCLT_PLUGIN_REPORT:-}" ]; then',
            f"    printf 'export NCCLT_PLUGIN_REPORT=%s%s\\n' {folder} {step}",
            "  fi",
        ]
    return "".join(f"{line}\n" for line in [*body, "fi", "exit 0"])

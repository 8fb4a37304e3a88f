"""Slurm's TaskProlog that hands jobs the tuner plugin and its table; `ncclt.client.answer` writes it, and the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ncclt.client.answer import CONTROL, task_prolog
from ncclt.errors import SettingError

_PROMISE = """\
# It starts no program and waits for nothing. On a node that lacks plugin or table it ends with 1, and the
# task does not start: ranks that disagree hang. Where a variable is set that stands against the table, it
# sets nothing.
"""


def table_prolog(
    job: Mapping[str, Any],
    variables: Mapping[str, str],
    comments: Iterable[str],
    *,
    uid: int | None,
    rivals: Iterable[str],
    needed: Sequence[str],
    report: str = "",
) -> str:
    """Return a script that hands the plugin and its table to every task of a step.

    Like the one for variables it starts no program, opens no connection and waits for nothing; its text is the
    decision, the same on every node. Unlike that one it can fail: a node that lacks plugin or table would choose
    otherwise than the rest, which hangs or corrupts data. Slurm does not start a task whose prolog fails, nor one whose
    prolog is missing (both tried with a real Slurm in tests/integration/test_slurm_prolog.py).

    Args:
        job, uid: which jobs it is for, as for `task_prolog`.
        comments: lines that begin with #.
        rivals: variables of the user that stand against the table: where one is set, nothing is.
        needed: files that every node must be able to read.
        report: folder in which each step's reports get a folder of its own; empty = no reports.

    Raises:
        SettingError: a value, a path or the model's name holds a control character.
    """
    paths = {"NCCLT_NEEDED": "".join(needed), "NCCLT_PLUGIN_REPORT": report}
    for name, text in {"NCCLT_MODEL": job["model"], **variables, **paths}.items():
        if CONTROL.search(text):
            raise SettingError(f"{name} holds a control character", hint="no variable of NCCL takes one")
    before = f"""\
  for file in {" ".join(map(shlex.quote, needed))}; do
    if ! [ -r "$file" ]; then
      printf 'print ncclt: %s cannot be read on %s, so the task does not start\\n' \\
        "$file" "${{SLURMD_NODENAME:-this node}}"
      exit 1
    fi
  done
"""
    after = f"""\
  if [ -z "${{NCCLT_PLUGIN_REPORT:-}}" ]; then
    printf 'export NCCLT_PLUGIN_REPORT=%s%s\\n' {shlex.quote(f"{report}/")} \
"${{SLURM_JOB_ID:-0}}.${{SLURM_STEP_ID:-0}}.${{SLURM_RESTART_COUNT:-0}}"
  fi
"""
    own = "".join(f"${{{name}+x}}" for name in sorted({*rivals}))
    condition = f' \\\n  && [ -z "{own}" ]'
    inserted = {"promise": _PROMISE, "condition": condition, "before": before, "after": after if report else ""}
    return task_prolog(job, variables, comments, uid=uid, inserted=inserted)

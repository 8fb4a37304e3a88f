"""Launches as `--dry-run` shows them: commands, variables and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ncclt.core.message import format_bytes
from ncclt.core.plural import count_noun

if TYPE_CHECKING:
    from ncclt.launch.launcher import LaunchPlan

_LONGEST_WORD, _SHOWN_OF_WORD = 160, 24
"""Characters of a word that is shown whole, and of what is shown of a longer one: srun takes scripts as words."""


def launch_row(setting: str, plan: LaunchPlan) -> dict[str, Any]:
    """Return a launch as a JSON object."""
    return {
        "setting": setting,
        "argv": list(plan.argv),
        "set_env": dict(plan.set_env),
        "unset_env": list(plan.unset_env),
        "files": dict(plan.files),
        "timeout_s": plan.timeout_s,
    }


def print_launches(rows: Iterable[Mapping[str, Any]], *, texts: bool) -> None:
    """Write launches; of a file its size, unless its text is wanted, and what equals the launch before only once."""
    shown: Mapping[str, Any] = {}
    for row in rows:
        print(f"launch of {row['setting']}, at most {row['timeout_s']:.0f} s:")
        if row["unset_env"] and row["unset_env"] != shown.get("unset_env"):
            print(f"  unset {' '.join(row['unset_env'])}")
        for name, value in row["set_env"].items() if row["set_env"] != shown.get("set_env") else ():
            print(f"  {name}={shlex.quote(value)}")
        words = [
            word if texts or len(word) <= _LONGEST_WORD else f"{word[:_SHOWN_OF_WORD]}… ({len(word)} characters)"
            for word in row["argv"]
        ]
        print("  the same command" if row["argv"] == shown.get("argv") else f"  {shlex.join(words)}")
        for name, text in row["files"].items():
            if text == shown.get("files", {}).get(name):
                continue
            lines = text.splitlines()
            print(f"  file {name}: {count_noun(len(lines), 'line')}, {format_bytes(len(text.encode()))}")
            if texts:
                print("".join(f"    {line}\n" for line in lines), end="")
        shown = row

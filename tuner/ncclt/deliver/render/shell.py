"""Variables as shells, launchers and Slurm's TaskProlog take them.

Shell code quotes whatever a value holds. Words for a command line cannot: `mpirun $(ncclt env ...)` splits at blanks
and expands patterns, but never removes quotes, so there a value that is not one plain word is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ncclt.errors import SettingError, UsageError

SHELLS = ("bash", "fish", "csh")
"""Whose language `--shell` writes; `bash` is POSIX and holds for sh, dash and zsh as well, `csh` for tcsh."""

Variables = Sequence[tuple[str, str]]
"""(name, value) pairs in the order in which they are written."""

PYXIS_VARIABLE = "NCCLT_PYXIS"
"""Holds the option that a user puts on srun's command line."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./;-]*")
"""What `$(...)` hands on unchanged: no blank, no pattern; a semicolon ends no command there."""


def check_shell(shell: str) -> None:
    """Refuse a shell whose language is not known.

    Raises:
        UsageError: it is none of `SHELLS`.
    """
    if shell not in SHELLS:
        raise UsageError(f"unknown shell {shell!r}", hint=f"one of {', '.join(SHELLS)}; bash is right for sh and zsh")


def assignments(variables: Variables, shell: str) -> list[str]:
    """Return one command per variable that sets and exports it.

    In fish and csh each ends with a semicolon, as their `eval` makes one line of all.

    Raises:
        SettingError: a value holds a control character.
    """
    for name, value in variables:
        if _CONTROL.search(value):
            raise SettingError(f"{name} holds a control character", hint="no variable of NCCL takes one")
    match shell:
        case "fish":
            return [f"set -gx {name} {_fish_quoted(value)};" for name, value in variables]
        case "csh":
            return [f"setenv {name} {_csh_quoted(value)};" for name, value in variables]
        case _:
            return [f"export {name}={shlex.quote(value)}" for name, value in variables]


def removals(names: Iterable[str], shell: str) -> list[str]:
    """Return one command per name that undoes what `assignments` did; a name that is not set does no harm."""
    match shell:
        case "fish":
            # Without the question fish would end with a code other than 0 where the variable is not there.
            return [f"set -q {name}; and set -e {name};" for name in names]
        case "csh":
            return [f"unsetenv {name};" for name in names]
        case _:
            return [f"unset {name}" for name in names]


def _fish_quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _csh_quoted(value: str) -> str:
    """Return a single-quoted string of csh, in which only `!` keeps its meaning."""
    return "'" + value.replace("'", "'\\''").replace("!", "\\!") + "'"


def option_words(option: str, variables: Variables) -> str:
    """Return one line of `OPTION NAME=value` pairs for `$(...)` on a command line.

    Raises:
        SettingError: a value would not stay one word.
    """
    for name, value in variables:
        if not _WORD.fullmatch(value):
            raise SettingError(
                f"{name}={value!r} does not stay one word on a command line", hint="use --format export or dotenv"
            )
    return " ".join(f"{option} {name}={value}" for name, value in variables) + "\n"


def pyxis_lines(variables: Variables) -> list[str]:
    """Return the variables for srun's own environment, and the option by which they win inside a container.

    An image's own value goes before the host's unless `--container-env` names the variable (README of NVIDIA/pyxis).
    """
    names = ",".join(name for name, _ in variables)
    return assignments([*variables, (PYXIS_VARIABLE, f"--container-env={names}")], "bash")

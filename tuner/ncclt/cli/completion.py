"""What a shell completes beside options: names of clusters and workloads, and the values of `ncclt env` and `run`.

Only what is shipped and what a local SQLite file holds: pressing Tab waits for no server and no database, and creates
no file.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from ncclt.errors import NccltError, UsageError
from ncclt.user_dirs import recorded_tables

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")

_INSTALLING = ("--install-completion", "--show-completion")


def cluster_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of clusters that begin so."""
    return _beginning(incomplete, _known(ctx).clusters)


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workloads that begin so."""
    return _beginning(incomplete, _known(ctx).workloads)


def recorded_names(incomplete: str) -> list[str]:
    """Return the names of recorded clusters that begin so."""
    return _beginning(incomplete, recorded_tables())


def format_names(incomplete: str) -> list[str]:
    """Return the formats of `ncclt env` that begin so."""
    from ncclt.deliver.render.formats import FORMATS

    return _beginning(incomplete, FORMATS)


NAMES: dict[str, Callable[..., list[str]]] = {
    "cluster": cluster_names,
    "model": model_names,
    "format": format_names,
}
"""Options, by the names of their parameters."""


def is_completing() -> bool:
    """Return whether a shell asks what could follow; behind `--` stands the command of a job, which is not ours."""
    typed = f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}"
    return "_NCCLT_COMPLETE" in os.environ and "--" not in typed.split()


def signature_of(parser: argparse.ArgumentParser) -> inspect.Signature:
    """Return the options of a command that parses its own arguments as those of the framework, which completes them."""
    parameters = []
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        is_flag = action.nargs == 0
        complete = NAMES.get(action.dest) or (_choices(action.choices) if action.choices else None)
        offered: Any = typer.Option(*action.option_strings, help=action.help, autocompletion=complete)
        hint = bool if is_flag else str | None
        parameters.append(
            inspect.Parameter(
                action.dest,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[hint, offered],
                default=False if is_flag else None,
            )
        )
    return inspect.Signature(parameters)


def install_for(group: Any, ctx: Any, words: list[str]) -> None:
    """Do what --install-completion and --show-completion ask for a named shell; return where none is named.

    Raises:
        UsageError: there is no such shell, or it is not here.
    """
    leading = words[: next((place for place, word in enumerate(words) if word in _INSTALLING), -1) + 2]
    option, shell = ("", "") if len(leading) < 2 or leading[-1].startswith("-") else (leading[-2], leading[-1])
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in _INSTALLING:
            option, shell = name, value
    if not option:
        return
    if shell not in SHELLS:
        raise UsageError(f"{option} does not support the shell {shell!r}", hint=f"one of {', '.join(SHELLS)}")
    asked = next(one for one in group.params if option in one.opts)
    try:
        asked.callback(ctx, asked, shell)
    except OSError as error:
        raise UsageError(f"{option} {shell} fails: {error}", hint="--show-completion prints what to load") from error


def _choices(names: Iterable[Any]) -> Callable[[str], list[str]]:
    def beginning(incomplete: str) -> list[str]:
        return _beginning(incomplete, map(str, names))

    return beginning


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _known(ctx: typer.Context) -> Any:
    from ncclt.cli.configuration import lookup
    from ncclt.cli.options import storage_flag
    from ncclt.store import local_names

    try:
        given = ctx.params.get("storage") or storage_flag()
        return local_names(given or lookup("storage", warn=lambda _line: None).value)
    except NccltError:  # a broken file of settings
        return local_names("")

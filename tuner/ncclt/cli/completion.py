"""Completion of values: names of clusters, workloads and studies, and every closed list.

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

from ncclt.core.message import Collective
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


def study_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names and ids of studies that begin so."""
    return _beginning(incomplete, _known(ctx).studies)


def recorded_names(incomplete: str) -> list[str]:
    """Return the names of recorded clusters that begin so."""
    return _beginning(incomplete, recorded_tables())


def collective_names(incomplete: str) -> list[str]:
    """Return the names of collectives that begin so."""
    return _beginning(incomplete, Collective)


def _format_names(incomplete: str) -> list[str]:
    from ncclt.deliver.render.formats import FORMATS

    return _beginning(incomplete, FORMATS)


def _launcher_names(incomplete: str) -> list[str]:
    from ncclt.core.trial import NOT_LAUNCHED
    from ncclt.launch import launcher_names

    return _beginning(incomplete, (*launcher_names(), *NOT_LAUNCHED))


def _launcher_options(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys of the launcher that is named, or of all, with `=` behind each."""
    from ncclt.launch import load_launchers

    named = ctx.params.get("launcher")
    classes = [launcher for name, launcher in load_launchers().items() if named in (None, "", name)]
    keys = [option.key for launcher in classes for option in launcher.options]
    return _beginning(incomplete, {key if key.endswith(".") else f"{key}=" for key in keys})


def _benchmark_names(incomplete: str) -> list[str]:
    from ncclt.measure.benchmarks import benchmark_names

    return _beginning(incomplete, benchmark_names())


def _parameter_names(incomplete: str) -> list[str]:
    """Return the process-wide parameters that complete the last name of a comma-separated list."""
    from ncclt.nccl.parameters import CATALOGUE

    before, comma, last = incomplete.rpartition(",")
    names = (row.name for row in CATALOGUE if row.safe and row.ladder)
    return [f"{before}{comma}{name}" for name in _beginning(last, names)]


def complete_from(*names: str) -> Callable[[str], list[str]]:
    """Return a function that completes one of these names."""
    return lambda incomplete: _beginning(incomplete, names)


NAMES: dict[str, Callable[..., list[str]]] = {
    "cluster": cluster_names,
    "model": model_names,
    "study": study_names,
    "format": _format_names,
    "launcher": _launcher_names,
    "launcher_option": _launcher_options,
    "benchmark": _benchmark_names,
    "process_wide": _parameter_names,
    "backend": complete_from("nccl", "gloo"),
    "beside": complete_from("gemm"),
    "through": complete_from("plugin", "variables", "options"),
    "shell": complete_from("bash", "fish", "csh"),
}
"""Options, by the names of their parameters."""


def is_completing() -> bool:
    """Return True while a shell asks for completions of our own words, not of a job's command behind `--`."""
    typed = f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}"
    return "_NCCLT_COMPLETE" in os.environ and "--" not in typed.split()


def signature_of(parser: argparse.ArgumentParser) -> inspect.Signature:
    """Return the options of a command that parses its own arguments as those of the framework, which completes them."""
    parameters = []
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        is_flag = action.nargs == 0
        complete = NAMES.get(action.dest) or (complete_from(*map(str, action.choices)) if action.choices else None)
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
    installer = next(param for param in group.params if option in param.opts)
    try:
        installer.callback(ctx, installer, shell)
    except OSError as error:
        raise UsageError(f"{option} {shell} fails: {error}", hint="--show-completion prints what to load") from error


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _known(ctx: typer.Context) -> Any:
    from ncclt.cli.configuration import lookup, storage_flag
    from ncclt.store import local_names

    try:
        url = ctx.params.get("storage") or storage_flag()
        return local_names(url or lookup("storage", warn=lambda _line: None).value)
    except NccltError:  # a broken file of settings
        return local_names("")

"""Options that several commands share, and records whose fields are options of a command."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ncclt.cli.completion import NAMES, cluster_names, collective_names, model_names, study_names
from ncclt.core.option import Group, Option, options_of

Model = Annotated[str, typer.Option(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)]

ModelFilter = Annotated[
    str | None, typer.Option("--model", help="Workload, see `ncclt profile list`.", autocompletion=model_names)
]

ClusterFilter = Annotated[str | None, typer.Option("--cluster", help="Cluster.", autocompletion=cluster_names)]

ClusterHere = Annotated[
    str | None, typer.Option(envvar="NCCLT_CLUSTER", help="Name of the cluster.", autocompletion=cluster_names)
]

Limit = Annotated[int, typer.Option(min=1, max=500, help="Max rows.")]

ClusterName = Annotated[
    str, typer.Argument(help="Name of the cluster, see `ncclt cluster list`.", autocompletion=cluster_names)
]

CollectiveName = Annotated[str, typer.Option(help="Name of the collective.", autocompletion=collective_names)]

StudyKey = Annotated[
    str, typer.Argument(help="Name of the study, its id, or the start of it.", autocompletion=study_names)
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

StepsPerDay = Annotated[
    int | None,
    typer.Option(help="Training steps per day, to state the gain in GPU-hours.", min=1, rich_help_panel=Group.BUDGET),
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the per-message table, search details and notes too.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storing:
    """Options of a command that stores its result."""

    replace: Annotated[bool, Option("Replace an imported workload of this name.")] = False
    dry_run: Annotated[bool, Option("Print the result without storing it.")] = False
    as_json: Annotated[bool, Option("Print one JSON document.", flag="--json")] = False


REPLACE_CLUSTER = {"replace": Option("Replace an added cluster of this name.")}
"""Help of `Storing` where the result is a cluster."""


def storage_option(storage: str | None, shown: str) -> str:
    """Return the option that another command needs to find this store; empty where it needs none.

    Args:
        storage: the URL given to this command, None = the user's own store.
        shown: the store as shown to users, without password.
    """
    if storage is None:
        return ""
    if storage.startswith("sqlite"):
        return f" --storage {shlex.quote(f'sqlite:///{Path(shown).absolute()}')}"
    # A password is not printed: where the shell has the URL with one, it stays the only one that works.
    return "" if storage == os.environ.get("NCCLT_STORAGE") != shown else f" --storage {shlex.quote(shown)}"


@dataclass(frozen=True, slots=True)
class Fields:
    """Selection of the fields of a record that a command offers.

    Attributes:
        words: their names in the order of the help, with spaces between; parameters of the command may stand among
            them and take their place there. Empty = all.
        own: replacements for options whose help differs in this command.
    """

    words: str = ""
    own: Mapping[str, Option] = field(default_factory=dict)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for the framework, with options for parameters with an `Option` and for fields of records.

    A dataclass parameter becomes one option per field, or per field in `Fields`. Defaults come from the record.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    own = {name: _offer(parameter) for name, parameter in parameters.items()}
    records: dict[str, tuple[type, dict[str, Option]]] = {}
    offered: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        hint, marks = _read_annotation(parameter)
        if not isinstance(hint, type) or not is_dataclass(hint):
            offered.setdefault(name, parameter)
            continue
        chosen = next((mark for mark in marks if isinstance(mark, Fields)), Fields())
        options, hints = {**options_of(hint), **chosen.own}, get_type_hints(hint)
        defaults = {slot.name: slot.default for slot in fields(hint)}
        words = chosen.words.split() or list(options)
        records[name] = hint, {word: options[word] for word in words if word not in own}
        for word in words:
            offered[word] = own.get(word) or _offer_field(word, options[word], hints[word], defaults[word])

    @functools.wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def call(*words: Any, **arguments: Any) -> None:
        for name, (record, options) in records.items():
            values = {word: _value(arguments.pop(word), option) for word, option in options.items()}
            arguments[name] = record(**{word: value for word, value in values.items() if value is not None})
        command(*words, **arguments)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in offered.values()]
    vars(call)["__signature__"] = inspect.Signature(keywords)
    call.__annotations__ = {}  # typer would evaluate them in the namespace of the command's module
    return call


def _read_annotation(parameter: inspect.Parameter) -> tuple[Any, list[Any]]:
    """Return the type of a parameter and its annotations."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter.annotation, []
    hint, *marks = get_args(parameter.annotation)
    return hint, marks


def _offer(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter of a command as the framework's, if it is annotated with `Option`."""
    hint, marks = _read_annotation(parameter)
    option = next((mark for mark in marks if isinstance(mark, Option)), None)
    return parameter if option is None else _build_parameter(parameter.name, option, hint, parameter.default)


def _offer_field(name: str, option: Option, hint: Any, default: Any) -> inspect.Parameter:
    """Return a field as a parameter of the framework, for which an empty default is None."""
    if option.comma:
        hint, default = str, ",".join(default or ())
    elif get_origin(hint) is tuple:
        hint, option = list[str], replace(option, metavar=option.metavar or "<str>")
    default = None if default in ("", ()) else default
    return _build_parameter(name, option, hint | None if default is None else hint, default)


def _build_parameter(name: str, option: Option, hint: Any, default: Any) -> inspect.Parameter:
    word = name.replace("_", "-")
    offered = typer.Option(
        option.flag or (f"--{word}/--no-{word}" if hint == bool | None else f"--{word}"),
        help=option.help,
        envvar=option.envvar,
        metavar=option.metavar,
        min=option.least,
        max=option.most,
        rich_help_panel=option.group,
        autocompletion=NAMES.get(name),
        show_default=default is not None,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[hint, offered], default=default)


def _value(argument: Any, option: Option) -> Any:
    """Convert the value of an option to the type of its field; None = not given."""
    if option.comma and argument is not None:
        return tuple(word.strip() for word in argument.split(",") if word.strip())
    return tuple(argument) if isinstance(argument, list) else argument


def words_of(record: Any) -> list[str]:
    """Return a record as options of a command line that give the same record from any folder; defaults are left out."""
    words: list[str] = []
    defaults = {slot.name: slot.default for slot in fields(record)}
    for name, option in options_of(type(record)).items():
        value, flag = getattr(record, name), option.flag or f"--{name.replace('_', '-')}"
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(flag.split("/")[0 if value else 1])
            continue
        values = [",".join(value) or "none"] if option.comma else value if isinstance(value, tuple) else [value]
        for text in (str(item.absolute() if isinstance(item, Path) else item) for item in values):
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words

"""Records as options: a command takes one record, and its command line has an option for each field."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ncclt.cli.completion import NAMES
from ncclt.core.option import Option, options_of


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a record a command offers.

    Attributes:
        words: their names in the order of the help, with spaces between; parameters of the command may stand among
            them and take their place there. Empty = all.
        own: replacements for options whose help differs in this command.
    """

    words: str = ""
    own: Mapping[str, Option] = field(default_factory=dict)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its records: the parameters whose type is a dataclass.

    A parameter that is annotated with `Fields` offers only these. An option that is left out has the record's default.
    """
    own = inspect.signature(command, eval_str=True).parameters
    made: dict[str, tuple[type, dict[str, Option]]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        annotation = parameter.annotation
        hint, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        if not isinstance(hint, type) or not is_dataclass(hint):
            parameters.setdefault(name, parameter)
            continue
        chosen = next((mark for mark in marks if isinstance(mark, Fields)), Fields())
        options = {**options_of(hint), **chosen.own}
        words = chosen.words.split() or list(options)
        made[name] = hint, {word: options[word] for word in words if word not in own}
        parameters |= {word: own[word] if word in own else _parameter(hint, word, options[word]) for word in words}

    @functools.wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def call(**given: Any) -> None:
        for name, (record, options) in made.items():
            values = {word: _value(given.pop(word), option) for word, option in options.items()}
            given[name] = record(**{word: value for word, value in values.items() if value is not None})
        command(**given)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    vars(call)["__signature__"] = inspect.Signature(keywords)
    call.__annotations__ = {}  # typer would evaluate them in the namespace of the command's module
    return call


def _parameter(record: type, name: str, option: Option) -> inspect.Parameter:
    """Return a field as a parameter of typer, for which an empty default is None."""
    hint = get_type_hints(record)[name]
    default: Any = next(one.default for one in fields(record) if one.name == name)
    if get_origin(hint) is tuple:
        hint, default = (str, ",".join(default)) if option.comma else (list[str], default)
    metavar = option.metavar or ("<str>" if get_origin(hint) is list else None)
    offered = typer.Option(
        option.flag or f"--{name.replace('_', '-')}",
        help=option.help,
        envvar=option.envvar,
        metavar=metavar,
        min=option.least,
        rich_help_panel=option.group,
        autocompletion=NAMES.get(name),
    )
    default = None if default in ("", ()) else default
    hint = hint | None if default is None else hint
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[hint, offered], default=default)


def _value(given: Any, option: Option) -> Any:
    """Convert the value of an option to the type of its field; None = not given."""
    if option.comma and given is not None:
        return tuple(word.strip() for word in given.split(",") if word.strip())
    return tuple(given) if isinstance(given, list) else given


def words_of(record: Any) -> list[str]:
    """Return a record as options of a command line that give the same record from any folder; defaults are left out."""
    words: list[str] = []
    defaults = {one.name: one.default for one in fields(record)}
    for name, option in options_of(type(record)).items():
        value, flag = getattr(record, name), option.flag or f"--{name.replace('_', '-')}"
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            words.append(flag.split("/")[0 if value else 1])
            continue
        several = [",".join(value) or "none"] if option.comma else value if isinstance(value, tuple) else [value]
        for text in (str(one.absolute() if isinstance(one, Path) else one) for one in several):
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words

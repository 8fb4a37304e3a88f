"""`--sampler MODULE:CLASS(KEY=VALUE, …)`: a `BaseSampler` of Optuna, OptunaHub or the user in the place of ours."""

from __future__ import annotations

import ast
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from ncclt.errors import UsageError

_EXAMPLE = "for example --sampler 'optuna.samplers:TPESampler(n_startup_trials=4)'"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSampler:
    """A sampler class and its arguments.

    Attributes:
        name: of the class.
        create: makes one; with this seed, if the class takes one.
        startup_trials: trials that it draws at random before it models anything; 0 if it does not say.
    """

    name: str
    create: Callable[[int], BaseSampler]
    startup_trials: int = 0


def named_sampler(text: str) -> NamedSampler | None:
    """Return the sampler that MODULE:CLASS or MODULE:CLASS(KEY=VALUE, …) names; None for an empty text.

    Raises:
        UsageError: the module cannot be imported, has no such class, the class is no sampler, or an argument is
            unknown, no literal, or refused by the class.
    """
    if not text:
        return None
    place, colon, call = text.partition(":")
    if not (place and colon and call):
        raise UsageError(f"--sampler must be MODULE:CLASS or MODULE:CLASS(KEY=VALUE), not {text!r}", hint=_EXAMPLE)
    name, options = _parse_call(text, call)
    module = _import(place)
    factory = getattr(module, name, None)
    if factory is None:
        classes = [n for n, value in vars(module).items() if _is_sampler(value)]
        close = get_close_matches(name, classes)
        hint = f"did you mean {place}:{close[0]}?" if close else f"it has {', '.join(classes) or 'no sampler'}"
        raise UsageError(f"--sampler {text}: the module {place} has no {name}", hint=hint)
    if not _is_sampler(factory):
        raise UsageError(
            f"--sampler {text}: {name} is no class derived from optuna.samplers.BaseSampler", hint=_EXAMPLE
        )
    parameters = inspect.signature(factory).parameters
    _require_known(text, name, options, parameters)
    startup = options.get("n_startup_trials", getattr(parameters.get("n_startup_trials"), "default", 0))
    if isinstance(startup, int) and startup < 0:
        raise UsageError(f"--sampler {text}: n_startup_trials must be 0 or more, not {startup}", hint=_EXAMPLE)

    def create(seed: int) -> BaseSampler:
        sampler: BaseSampler = factory(**options, **({"seed": seed} if "seed" in parameters else {}))
        return sampler

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            create(0)
    except Exception as error:
        raise UsageError(
            f"--sampler {text} cannot be created: {type(error).__name__}: {error}",
            hint=f"pass the arguments that it needs, {_EXAMPLE}",
        ) from error
    return NamedSampler(name=name, create=create, startup_trials=startup if isinstance(startup, int) else 0)


def _parse_call(text: str, call: str) -> tuple[str, dict[str, Any]]:
    """Return the class name and the keyword arguments; nothing is evaluated but literals."""
    try:
        node = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    arguments, keywords = (node.args, node.keywords) if isinstance(node, ast.Call) else ([], [])
    named = node.func if isinstance(node, ast.Call) else node
    if not isinstance(named, ast.Name):
        raise UsageError(f"--sampler {text}: {call!r} is neither CLASS nor CLASS(KEY=VALUE)", hint=_EXAMPLE)
    if arguments or any(keyword.arg is None for keyword in keywords):
        raise UsageError(f"--sampler {text}: every argument needs its name, KEY=VALUE", hint=_EXAMPLE)
    options: dict[str, Any] = {}
    for keyword in keywords:
        assert keyword.arg is not None
        if keyword.arg in options:
            raise UsageError(f"--sampler {text}: {keyword.arg} is given twice", hint="name each argument once")
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"--sampler {text}: the value of {keyword.arg} is no literal: {ast.unparse(keyword.value)}",
                hint="use a number, True, False, None, a 'string', or a list, tuple or dict of them",
            ) from error
    return named.id, options


def _require_known(
    text: str, name: str, options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    if "seed" in options:
        raise UsageError(f"--sampler {text}: the seed is not an argument here", hint="set --seed")
    accepted = [p for p in parameters if p != "seed"]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = None if takes_any else next((option for option in options if option not in accepted), None)
    if unknown is not None:
        close = get_close_matches(unknown, accepted)
        hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(accepted) or 'none'}"
        raise UsageError(f"--sampler {text}: {name} has no argument {unknown}", hint=hint)


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise UsageError(
            f"--sampler: the module {module} cannot be imported: {type(error).__name__}: {error}",
            hint="it must be installed where ncclt is, or its folder be named by PYTHONPATH",
        ) from error


def _is_sampler(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseSampler)

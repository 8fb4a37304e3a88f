"""Another sampler in the place of ours: any `BaseSampler` of Optuna's or OptunaHub's, by module and class."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler

from ncclt.errors import UsageError

_EXAMPLE = "for example --sampler optuna.samplers:TPESampler; without it ncclt searches with a sampler of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSampler:
    """A class of samplers that a user named.

    Attributes:
        name: of the class.
        create: makes one; with this seed, where the class takes one.
    """

    name: str
    create: Callable[[int], BaseSampler]


def named_sampler(text: str) -> NamedSampler | None:
    """Return the class that MODULE:CLASS means; None where the text is empty.

    Raises:
        UsageError: the module cannot be imported, it has no such class, or the class is no sampler or wants arguments.
    """
    if not text:
        return None
    place, colon, name = text.partition(":")
    if not (place and colon and name):
        raise UsageError(f"--sampler must be MODULE:CLASS, not {text!r}", hint=_EXAMPLE)
    found = getattr(_module(place), name, None)
    if found is None:
        classes = [n for n, value in vars(_module(place)).items() if _is_sampler(value)]
        close = get_close_matches(name, classes)
        hint = f"did you mean {place}:{close[0]}?" if close else f"it has {', '.join(classes) or 'no sampler'}"
        raise UsageError(f"--sampler {text}: the module {place} has no {name}", hint=hint)
    if not _is_sampler(found):
        raise UsageError(
            f"--sampler {text}: {name} is no class derived from optuna.samplers.BaseSampler", hint=_EXAMPLE
        )
    takes_seed = "seed" in inspect.signature(found).parameters
    made = NamedSampler(name=name, create=lambda seed: found(seed=seed) if takes_seed else found())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            made.create(0)
    except Exception as error:
        raise UsageError(
            f"--sampler {text} cannot be made: {type(error).__name__}: {error}",
            hint="the class must do without arguments, but for a seed: derive one that passes those that yours needs",
        ) from error
    return made


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(
            f"--sampler: the module {name} cannot be imported: {type(error).__name__}: {error}",
            hint="it must be installed where ncclt is, or its folder be named by PYTHONPATH",
        ) from error


def _is_sampler(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseSampler)

"""The `config.json` of a transformers model, as a user saved it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ncclt.errors import InputError
from ncclt.profile.inputs import open_regular

_MOST_BYTES = 1024 * 1024
"""Far above any configuration; the largest that are known have some 100 KiB of label names."""

_MOST_MODULES = 10_000
"""More layers, heads or experts than any model has; building them would take minutes for nothing."""

_COUNTS = re.compile(r"(^|_)(num|n|depths?|layers?|blocks?|experts?)(_|$)")


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration; it names its `model_type`.

    Raises:
        InputError: it cannot be read, is no JSON object, names no model type, or asks for absurdly many layers.
    """
    hint = "give the config.json that lies beside the weights of a transformers model"
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path} is larger than 1 MiB and no configuration", hint=hint)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", hint=hint) from error
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(f"{path} names no model_type", hint=hint)
    for name, count in _counts(document):
        if count > _MOST_MODULES:
            raise InputError(f"{path} asks for {name} = {count}", hint=f"more than {_MOST_MODULES} cannot be meant")
    return document


def _counts(document: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the numbers by which modules are repeated, also of nested configurations and lists."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif _COUNTS.search(name):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, int) and not isinstance(one, bool):
                    yield name, one

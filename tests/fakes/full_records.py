"""Records of which every field is away from its default."""

import math
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import get_args, get_origin, get_type_hints

from ncclt.core.documents import Documented
from ncclt.core.recommendation import Coverage

VALID = {
    "nccl_version": "2.28.9",
    "link_class": "nvlink",
    "fabric": "roce",
    "dtype": "float16",
    "channels": 7,
    "min_bytes": 4,
    "max_bytes": 8,
    "share": 0.25,
    "max_cost": 0.01,
    "loss_limit": 0.02,
    "percent": 30,
    "priority": 3,
    "interval": (0.5, math.inf),
    "confined": False,
}
"""Values of fields that take only some values of their type, or are hidden."""


def fill_record(record, **given):
    """Return a record whose fields differ from their defaults."""
    hints, values = get_type_hints(record), VALID | ({"channels": (4, 8)} if record is Coverage else {}) | given
    return record(
        **{
            field.name: values[field.name] if field.name in values else fill_type(hints[field.name], field)
            for field in fields(record)
        }
    )


def fill_type(hint, field):
    """Return a value of a type that is not the default of its field."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        return fill_type(next(part for part in parts if part is not NoneType), field)
    if kind is Mapping:
        return {"name": fill_type(parts[1], field)}
    if issubclass(kind, Enum):
        return next(word for word in kind if word != field.default)
    if issubclass(kind, Documented):
        return fill_record(kind)
    if kind is frozenset or parts[1:] == (...,):
        return kind([fill_type(parts[0], field)])
    if issubclass(kind, tuple):
        items = [fill_type(part, field) for part in parts or get_type_hints(kind).values()]
        return tuple(items) if kind is tuple else kind(*items)
    return {bool: field.default is not True, int: 3, float: 1.5, str: f"a {field.name}"}[kind]

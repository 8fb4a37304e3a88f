"""JSON from the records and back: the fields of a dataclass are its document, and its `SHAPE` says what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from ncclt.errors import InputError, NccltError, SettingError

_LEAVES = {str: "a text", bool: "true or false", int: "an integer", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Where the document of a class differs from its fields, and what is said of one that does not fit.

    Attributes:
        name: of the document, for people.
        hint: what to do about one that does not fit.
        error: raised for it.
        schema: version of the document, its first entry; 0 = it is part of another one.
        bare: the version is not written, and need not be there.
        closed: an entry that is no field is an error; else it is ignored, as newer versions write more.
        complete: what has a default may not be missing either.
        omitted: fields that are left out where they have their default.
        hidden: fields that are never written.
        inlined: fields whose own entries stand among those of this document.
        pairs: fields of (name, value) pairs, written as an object and kept sorted.
        unbounded: intervals whose infinite ends are null, for JSON has no infinity.
        computed: (entry, property, field that it stands before): written for readers, ignored on the way back.
    """

    name: str = ""
    hint: str = ""
    error: type[NccltError] = InputError
    schema: int = 0
    bare: bool = False
    closed: bool = False
    complete: bool = False
    omitted: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    computed: tuple[tuple[str, str, str], ...] = ()


class Document:
    """The base of every dataclass that is stored, served or printed as JSON."""

    __slots__ = ()

    SHAPE: ClassVar[Shape] = Shape()

    def to_document(self) -> dict[str, Any]:
        """Return the record as a JSON object, in the order of its fields."""
        shape = self.SHAPE
        document: dict[str, Any] = {"schema": shape.schema} if shape.schema and not shape.bare else {}
        for one in _fields(type(self)):
            document |= {entry: _plain(getattr(self, name)) for entry, name, at in shape.computed if at == one.name}
            value = getattr(self, one.name)
            if one.name in shape.hidden or (one.name in shape.omitted and value == _default(one)):
                continue
            if one.name in shape.inlined:
                document |= value.to_document()
            elif one.name in shape.pairs:
                document[one.name] = dict(value)
            elif one.name in shape.unbounded:
                document[one.name] = [end if math.isfinite(end) else None for end in value]
            else:
                document[one.name] = _plain(value)
        return document | {entry: _plain(getattr(self, name)) for entry, name, at in shape.computed if not at}

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read back what `to_document` of this or an earlier version wrote.

        Raises:
            NccltError: the class that `SHAPE` names, where an entry is missing or of the wrong type; and what the
                record itself says of an impossible value.
        """
        try:
            return _record(cls, document, "$")
        except _UnfitError as unfit:
            raise cls.SHAPE.error(f"this is not {cls.SHAPE.name}: {unfit}", hint=cls.SHAPE.hint) from None
        except SettingError as error:  # of a policy inside
            if cls.SHAPE.error is SettingError:
                raise
            raise cls.SHAPE.error(f"this is not {cls.SHAPE.name}: {error.message}", hint=error.hint) from error


Record = TypeVar("Record", bound=Document)


class _UnfitError(Exception):
    """An entry that does not fit; the text says where it is and why."""


_fields: Callable[[Any], tuple[Field[Any], ...]] = cache(fields)
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Document):
        return value.to_document()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    items = [_plain(item) for item in value]
    return sorted(items) if isinstance(value, frozenset) else items


def _record(cls: type[Record], document: Any, where: str) -> Record:
    shape: Shape = cls.SHAPE
    if not isinstance(document, Mapping):
        raise _unfit(where, "an object", document)
    _check_entries(cls, document, where)
    values = {}
    for one in _fields(cls):
        name, hint, inside = one.name, _hints(cls)[one.name], f"{where}.{one.name}"
        if name in shape.inlined:
            values[name] = _record(hint, document, where)
        elif name in shape.hidden:
            continue
        elif name in document:
            values[name] = _field(shape, name, hint, document[name], inside)
        elif shape.complete or (one.default is MISSING and one.default_factory is MISSING):
            raise _UnfitError(f"{inside} is missing")
    return cls(**values)


def _check_entries(cls: type[Any], document: Mapping[str, Any], where: str) -> None:
    shape: Shape = cls.SHAPE
    if shape.schema and "schema" not in document and not shape.bare:
        raise _UnfitError(f"{where}.schema is missing")
    if shape.schema and document.get("schema", shape.schema) != shape.schema:
        kind = cls.__name__.lower()
        raise shape.error(
            f"{kind} schema {_shown(document['schema'])} is not supported: this ncclt reads schema {shape.schema}",
            hint="update ncclt",
        )
    known = [one.name for one in _fields(cls)]
    unknown = sorted(str(entry) for entry in document if entry not in (*known, "schema"))
    if shape.closed and unknown:
        raise shape.error(
            f"unknown field {_shown(unknown[0])} in {shape.name}", hint=f"the fields are {', '.join(known)}"
        )


def _field(shape: Shape, name: str, hint: Any, value: Any, where: str) -> Any:
    if name in shape.pairs:
        _name, kind = get_args(get_args(hint)[0])
        return tuple(sorted(_value(dict[str, kind], value, where).items()))  # type: ignore[valid-type]
    if name in shape.unbounded and isinstance(value, list) and value[-1:] == [None]:
        value = [*value[:-1], math.inf]
    return _value(hint, value, where)


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return what a field of this type holds."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        if value is None and NoneType in parts:
            return None
        return _value(next(part for part in parts if part is not NoneType), value, where)
    if kind in _LEAVES:
        return _leaf(kind, value, where)
    if kind in (Mapping, dict):
        if not isinstance(value, Mapping):
            raise _unfit(where, "an object", value)
        return {_leaf(str, name, where): _value(parts[1], item, f"{where}.{name}") for name, item in value.items()}
    if issubclass(kind, Document):
        return _record(kind, value, where)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise _unfit(where, f"one of {', '.join(one.value for one in kind)}", value) from None
    if not isinstance(value, list | tuple):
        raise _unfit(where, "a list", value)
    if parts[1:] == (...,) or kind is frozenset:
        return kind(_items([parts[0]] * len(value), value, where))
    row = parts or tuple(_hints(kind).values())  # a NamedTuple has its types in its class
    if len(row) != len(value):
        raise _UnfitError(f"{where} has {len(value)} items and not {len(row)}")
    items = _items(row, value, where)
    return tuple(items) if kind is tuple else kind(*items)


def _items(hints: Any, values: Any, where: str) -> Iterator[Any]:
    for at, (hint, value) in enumerate(zip(hints, values, strict=True)):
        yield _value(hint, value, f"{where}[{at}]")


def _leaf(kind: type[Any], value: Any, where: str) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) is (kind is bool)
    if not fits:
        raise _unfit(where, _LEAVES[kind], value)
    try:
        return kind(value)
    except OverflowError:
        raise _UnfitError(f"{where} is too large") from None


def _unfit(where: str, wanted: str, value: Any) -> _UnfitError:
    return _UnfitError(f"{where} is {_shown(value)} and not {wanted}")


def _shown(value: Any) -> str:
    """Return a value for a message: short, and readable whatever it holds."""
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, Mapping) else ascii(value)[:60]

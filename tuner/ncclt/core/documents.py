"""Records to JSON and back: the fields of a dataclass are its document, and its `SHAPE` says what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache, partial
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from ncclt.errors import InputError, NccltError, SettingError

Convert = Callable[[Any], Any]
_LEAVES = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Differences between the document of a class and its fields, and the error for a document that does not fit.

    Attributes:
        name: of the document, for messages; empty = that of the class.
        hint: what to do about one that does not fit.
        error: class raised for it.
        schema: version of the document, its first entry; 0 = it is part of another document.
        bare: the version is not written, and optional when read.
        closed: an unknown entry is an error; otherwise it is ignored, since newer versions may write more.
        complete: fields with a default are required too, except those that are omitted.
        omitted: fields that are not written while they have their default.
        hidden: fields that are never written.
        private: fields that are stored, but in no answer of the service.
        inlined: fields whose entries become entries of this document.
        pairs: fields of (name, value) pairs, written as an object and kept sorted.
        unbounded: intervals whose infinite ends are null, since JSON has no infinity.
        retired: entries that earlier versions wrote, ignored when read.
        computed: (entry, property, field that it precedes): written for readers, ignored when read.
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
    private: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    computed: tuple[tuple[str, str, str], ...] = ()


class Documented:
    """The base of every dataclass that is stored, served or printed as JSON."""

    __slots__ = ()

    SHAPE: ClassVar[Shape] = Shape()

    def to_document(self) -> dict[str, Any]:
        """Return the record as a JSON object, in the order of its fields."""
        shape = self.SHAPE
        document: dict[str, Any] = {"schema": shape.schema} if shape.schema and not shape.bare else {}
        kind: Any = type(self)
        for entry, attribute, write, default in _writers(kind):
            value = getattr(self, attribute)
            if default is not MISSING and value == default:
                continue
            if entry:
                document[entry] = write(value)
            else:
                document |= write(value)
        return document

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read back what `to_document` wrote.

        Raises:
            NccltError: of the class in `SHAPE`, if an entry is missing, of the wrong type, or an impossible value.
        """
        shape, name = cls.SHAPE, _name(cls)
        try:
            record: Self = _record(cls, document)
        except _UnfitError as unfit:
            raise shape.error(f"this is not {name}: ${unfit.where} {unfit.what}", hint=shape.hint) from None
        except SettingError as error:
            if shape.error is SettingError:
                raise
            # From a policy inside: the document is at fault, not the user's request.
            raise shape.error(f"this is not {name}: {error.message}", hint=error.hint) from error
        return record


def _name(cls: type[Documented]) -> str:
    return cls.SHAPE.name or f"a {cls.__name__.lower()}"


class _UnfitError(Exception):
    """An entry that does not fit: where it is, as in `.rows[0].calls`, and what is wrong with it."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what, self.where = what, where

    def inside(self, where: str) -> _UnfitError:
        return _UnfitError(self.what, where + self.where)


@cache
def _writers(cls: Any) -> list[tuple[str, str, Convert, Any]]:
    """Return (entry, attribute, writer, default that is not written); an inlined one has no name."""
    shape: Shape = cls.SHAPE
    writers: list[tuple[str, str, Convert, Any]] = []
    for field in fields(cls):
        writers += [(entry, attribute, _plain, MISSING) for entry, attribute, at in shape.computed if at == field.name]
        if field.name in shape.hidden:
            continue
        write = dict if field.name in shape.pairs else _ends if field.name in shape.unbounded else _plain
        default = field.default if field.name in shape.omitted else MISSING
        writers.append(("" if field.name in shape.inlined else field.name, field.name, write, default))
    return writers + [(entry, attribute, _plain, MISSING) for entry, attribute, at in shape.computed if not at]


def _plain(value: Any) -> Any:
    """Return a value as JSON represents it."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Documented):
        return value.to_document()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    items = [_plain(item) for item in value]
    return sorted(items) if isinstance(value, frozenset) else items


def _ends(interval: tuple[float, ...] | None) -> list[float | None] | None:
    return None if interval is None else [end if math.isfinite(end) else None for end in interval]


def _record(cls: Any, document: Any) -> Any:
    shape: Shape = cls.SHAPE
    if not isinstance(document, Mapping):
        raise _unfit(document, "an object")
    version, supported = document.get("schema", shape.schema if shape.bare else None), shape.schema
    if supported and version is None:
        raise _UnfitError("is missing", ".schema")
    if supported and version != supported:
        raise shape.error(
            f"{cls.__name__.lower()} schema {_shown(version)} is not supported: this ncclt reads schema {supported}",
            hint="update ncclt",
        )
    readers = _readers(cls)
    if shape.closed and (
        unknown := set(map(str, document)) - {"schema", *shape.retired, *(name for name, *_ in readers)}
    ):
        fields_are = ", ".join(name for name, *_ in readers)
        raise shape.error(f"unknown field {_shown(min(unknown))} in {_name(cls)}", hint=f"the fields are {fields_are}")
    values = {}
    for name, read, inlined, required in readers:
        try:
            if inlined:
                values[name] = read(document)
            elif name in document:
                values[name] = read(document[name])
            elif required:
                raise _UnfitError("is missing")
        except _UnfitError as unfit:
            raise (unfit if inlined else unfit.inside(f".{name}")) from None
    return cls(**values)


@cache
def _readers(cls: Any) -> list[tuple[str, Convert, bool, bool]]:
    """Return (field, reader, whether it is inlined, whether it is required)."""
    shape: Shape = cls.SHAPE
    hints = get_type_hints(cls)
    readers = []
    for field in fields(cls):
        if field.name in shape.hidden:
            continue
        if field.name in shape.pairs:
            _name, kind = get_args(get_args(hints[field.name])[0])
            read: Convert = partial(_read_pairs, _reader(kind))
        elif field.name in shape.unbounded:
            read = partial(_read_interval, _reader(hints[field.name]))
        else:
            read = _reader(hints[field.name])
        is_complete = shape.complete and field.name not in shape.omitted
        required = is_complete or (field.default is MISSING and field.default_factory is MISSING)
        readers.append((field.name, read, field.name in shape.inlined, required))
    return readers


def _reader(hint: Any) -> Convert:
    """Return the reader of a field's type."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        read = _reader(next(part for part in parts if part is not NoneType))
        return lambda value: None if value is None else read(value)
    if kind in _LEAVES:
        return partial(_read_leaf, kind)
    if kind is Mapping:
        return partial(_read_mapping, _reader(parts[1]))
    if issubclass(kind, Documented):
        return partial(_record, kind)
    if issubclass(kind, Enum):
        return partial(_read_word, kind)
    if kind is frozenset or parts[1:] == (...,):
        return partial(_read_items, kind, _reader(parts[0]))
    # A NamedTuple has the types of its items in its class.
    items = [_reader(part) for part in parts or get_type_hints(kind).values()]
    return partial(_read_row, tuple if kind is tuple else kind._make, items)


def _read_leaf(kind: type[Any], value: Any) -> Any:
    if type(value) is kind:
        return value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _UnfitError("is too large") from None
    raise _unfit(value, _LEAVES[kind])


def _read_word(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise _unfit(value, f"one of {', '.join(word.value for word in kind)}") from None


def _read_mapping(read: Convert, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _unfit(value, "an object")
    return dict(zip(value, _each(repeat(read), value.values(), value), strict=True))


def _read_pairs(read: Convert, value: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(_read_mapping(read, value).items()))


def _read_interval(read: Convert, value: Any) -> Any:
    return read([*value[:-1], math.inf] if isinstance(value, list) and value[-1:] == [None] else value)


def _read_items(kind: Callable[[Iterable[Any]], Any], read: Convert, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _unfit(value, "a list")
    return kind(_each(repeat(read), value, range(len(value))))


def _read_row(kind: Callable[[Iterable[Any]], Any], items: list[Convert], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _unfit(value, "a list")
    if len(value) != len(items):
        raise _UnfitError(f"has {len(value)} items and not {len(items)}")
    return kind(_each(items, value, range(len(value))))


def _each(reads: Iterable[Convert], values: Iterable[Any], keys: Iterable[Any]) -> Iterator[Any]:
    for read, value, key in zip(reads, values, keys, strict=False):
        try:
            yield read(value)
        except _UnfitError as unfit:
            raise unfit.inside(f"[{_shown(key)}]") from None


def _unfit(value: Any, wanted: str) -> _UnfitError:
    return _UnfitError(f"is {_shown(value)} and not {wanted}")


def _shown(value: Any) -> str:
    """Return a value for a message: short, and printable whatever it is."""
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, Mapping) else ascii(value)[:60]

"""Pickled dumps, read without ever running what a pickle can ask for.

A dump holds strings, numbers, lists, tuples and dictionaries alone. Two guards stand before it. The opcodes are looked
through first: any that imports, calls or builds an object is refused, and so is what would exhaust memory or time
before a value exists (a far memo index, a nested tuple as a key). Then an `Unpickler` that can find no class loads it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from ncclt.errors import TraceError

MAX_OPERATIONS = 4_000_000
"""Opcodes of the largest dump that is read; the default buffer of 2000 calls writes about 300,000."""

_ATOMS = frozenset(
    (
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
        *("FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    )
)
_FRAMING = frozenset({"PROTO", "FRAME", "STOP"})
_TO_MARK = -1
_OPERANDS = {
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"), 0),
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
    "APPEND": 1,
    "SETITEM": 2,
    **dict.fromkeys(("APPENDS", "SETITEMS", "LIST", "TUPLE", "DICT"), _TO_MARK),
}
"""Opcode -> values that it takes from the stack."""
_ADDING = frozenset({"APPEND", "SETITEM", "APPENDS", "SETITEMS"})
"""Opcodes that fill a container below; the others with operands make one."""
_WITH_KEYS = frozenset({"SETITEM", "SETITEMS", "DICT"})
_STORE = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_FETCH = frozenset({"GET", "BINGET", "LONG_BINGET"})

# What the stack holds while the opcodes are looked through: nothing of the values but their kind.
_ATOM, _CONTAINER, _MARK = "atom", "container", "mark"

# What pickletools and pickle raise for data that are cut off or no pickle.
_BROKEN = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, MemoryError, RecursionError),
)


def load_pickle(data: bytes, label: str) -> Any:
    """Return the plain values of a pickle.

    Args:
        label: the file's name, for messages.

    Raises:
        TraceError: the pickle holds anything but plain values, is cut off, too large, or no pickle.
    """
    try:
        _Inspection(label).look_through(data)
        return PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as error:
        hint = "copy the dump again; a process that is killed while it dumps leaves half a file"
        shown = (str(error) or type(error).__name__)[:120]  # whatever the file holds
        raise TraceError(f"{label} is cut off or not a pickle: {shown}", hint=hint) from error


class PlainUnpickler(pickle.Unpickler):
    """Loads plain values alone; every way to reach a class or a function ends here."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse: a dump needs no class."""
        raise pickle.UnpicklingError(f"it asks for {module_name[:40]}.{global_name[:40]}")

    def persistent_load(self, _pid: Any, /) -> NoReturn:
        """Refuse: a dump is complete in itself."""
        raise pickle.UnpicklingError("it asks for an object outside the file")


class _Inspection:
    """Goes through the opcodes with a stack of kinds in place of values, so that nothing is built."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._stack: list[str] = []
        self._memo: dict[int, str] = {}

    def look_through(self, data: bytes) -> None:
        """Raise a `TraceError` for what no dump holds; damage shows as one of `_BROKEN`."""
        for count, (opcode, argument, _place) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count >= MAX_OPERATIONS:
                raise self._refusal(f"more than {MAX_OPERATIONS:,} operations")
            self._follow(opcode.name, argument)

    def _follow(self, opcode: str, argument: Any) -> None:
        if opcode in _STORE:
            index = len(self._memo) if opcode == "MEMOIZE" else int(argument)
            # Every pickler numbers its memo without gaps; one far index alone makes the unpickler allocate up to it.
            if index > len(self._memo):
                raise self._refusal("a memo with gaps")
            self._memo[index] = self._stack[-1]
        elif opcode in _FETCH:
            self._stack.append(self._memo[int(argument)])
        elif opcode in _ATOMS or opcode == "MARK":
            self._stack.append(_MARK if opcode == "MARK" else _ATOM)
        elif opcode in _OPERANDS:
            operands = self._pop(_OPERANDS[opcode])
            # Hashing a tuple of tuples that share their parts takes time exponential in its depth.
            if opcode in _WITH_KEYS and any(kind != _ATOM for kind in operands[::2]):
                raise self._refusal("a dictionary with keys that are no plain values")
            if opcode not in _ADDING:
                self._stack.append(_CONTAINER)
        elif opcode not in _FRAMING:
            raise self._refusal(f"the operation {opcode}")

    def _pop(self, count: int) -> list[str]:
        """Take so many values from the stack, or all behind the last mark, in their order."""
        operands: list[str] = []
        while len(operands) != count:
            kind = self._stack.pop()
            if kind is _MARK and count == _TO_MARK:
                break
            operands.append(kind)
        return operands[::-1]

    def _refusal(self, content: str) -> TraceError:
        hint = "a dump holds plain values alone; do not load this file with pickle unless you know who wrote it"
        return TraceError(f"{self._label} is not a Flight Recorder dump: the pickle holds {content}", hint=hint)

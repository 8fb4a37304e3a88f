"""NCCL through ctypes: the few functions that the scripts call, with exact prototypes (nccl.h, 2.28.9 and 2.30.7)."""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
from pathlib import Path

from ncclt.errors import MissingDependencyError

SUCCESS = 0

DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""ncclDataType_t; the two of 8 bits are left out, as their sums of more than two ranks are not exact."""

SUM = 0
"""ncclRedOp_t."""


class UniqueId(c.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", c.c_char * 128),)


class NcclCallError(Exception):
    """A function of NCCL returned an error.

    Attributes:
        code: its ncclResult_t.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


_STREAM, _COMM, _BUFFER = c.c_void_p, c.c_void_p, c.c_void_p
_PROTOTYPES: dict[str, tuple[object, ...]] = {
    "ncclGetVersion": (c.POINTER(c.c_int),),
    "ncclGetUniqueId": (c.POINTER(UniqueId),),
    "ncclCommInitRank": (c.POINTER(_COMM), c.c_int, UniqueId, c.c_int),
    "ncclCommDestroy": (_COMM,),
    "ncclCommAbort": (_COMM,),
    "ncclCommGetAsyncError": (_COMM, c.POINTER(c.c_int)),
    "ncclAllReduce": (_BUFFER, _BUFFER, c.c_size_t, c.c_int, c.c_int, _COMM, _STREAM),
    "ncclReduceScatter": (_BUFFER, _BUFFER, c.c_size_t, c.c_int, c.c_int, _COMM, _STREAM),
    "ncclAllGather": (_BUFFER, _BUFFER, c.c_size_t, c.c_int, _COMM, _STREAM),
    "ncclBroadcast": (_BUFFER, _BUFFER, c.c_size_t, c.c_int, c.c_int, _COMM, _STREAM),
    "ncclReduce": (_BUFFER, _BUFFER, c.c_size_t, c.c_int, c.c_int, c.c_int, _COMM, _STREAM),
}


class Library:
    """One loaded copy of NCCL.

    A copy from a file of its own has statics of its own, as long as it is loaded locally: that is how two ranks of one
    process come to have different host hashes (nccl.md, 2.6).
    """

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            MissingDependencyError: it cannot be loaded, or lacks a function.
        """
        try:
            library = c.CDLL(str(path.absolute()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
            for name, arguments in _PROTOTYPES.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, c.c_int
            library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = (c.c_int,), c.c_char_p
            library.ncclGetLastError.argtypes, library.ncclGetLastError.restype = (_COMM,), c.c_char_p
        except (OSError, AttributeError) as error:
            raise MissingDependencyError(f"{path} is no NCCL: {error}", hint="name libnccl.so.2 with --nccl") from error
        self.path = path
        self._library = library

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its name.

        Raises:
            NcclCallError: it returned an error.
        """
        code = getattr(self._library, name)(*arguments)
        if code != SUCCESS:
            said = self._library.ncclGetErrorString(code).decode(errors="replace")
            last = (self._library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
            raise NcclCallError(f"{name}: {said} ({code}){f': {last}' if last else ''}", code)

    def version(self) -> str:
        """Return for example `2.28.9` (from NCCL 2.9 on: 10000 x major + 100 x minor + patch)."""
        number = c.c_int()
        self.call("ncclGetVersion", c.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def unique_id(self) -> UniqueId:
        """Return the id of a new communicator."""
        unique = UniqueId()
        self.call("ncclGetUniqueId", c.byref(unique))
        return unique

    def communicator(self, unique: UniqueId, *, ranks: int, rank: int) -> c.c_void_p:
        """Open one rank of a communicator; blocks until all of them are there."""
        opened = _COMM()
        self.call("ncclCommInitRank", c.byref(opened), ranks, unique, rank)
        return opened

    def async_error(self, communicator: c.c_void_p) -> int:
        """Return what went wrong behind the calls, 0 = nothing (7 = still at work)."""
        code = c.c_int()
        self.call("ncclCommGetAsyncError", communicator, c.byref(code))
        return code.value


def find_library(named: Path | None) -> Path:
    """Return the NCCL to use: as named, else of the wheel nvidia-nccl-cu*, else the system's.

    Raises:
        MissingDependencyError: there is none.
    """
    if named is not None:
        if not named.is_file():
            raise MissingDependencyError(f"there is no {named}", hint="name libnccl.so.2 with --nccl")
        return named
    try:
        wheel = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        wheel = None
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        path = Path(folder) / "lib" / "libnccl.so.2"
        if path.is_file():
            return path
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/lib64"):
        path = Path(folder) / "libnccl.so.2"
        if path.is_file():
            return path
    raise MissingDependencyError("there is no NCCL here", hint="pip install nvidia-nccl-cu12, or --nccl libnccl.so.2")

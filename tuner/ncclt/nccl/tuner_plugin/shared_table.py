"""Writes the table that the plugin reads from shared memory (NCCLT_POLICY_SHM): trials without a new communicator.

Each rank has its own, in anonymous memory that cannot be truncated (a sealed memfd). The same rows are published to
every rank, then all ranks are waited for (a barrier of the controller), and only then the next collective begins: all
ranks must make the same choice. The layout is documented in plugin/shared.h.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from types import TracebackType

from ncclt.errors import UsageError
from ncclt.nccl.tuner_table import ALGORITHMS, FUNCTIONS, PROTOCOLS, PluginRow, fnv1a

VARIABLE = "NCCLT_POLICY_SHM"

MOST_ROWS = 256

_MAGIC = b"NCCLTSHM"
_FORMAT = 1
_HEAD = struct.Struct("=Q8sIIQ")
_SLOT_HEAD = struct.Struct("=QQQQ")
_ROW = struct.Struct("=QQIIBBBB4x")
_SLOT_BYTES = _SLOT_HEAD.size + MOST_ROWS * _ROW.size
_BYTES = _HEAD.size + 2 * _SLOT_BYTES
_LARGEST = 2**64 - 1

TABLE_BYTES = _BYTES
"""Size of a table."""

EMPTY_HEAD = _HEAD.pack(0, _MAGIC, _FORMAT, MOST_ROWS, 0)
"""The head of an empty table; the rest of it is 0."""


def _pack(row: PluginRow) -> bytes:
    try:
        return _ROW.pack(
            row.first_bytes,
            _LARGEST if row.last_bytes is None else row.last_bytes,
            row.nodes,
            row.ranks,
            FUNCTIONS.index(row.collective),
            ALGORITHMS.index(row.algorithm),
            PROTOCOLS.index(row.protocol),
            row.channels,
        )
    except (ValueError, struct.error) as error:
        raise UsageError(f"no row of a shared table: {row}: {error}") from error


def slot_image(rows: Sequence[PluginRow], generation: int) -> tuple[int, bytes]:
    """Return the offset of a table and its bytes.

    After them the writer puts the generation into the first 8 bytes, in the machine's byte order: so a rank without
    ncclt can publish what the controller has laid out.

    Args:
        rows: of the table; none = the NCCL default.
        generation: of the table, counted from 1 and without gaps.

    Raises:
        UsageError: too many rows, or an invalid row.
    """
    if len(rows) > MOST_ROWS:
        raise UsageError(f"a shared table holds {MOST_ROWS} rows, not {len(rows)}")
    body = b"".join(map(_pack, rows))
    counted = struct.pack("=QQ", generation, len(rows))
    head = counted + struct.pack("=QQ", fnv1a(counted + body), 0)
    return _HEAD.size + generation % 2 * _SLOT_BYTES, head + body


class SharedTable:
    """A shared table and its only writer, in memory of this process; close it when the trials are over.

    Attributes:
        path: for `NCCLT_POLICY_SHM` in this process and in its forked children.
        generation: of the last published table; 0 = none yet, which is the NCCL default.

    Example:
        with SharedTable() as table:
            os.environ[VARIABLE] = table.path
            table.publish([PluginRow(collective="allreduce", algorithm="ring", protocol="ll")])

    Raises:
        UsageError: this system has no such memory.
    """

    def __init__(self) -> None:
        try:
            self._file = os.memfd_create("ncclt-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(self._file, 0o600)  # memory is made writable for all, and the plugin trusts no such file
            # Written, not only extended: lack of memory must show here and not as SIGBUS in a call.
            os.write(self._file, EMPTY_HEAD.ljust(_BYTES, b"\0"))
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(self._file, _BYTES)
        except OSError as error:
            raise UsageError(f"no memory for a shared table: {error.strerror}") from error
        self.path = f"/proc/self/fd/{self._file}"
        self.generation = 0

    def publish(self, rows: Sequence[PluginRow]) -> int:
        """Replace the table for every call that begins from now on; no rows = the NCCL default.

        Returns:
            The generation, counted from 1: equal on all nodes that published equally often.

        Raises:
            UsageError: too many rows, or an invalid row; the table is then unchanged.
        """
        generation = self.generation + 1
        at, image = slot_image(rows, generation)
        self._memory[at : at + len(image)] = image
        # Last, in one aligned store of 8 bytes. If it becomes visible early, the checksum makes readers wait.
        self._memory[:8] = struct.pack("=Q", generation)
        self.generation = generation
        return generation

    def close(self) -> None:
        """Free the memory; open communicators keep their view of the last table."""
        self._memory.close()
        os.close(self._file)

    def __enter__(self) -> SharedTable:
        """Return the table."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close it."""
        self.close()

"""Tuner table in shared memory (NCCLT_POLICY_SHM), for trials without a new communicator.

Each rank has its own table in a sealed memfd, so nobody can truncate it. The controller lays out the bytes, and the
ranks, which do not have ncclt, write them. It publishes the same rows to every rank and waits for all of them before
the next collective, since all ranks must make the same choice. See plugin/shared.h for the layout.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

from ncclt.errors import UsageError
from ncclt.nccl.tuner_table import ALGORITHMS, FUNCTIONS, PROTOCOLS, PluginRow, fnv1a

VARIABLE = "NCCLT_POLICY_SHM"

MOST_ROWS = 256

_HEAD = struct.Struct("=Q8sIIQ")
_SLOT_HEAD = struct.Struct("=QQQQ")
_ROW = struct.Struct("=QQIIBBBB4x")
_SLOT_BYTES = _SLOT_HEAD.size + MOST_ROWS * _ROW.size
_LARGEST = 2**64 - 1


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


LAYOUT = {
    "head": _encode(_HEAD.pack(0, b"NCCLTSHM", 1, MOST_ROWS, 0)),
    "bytes": _HEAD.size + 2 * _SLOT_BYTES,
}
"""Empty table for a rank to create: head (format 1) and size; the rest is 0."""


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


def lay_out_table(rows: Sequence[PluginRow], generation: int) -> dict[str, Any]:
    """Build the order to a rank to publish a table for all later calls.

    Args:
        rows: rows of the table; empty = the NCCL default.
        generation: number of the table, counted from 1 without gaps.

    Returns:
        at and image: offset and bytes of the table; generation: 8 bytes in the machine's byte order, which the rank
        writes last, to the beginning. If they become visible early, the checksum makes readers wait.

    Raises:
        UsageError: too many rows, or an invalid row.
    """
    if len(rows) > MOST_ROWS:
        raise UsageError(f"a shared table holds {MOST_ROWS} rows, not {len(rows)}")
    body, number = b"".join(map(_pack, rows)), struct.pack("=Q", generation)
    counted = number + struct.pack("=Q", len(rows))
    image = counted + struct.pack("=QQ", fnv1a(counted + body), 0) + body
    return {"at": _HEAD.size + generation % 2 * _SLOT_BYTES, "image": _encode(image), "generation": _encode(number)}

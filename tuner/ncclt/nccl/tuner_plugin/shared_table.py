"""The table that the plugin reads from shared memory (NCCLT_POLICY_SHM): trials without a new communicator.

Each rank has its own, in anonymous memory that cannot be truncated (a sealed memfd). The controller lays out the bytes,
and the ranks, which have no ncclt, write them: the same rows are published to every rank, then all ranks are waited for
(a barrier of the controller), and only then the next collective begins, for all ranks must make the same choice. The
layout is documented in plugin/shared.h.
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
"""An empty table for a rank to make: its head, of format 1, and its size; the rest of it is 0."""


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
    """Return the order to a rank that publishes a table, for every call that begins from then on.

    Args:
        rows: of the table; none = the NCCL default.
        generation: of the table, counted from 1 and without gaps.

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

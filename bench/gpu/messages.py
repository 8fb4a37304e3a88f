"""What the ranks send and what must come out: small whole numbers, whose sums are exact in every dtype."""

from __future__ import annotations

import numpy as np
from nccl import DTYPES, SUM

from ncclt.core.message import DTYPE_SIZES, Collective, Message

PERIOD = 1021
"""Length of the pattern: a prime, so that a chunk that lands in another chunk's place does not look right."""

HIGHEST = 5
"""Values are 0 to 4: sums of up to 25 ranks stay exact in bfloat16 (whole numbers up to 256) and in int8 (127)."""

ROOT = 0

FUNCTIONS = {
    Collective.ALL_REDUCE: "ncclAllReduce",
    Collective.ALL_GATHER: "ncclAllGather",
    Collective.REDUCE_SCATTER: "ncclReduceScatter",
    Collective.BROADCAST: "ncclBroadcast",
    Collective.REDUCE: "ncclReduce",
}
"""What a tuner decides; send_recv and all_to_all never reach one."""

_PARTED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def covers(message: Message, ranks: int) -> bool:
    """Tell whether these ranks can send a message: a collective that a tuner decides, whole elements, all ranks."""
    parts = ranks if message.collective in _PARTED else 1
    return (
        message.collective in FUNCTIONS
        and message.dtype in DTYPES
        and message.group_size in (0, ranks)
        and message.size_bytes % (parts * DTYPE_SIZES[message.dtype]) == 0
    )


def count_of(message: Message, ranks: int) -> int:
    """Return NCCL's `count`: elements of one rank's part where the message is parted, else all."""
    parts = ranks if message.collective in _PARTED else 1
    return message.size_bytes // DTYPE_SIZES[message.dtype] // parts


def arguments(message: Message, ranks: int) -> tuple[str, tuple[int, ...]]:
    """Return the function and what it takes between the buffers and the communicator."""
    count, dtype = count_of(message, ranks), DTYPES[message.dtype]
    match message.collective:
        case Collective.ALL_GATHER:
            extra: tuple[int, ...] = (count, dtype)
        case Collective.BROADCAST:
            extra = (count, dtype, ROOT)
        case Collective.REDUCE:
            extra = (count, dtype, SUM, ROOT)
        case _:
            extra = (count, dtype, SUM)
    return FUNCTIONS[message.collective], extra


def sent(rank: int, count: int, dtype: str) -> np.ndarray:
    """Return the first `count` elements of what a rank sends, as they lie in memory."""
    return np.resize(encoded(_pattern(rank), dtype), count)


def wrong_elements(received: np.ndarray, message: Message, rank: int, ranks: int) -> int:
    """Count the elements that differ from what a rank must have received.

    Args:
        received: as they lie in memory, see `encoded`.
        message: what was sent.
        rank, ranks: who received, of how many.
    """
    count = count_of(message, ranks)
    match message.collective:
        case Collective.ALL_GATHER:
            parts = [(sender * count, _pattern(sender)) for sender in range(ranks)]
        case Collective.BROADCAST:
            parts = [(0, _pattern(ROOT))]
        case Collective.REDUCE_SCATTER:
            parts = [(0, np.roll(_sums(ranks), -(rank * count % PERIOD)))]
        case _:
            parts = [(0, _sums(ranks))]
    return sum(_differing(received[at : at + count], encoded(pattern, message.dtype)) for at, pattern in parts)


def received_count(message: Message, rank: int, ranks: int) -> int:
    """Return how many elements a rank receives."""
    if message.collective is Collective.REDUCE and rank != ROOT:
        return 0
    count = count_of(message, ranks)
    return count * ranks if message.collective is Collective.ALL_GATHER else count


def encoded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return whole numbers as elements of a dtype; bfloat16 as its upper 16 bits, since numpy has none."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def numpy_type(dtype: str) -> np.dtype:
    """Return how elements of a dtype lie in a numpy array."""
    return encoded(np.zeros(1), dtype).dtype


def _differing(received: np.ndarray, pattern: np.ndarray) -> int:
    repeated = len(received) // PERIOD * PERIOD
    # Row by row against one pattern: the whole of what is expected is never made.
    rows = np.count_nonzero(received[:repeated].reshape(-1, PERIOD) != pattern)
    return int(rows + np.count_nonzero(received[repeated:] != pattern[: len(received) - repeated]))


def _pattern(rank: int) -> np.ndarray:
    at = np.arange(PERIOD)
    return (at * at + 3 * at * (rank + 1) + 7 * rank) % HIGHEST


def _sums(ranks: int) -> np.ndarray:
    return np.asarray(sum(_pattern(rank) for rank in range(ranks)))

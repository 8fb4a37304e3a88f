"""NCCL's chunk arithmetic: how many bytes a channel moves per step, and how often its kernel loops.

Source: NVIDIA/nccl 2.30.7 enqueue.cc calcCollChunking (:2182-2318), init.cc computeBuffSizes, collectives.h:19-34. On
the public times of two ranks that share one GPU, where a loop costs a whole time slice of 4.367 ms, `loops` reproduces
the times of LL, LL128 and two-channel Simple rings within 1 %.
"""

from __future__ import annotations

import math

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective

STEPS = 8
"""NCCL_STEPS: slots of the buffer between two ranks."""

BUFFER_BYTES = {Protocol.LL: 524288, Protocol.LL128: 4915200, Protocol.SIMPLE: 4194304}
"""Default buffer per channel and peer (LL_BUFFSIZE, LL128_BUFFSIZE, BUFFSIZE)."""

_DATA_SHARE = {Protocol.LL: 1 / 2, Protocol.LL128: 120 / 128, Protocol.SIMPLE: 1.0}
"""Bytes of data per byte in the buffer: LL keeps a flag beside every word, LL128 one per 128 bytes."""

_RING_STEPS_PER_CHUNK = 4
"""ALLREDUCE_CHUNKSTEPS and its equivalents for all_gather and reduce_scatter: NCCL_STEPS / 2; the others use 1."""


def chunk_bytes(
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: int,
    *,
    channels: int,
    nodes: int,
    per_node: int,
    buffsize: int = BUFFER_BYTES[Protocol.SIMPLE],
    by_depth: bool = False,
) -> float:
    """Return the data that one channel moves in one step, bytes.

    Args:
        collective, algorithm, protocol, size_bytes: what runs.
        channels: channels that carry it.
        nodes, per_node: shape of the communicator; the chunk of an LL128 tree depends on it.
        buffsize: NCCL_BUFFSIZE, the buffer of Simple only.
        by_depth: whether a tree with Simple takes smaller chunks for smaller messages, as old versions of NCCL do
            (enqueue.cc, computeColl) and, by its times on MI355X, RCCL 2.28; NCCL 2.29 on L40S does not.
    """
    buffer = buffsize if protocol is Protocol.SIMPLE else BUFFER_BYTES[protocol]
    chunk = buffer / STEPS * _DATA_SHARE[protocol]
    ring_sum = collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    if algorithm is Algorithm.RING and protocol is Protocol.SIMPLE and ring_sum:
        return chunk * _RING_STEPS_PER_CHUNK
    if algorithm is Algorithm.TREE and protocol is Protocol.LL128:
        steps = 1 + int(math.log2(nodes)) + 0.1 * per_node
        for factor, floor in ((64, 131072), (16, 32768)):
            while size_bytes / (channels * chunk) < steps * factor / per_node and chunk > floor:
                chunk /= 2
    if by_depth and algorithm is Algorithm.TREE and protocol is Protocol.SIMPLE:
        depth = per_node - 1 + int(math.log2(nodes))
        for factor, floor in ((8, 131072), (4, 65536), (1, 32768)):
            while size_bytes / (channels * chunk) < depth * factor and chunk > floor:
                chunk /= 2
    return chunk


def loops(algorithm: Algorithm, size_bytes: int, chunk: float, *, channels: int, ranks: int) -> int:
    """Return how often the kernel loops over its chunks.

    Args:
        algorithm: a ring moves one chunk for each rank per loop, anything else one chunk.
        size_bytes: the whole message.
        chunk: result of `chunk_bytes`.
        channels: channels that carry it.
        ranks: ranks of the communicator; 1 for a ring that only passes data along (broadcast, reduce).
    """
    per_loop = channels * chunk * (ranks if algorithm is Algorithm.RING else 1)
    return max(1, math.ceil(size_bytes / per_loop))

"""The messages of a model that was never recorded, from the shapes of its parameters alone.

No weights and no GPU: shapes are enough, because a gradient has the shape of its parameter. All messages are those of
the whole job (group size 0). Frozen parameters send nothing and tied ones send once, so leave them out of `shapes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, Collective, Message, parse_dtype
from ncclt.core.workload import MessageCalls
from ncclt.errors import UsageError, missing_dependency

_MIB = 1024 * 1024

FIRST_BUCKET_MB = 1
"""Cap of DDP's first bucket, MiB (`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""

PERSISTENCE_ELEMENTS = 100_000
"""Parameters up to this size stay whole on every rank (param_persistence_threshold, deepspeed zero/config.py)."""

REDUCE_BUCKET_ELEMENTS = 500_000_000
"""Most gradients that are reduced together (reduce_bucket_size, deepspeed zero/config.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpUnit:
    """A module that FSDP wraps on its own.

    Attributes:
        name: in messages.
        parameters: elements of its flat parameter, those of units wrapped inside it excluded.
        count: how many such units the model has.
        is_root: the outermost unit, whose parameters stay gathered from forward to backward.
    """

    name: str
    parameters: int
    count: int = 1
    is_root: bool = False


def ddp_messages(
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    dtype: str,
    bucket_cap_mb: float = 25,
    first_bucket_mb: float = FIRST_BUCKET_MB,
) -> tuple[MessageCalls, ...]:
    """Return the all_reduces of one backward pass under DistributedDataParallel.

    PyTorch's own bucket assignment is asked, on the reversed parameters: a bucket is closed by the tensor that
    reaches its limit, so buckets can be larger than the cap. This is every iteration but the first, after DDP has
    rebuilt its buckets in the order in which gradients become ready: for sequential models the reverse of their
    definition. The first iteration sends other buckets and counts for nothing in a training run.

    Args:
        shapes: (name, shape) of every trainable parameter, in the order of `named_parameters()`.
        dtype: dtype of the gradients.
        bucket_cap_mb: DDP's `bucket_cap_mb`, MiB.
        first_bucket_mb: cap of the first bucket, MiB.

    Raises:
        MissingDependencyError: torch is not installed.
        UsageError: there is no parameter, or a cap is not above 0.
    """
    if not shapes:
        raise UsageError("a model without parameters sends nothing", hint="give the shapes of its parameters")
    known = parse_dtype(dtype)
    ready = [math.prod(shape) for _name, shape in reversed(shapes)]
    return _calls(Collective.ALL_REDUCE, known, ddp_buckets(ready, known, bucket_cap_mb, first_bucket_mb))


def ddp_buckets(ready: Sequence[int], dtype: str, bucket_cap_mb: float, first_bucket_mb: float) -> tuple[int, ...]:
    """Return the elements of each bucket, in the order in which DDP sends them, by PyTorch's own assignment.

    Args:
        ready: elements of each gradient, in the order in which they become ready.
        dtype: of the gradients, a key of `DTYPE_SIZES`.
        bucket_cap_mb, first_bucket_mb: see `ddp_messages`.

    Raises:
        MissingDependencyError: torch is not installed.
        UsageError: a cap is not above 0.
    """
    if bucket_cap_mb <= 0 or first_bucket_mb <= 0:
        raise UsageError("a bucket cap must be above 0 MiB", hint="DDP's own defaults are 25 and 1")
    try:
        import torch
        from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
    except ImportError as error:
        raise missing_dependency("torch") from error
    # torch spells one of the 8-bit floats otherwise than NCCL.
    torch_dtype = getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype))
    meta = [torch.empty(elements, dtype=torch_dtype, device="meta") for elements in ready]
    limits = [int(first_bucket_mb * _MIB), int(bucket_cap_mb * _MIB)]
    buckets, _limits = _compute_bucket_assignment_by_size(meta, limits, [False] * len(meta))
    return tuple(sum(ready[index] for index in bucket) for bucket in buckets)


def buffer_messages(buffers: Mapping[str, int]) -> tuple[MessageCalls, ...]:
    """Return the broadcasts with which DDP synchronises buffers before each forward pass (`broadcast_buffers=True`).

    DDP coalesces the buffers of each dtype into one broadcast (in pieces of 250 MiB, which no buffers here reach).

    Args:
        buffers: dtype -> elements of all its buffers together.
    """
    return tuple(
        calls
        for dtype, elements in buffers.items()
        if elements
        for calls in _calls(Collective.BROADCAST, parse_dtype(dtype), [elements])
    )


def fsdp_messages(units: Sequence[FsdpUnit], param_dtype: str, reduce_dtype: str) -> tuple[MessageCalls, ...]:
    """Return the messages of one step under FullyShardedDataParallel (full sharding).

    Every unit's parameters are gathered for the forward pass and again for the backward pass; the root keeps its own
    in between (the public trace of Llama-3 70B keeps the last layer as well: one all_gather fewer). Every unit's
    gradients are reduce-scattered once. Padding to a multiple of the world size is left out:
    it depends on the world and is below one element per rank and parameter.

    Args:
        units: the wrapped modules.
        param_dtype: dtype of the gathered parameters.
        reduce_dtype: dtype of the reduced gradients.

    Raises:
        UsageError: there is no unit.
    """
    if not units:
        raise UsageError("FSDP needs at least one unit", hint="give the root unit at least")
    gathers: Counter[int] = Counter()
    scatters: Counter[int] = Counter()
    for unit in units:
        gathers[unit.parameters] += unit.count * (1 if unit.is_root else 2)
        scatters[unit.parameters] += unit.count
    return (
        *_calls(Collective.ALL_GATHER, parse_dtype(param_dtype), gathers.elements()),
        *_calls(Collective.REDUCE_SCATTER, parse_dtype(reduce_dtype), scatters.elements()),
    )


def zero3_messages(
    parameters: Sequence[int], trainable: Sequence[int], param_dtype: str, reduce_dtype: str
) -> tuple[MessageCalls, ...]:
    """Return the messages of one step, without gradient accumulation.

    Each parameter is gathered for the forward and again for the backward pass; small ones stay, and are gathered one
    by one after the optimizer's step (deepspeed zero/stage3.py, `_post_step`). Gradients are reduce-scattered in
    buckets, last parameter first; the one that would overfill a bucket opens the next (stage3.py,
    `reduce_independent_p_g_buckets_and_remove_grads`). Padding to a multiple of the group size is left out, and so is
    joining: DeepSpeed gathers the parameters of one module, and those it prefetches, in one call where it can.

    Args:
        parameters: elements of each parameter, in the order of the model.
        trainable: elements of those that get a gradient.
        param_dtype: dtype of the gathered parameters.
        reduce_dtype: dtype of the reduced gradients.

    Raises:
        UsageError: no parameter gets a gradient.
    """
    if not trainable:
        raise UsageError("a model without trainable parameters sends nothing")
    gathers: Counter[int] = Counter()
    for elements in parameters:
        gathers[elements] += 1 if elements <= PERSISTENCE_ELEMENTS else 2
    scatters: Counter[int] = Counter()
    filled = 0
    for elements in reversed(trainable):
        if filled and filled + elements > REDUCE_BUCKET_ELEMENTS:
            scatters[filled] += 1
            filled = 0
        filled += elements
    scatters[filled] += 1
    return (
        *_calls(Collective.ALL_GATHER, parse_dtype(param_dtype), gathers.elements()),
        *_calls(Collective.REDUCE_SCATTER, parse_dtype(reduce_dtype), scatters.elements()),
    )


def _calls(collective: Collective, dtype: str, element_counts: Iterable[int]) -> tuple[MessageCalls, ...]:
    """Count equal messages, in the order in which they are first sent."""
    counts = Counter(element_counts)
    return tuple(
        MessageCalls(
            message=Message(collective=collective, dtype=dtype, size_bytes=elements * DTYPE_SIZES[dtype]),
            calls_per_step=float(times),
        )
        for elements, times in counts.items()
        if elements
    )

"""What DeepSpeed's ZeRO stage 3 sends in one step, from the shapes of the parameters alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ncclt.core.message import DTYPE_SIZES, Collective, Message, parse_dtype
from ncclt.core.workload import MessageCalls
from ncclt.errors import UsageError

PERSISTENCE_ELEMENTS = 100_000
"""Parameters up to this size stay whole on every rank (param_persistence_threshold, deepspeed zero/config.py)."""

REDUCE_BUCKET_ELEMENTS = 500_000_000
"""Gradients that are reduced together at most (reduce_bucket_size, deepspeed zero/config.py)."""


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
    scatters = Counter(_buckets(reversed(trainable)))
    return (
        *_calls(Collective.ALL_GATHER, parse_dtype(param_dtype), gathers),
        *_calls(Collective.REDUCE_SCATTER, parse_dtype(reduce_dtype), scatters),
    )


def _buckets(gradients: Iterable[int]) -> Iterator[int]:
    filled = 0
    for elements in gradients:
        if filled and filled + elements > REDUCE_BUCKET_ELEMENTS:
            yield filled
            filled = 0
        filled += elements
    if filled:
        yield filled


def _calls(collective: Collective, dtype: str, counts: Counter[int]) -> tuple[MessageCalls, ...]:
    return tuple(
        MessageCalls(
            message=Message(collective=collective, dtype=dtype, size_bytes=elements * DTYPE_SIZES[dtype]),
            calls_per_step=float(times),
        )
        for elements, times in counts.items()
        if elements
    )

"""NCCL's own names in logs and reports: operations, dtypes, and the algorithm and protocol chosen for each message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, format_bytes, parse_dtype
from ncclt.errors import InputError

MOST_SHOWN = 40
"""Most messages listed, those with the most bytes first: the others hardly matter."""

MOST_KEPT = 64
"""Most different choices kept per message: more than algorithms x protocols; channels vary little."""

UNKNOWN_DTYPE = "uint8"
"""The dtype where a source only has bytes: its element is one byte."""

OPERATIONS: dict[str, Collective] = {
    "AllReduce": Collective.ALL_REDUCE,
    "AllGather": Collective.ALL_GATHER,
    "ReduceScatter": Collective.REDUCE_SCATTER,
    "Broadcast": Collective.BROADCAST,
    "Reduce": Collective.REDUCE,
    "AlltoAll": Collective.ALL_TO_ALL,
    "AllToAll": Collective.ALL_TO_ALL,
    "Send": Collective.SEND_RECV,
    "Recv": Collective.SEND_RECV,
}
"""NCCL's name of an operation (ncclFuncToString; RCCL writes AllToAll) -> ours."""


def build_message(
    name: str,
    collective: Collective | None,
    elements: int,
    dtype: str = UNKNOWN_DTYPE,
    *,
    group_size: int = 0,
    spans_nodes: bool = False,
) -> Message | str:
    """Return the message of a recorded call, or why it makes none.

    Args:
        name: of the operation, for the reason.
        collective: None = ncclt has no message for the operation.
        elements: of the buffer that `Message.size_bytes` counts.
        dtype: in any spelling.
    """
    if collective is None:
        return f"{name}, which ncclt does not support"
    try:
        parsed = parse_dtype(dtype)
    except InputError:
        return f"{name} of dtype {dtype!r}, of unknown size"
    size_bytes = elements * DTYPE_SIZES[parsed]
    if not 0 < size_bytes <= MOST_BYTES:
        return f"{name} of {'0 bytes' if elements <= 0 else 'an impossible size'}"
    return Message(
        collective=collective, dtype=parsed, size_bytes=size_bytes, group_size=group_size, spans_nodes=spans_nodes
    )


def build_nccl_message(
    name: str, part_elements: int, dtype: str = UNKNOWN_DTYPE, *, ranks: int, spans_nodes: bool = False
) -> Message | str:
    """Return the message of a call by NCCL's name and the elements of one rank's part, or why it makes none."""
    collective = OPERATIONS.get(name)
    parts = ranks if collective is not None and collective.has_rank_parts else 1
    return build_message(
        f"calls of {name}", collective, part_elements * parts, dtype, group_size=ranks, spans_nodes=spans_nodes
    )


@dataclass(slots=True, kw_only=True)
class Choices:
    """Counts choices per collective and size.

    Attributes:
        counts: (collective, size in bytes, whether that size is of one rank's part) -> choice -> calls.
    """

    counts: dict[tuple[Collective, int, bool], Counter[str]] = field(default_factory=dict)

    def add(self, collective: Collective, size_bytes: int, choice: str, calls: int, *, per_rank: bool = False) -> None:
        """Count `calls` of a message under a choice such as `RING/SIMPLE/24`."""
        chosen = self.counts.setdefault((collective, size_bytes, per_rank), Counter())
        chosen[choice if choice in chosen or len(chosen) < MOST_KEPT else "other"] += calls

    def text(self) -> str:
        """Return for example `all_reduce 8 GiB: RING/SIMPLE/24; broadcast 1 KiB: RING/LL/1`, largest bytes first.

        A choice is algorithm, protocol and, if the source has it, channels. Several choices for one message carry their
        calls, as in `TREE/LL/2 x7, RING/LL/2 x1`.
        """
        ordered = sorted(self.counts.items(), key=lambda item: (-item[0][1] * item[1].total(), item[0]))
        shown = []
        for (collective, size_bytes, per_rank), choices in ordered[:MOST_SHOWN]:
            size = format_bytes(size_bytes) + (" per rank" if per_rank else "")
            ranked = sorted(choices.items(), key=lambda item: (-item[1], item[0]))
            chosen = ranked[0][0] if len(ranked) == 1 else ", ".join(f"{choice} x{calls}" for choice, calls in ranked)
            shown.append(f"{collective} {size}: {chosen}")
        if len(ordered) > MOST_SHOWN:
            shown.append(f"and {len(ordered) - MOST_SHOWN} more messages")
        return "; ".join(shown)

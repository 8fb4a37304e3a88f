"""NCCL's own names in logs and reports: operations, dtypes, and the algorithm and protocol chosen for each message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ncclt.core.message import Collective, format_bytes

MOST_SHOWN = 40
"""Most messages listed, those with the most bytes first: the others hardly matter."""

MOST_KEPT = 64
"""Most different choices kept per message: more than algorithms x protocols; channels vary little."""


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


# ncclDataType_t of nccl.h; 9 since 2.10, 10 and 11 since 2.24.
DATATYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)


UNKNOWN_DTYPE = "uint8"
"""The dtype where a source only has bytes: its element is one byte."""

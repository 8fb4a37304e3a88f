"""The names under which PyTorch records its collectives."""

from __future__ import annotations

from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message, parse_dtype
from ncclt.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The meaning of a recorded name.

    Attributes:
        word: the name without prefixes and underscores, for notes.
        collective: None where ncclt has no message for it (gather, scatter, sparse all-reduce, names not known).
        is_receive: the receiving half of a send_recv.
    """

    word: str
    collective: Collective | None
    is_receive: bool = False

    def message(self, dtype: str, elements: int, *, group_size: int, spans_nodes: bool = False) -> Message | str:
        """Return the message of `elements` of `dtype`, counted as in `Message.size_bytes`, or why there is none."""
        if self.collective is None:
            return f"{self.word}, which ncclt has no message for"
        try:
            known = parse_dtype(dtype)
        except InputError:
            return f"{self.word} of dtype {dtype!r}, whose size is not known"
        size_bytes = elements * DTYPE_SIZES[known]
        if not 0 < size_bytes <= MOST_BYTES:
            return f"{self.word} of {'0 bytes' if elements <= 0 else 'an impossible size'}"
        return Message(
            collective=self.collective,
            dtype=known,
            size_bytes=size_bytes,
            group_size=group_size,
            spans_nodes=spans_nodes,
        )


# One table for the three spellings of each: record_param_comms ("allreduce", "_allgather_base"), annotations
# ("nccl:all_reduce", "nccl:_all_gather_base") and operators ("c10d::allreduce_", "c10d::_allgather_base_").
# Source: torch/csrc/distributed/c10d/{ProcessGroupNCCL,ProcessGroupGloo,Ops}.cpp, torch 1.12 to 2.13.
_WORDS: dict[Collective, tuple[str, ...]] = {
    Collective.ALL_REDUCE: ("allreduce", "allreducecoalesced"),
    Collective.ALL_GATHER: (
        "allgather",
        "allgatherbase",
        "allgathercoalesced",
        "allgatherintotensor",
        "allgatherintotensorcoalesced",
    ),
    Collective.REDUCE_SCATTER: (
        "reducescatter",
        "reducescatterbase",
        "reducescattertensor",
        "reducescattertensorcoalesced",
    ),
    Collective.BROADCAST: ("broadcast", "broadcastoop"),
    Collective.REDUCE: ("reduce", "reduceoop"),
    Collective.ALL_TO_ALL: ("alltoall", "alltoallv", "alltoallbase"),
    Collective.SEND_RECV: ("send", "recv", "recvanysource"),
}
_COLLECTIVES = {word: collective for collective, words in _WORDS.items() for word in words}

# Waiting, set-up and bookkeeping; a barrier is a 1-element all-reduce that no training step waits for by size.
_SYNCHRONISATION = frozenset(
    {"wait", "init", "barrier", "monitoredbarrier", "allreducebarrier", "coalesced", "startcoalescing", "endcoalescing"}
)


def classify(name: str) -> Operation | None:
    """Return the meaning of a recorded name; None for waiting, set-up and barriers.

    >>> classify("nccl:_all_gather_base").collective, classify("c10d::recv_").is_receive, classify("wait")
    (<Collective.ALL_GATHER: 'all_gather'>, True, None)
    """
    # "nccl:send 0->1" names its peers behind the operation.
    word = name.rsplit(":", 1)[-1].split(" ", 1)[0].replace("_", "").lower()
    if word in _SYNCHRONISATION:
        return None
    return Operation(word=word, collective=_COLLECTIVES.get(word), is_receive=word.startswith("recv"))


def is_barrier(name: str) -> bool:
    """Return whether a recorded name is a barrier, inside which older versions record an all-reduce."""
    word = name.rsplit(":", 1)[-1].replace("_", "").lower()
    return word in ("barrier", "monitoredbarrier")

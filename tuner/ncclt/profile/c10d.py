"""Calls of PyTorch's c10d, in the form that all of its records have in common.

ExecutionTrace, Flight Recorder and PARAM's comms traces hold the same facts: the name of a collective, its group and
the tensors that go in and come out. Here they become messages; a call that makes none is counted by its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ncclt.core.message import MOST_BYTES, Collective, Message
from ncclt.profile.nccl_calls import build_message
from ncclt.profile.numbers import MOST_RANKS, parse_int
from ncclt.profile.workload_builder import left_out_notes


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
        return build_message(
            self.word, self.collective, elements, dtype, group_size=group_size, spans_nodes=spans_nodes
        )


# One table for the spellings of each: record_param_comms ("allreduce", "_allgather_base"), annotations
# ("nccl:all_reduce", "nccl:_all_gather_base"), operators ("c10d::allreduce_", "c10d::_allgather_base_"), functions of
# torch.distributed and deepspeed.comm ("all_gather_into_tensor", "isend") and PARAM's words ("all_to_all_single").
# Source: torch/csrc/distributed/c10d/{ProcessGroupNCCL,ProcessGroupGloo,Ops}.cpp, torch 1.12 to 2.13;
# deepspeed/comm/comm.py; comms_utils.py of PARAM, paramToCommName.
_WORDS: dict[Collective, str] = {
    Collective.ALL_REDUCE: "allreduce allreducecoalesced inferenceallreduce",
    Collective.ALL_GATHER: (
        "allgather allgatherbase allgathercoalesced allgatherintotensor allgatherintotensorcoalesced"
    ),
    Collective.REDUCE_SCATTER: ("reducescatter reducescatterbase reducescattertensor reducescattertensorcoalesced"),
    Collective.BROADCAST: "broadcast broadcastoop",
    Collective.REDUCE: "reduce reduceoop",
    Collective.ALL_TO_ALL: "alltoall alltoallv alltoallbase alltoallsingle",
    Collective.SEND_RECV: "send isend recv irecv recvanysource",
}
_COLLECTIVES = {word: collective for collective, words in _WORDS.items() for word in words.split()}

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
    return Operation(word=word, collective=_COLLECTIVES.get(word), is_receive=word.startswith(("recv", "irecv")))


def is_barrier(name: str) -> bool:
    """Return True if a recorded name is a barrier, inside which older versions record an all-reduce."""
    word = name.rsplit(":", 1)[-1].replace("_", "").lower()
    return word in ("barrier", "monitoredbarrier")


MOST_ELEMENTS = MOST_BYTES
"""More elements than any buffer has: a larger count is damage."""

_WORD_SHOWN = 48
_REASONS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call as it was recorded.

    Attributes:
        name: the collective, in any of c10d's spellings.
        group: distinguishes its process group from the others of the file, empty where nothing does.
        group_size: ranks of that group, 0 where the call does not say.
        inputs: tensors that go in.
        outputs: tensors that come out.
        position: place in the order of the recording.
        duration_us: time from start to end, µs, where recorded.
    """

    name: str
    group: str = ""
    group_size: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    position: int = 0
    duration_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """One message of a recorded call."""

    message: Message
    record: RecordedCall
    is_receive: bool


def convert_calls(records: Sequence[RecordedCall]) -> tuple[list[SentCall], list[str], dict[str, int]]:
    """Turn recorded calls, in their order, into messages.

    Returns:
        The messages; notes on what was assumed and on calls that make no message; and the ranks of every group whose
        size is known.
    """
    sizes = _find_group_sizes(records)
    calls: list[SentCall] = []
    left_out: Counter[str] = Counter()
    notes: list[str] = []
    for record in records:
        operation = classify(record.name)
        if operation is None:
            continue
        size = record.group_size or sizes.get(record.group, 0)
        if not size:
            notes = ["the size of some groups is not recorded: they are assumed to be the whole job"]
        parts = [(record.inputs, record.outputs)]
        if operation.word.endswith("coalesced") and len(record.inputs) == len(record.outputs) > 1:
            # A coalesced record stands for a call per tensor.
            parts = [((into,), (out,)) for into, out in zip(record.inputs, record.outputs, strict=True)]
        for into, out in parts:
            message = _build_message(operation, into, out, size)
            if isinstance(message, str):
                left_out[message] += 1
            else:
                calls.append(SentCall(message=message, record=record, is_receive=operation.is_receive))
    commonest = left_out.most_common(_REASONS_SHOWN)
    notes += left_out_notes(dict(commonest))
    if rare := left_out.total() - sum(count for _reason, count in commonest):
        notes.append(f"left out: {rare} x call for other reasons")
    return calls, notes, sizes


def count_messages(calls: Iterable[SentCall]) -> Counter[tuple[str, Message]]:
    """Return (group, message) -> calls."""
    return Counter((call.record.group, call.message) for call in calls)


def _find_group_sizes(records: Iterable[RecordedCall]) -> dict[str, int]:
    """Return the ranks of every group of which one call shows them.

    Where no call states them, an all_gather or a reduce_scatter shows them by the ratio of its buffers.
    """
    stated: dict[str, int] = {}
    derived: dict[str, int] = {}
    for record in records:
        if record.group and record.group_size:
            stated.setdefault(record.group, record.group_size)
        elif record.group and (ranks := _derive_group_size(record)):
            derived.setdefault(record.group, ranks)
    return {**derived, **stated}


def shown(text: str) -> str:
    """Return a word of the file for a note: short and printable."""
    return repr(text[:_WORD_SHOWN])[1:-1]


def _build_message(
    operation: Operation, into: tuple[Tensor, ...], out: tuple[Tensor, ...], group_size: int
) -> Message | str:
    """Return the message of a call, or why it makes none."""
    operation = replace(operation, word=shown(operation.word))
    dtype = next((tensor.dtype for tensor in (*into, *out)), "")
    if operation.collective and not dtype:
        return f"{operation.word} without a {'dtype' if into or out else 'usable size'}"
    elements = _count_elements(operation, into, out, group_size)
    message = operation.message(shown(dtype.strip()), 1 if elements is None else elements, group_size=group_size)
    if elements is None and isinstance(message, Message):
        return f"{operation.word} with one side alone, in a group of unknown size"
    return message


def _count_elements(
    operation: Operation, into: tuple[Tensor, ...], out: tuple[Tensor, ...], group_size: int
) -> int | None:
    """Return the count behind `Message.size_bytes`: the full buffer, which is the larger side.

    For all_to_all it is what this rank sends: with uneven splits the output belongs to the other ranks. Where only
    one rank's share was recorded the group makes the full buffer of it.
    """
    sent, received = sum(t.elements for t in into), sum(t.elements for t in out)
    match operation.collective:
        case Collective.ALL_TO_ALL:
            return sent if into else None
        case Collective.ALL_GATHER if not out:
            return sent * group_size or None
        case Collective.REDUCE_SCATTER if not into:
            return received * group_size or None
        case _:
            return max(sent, received)


def _derive_group_size(record: RecordedCall) -> int:
    """Return the group size from the ratio of the buffers, 0 where the call does not show it."""
    operation = classify(record.name)
    if operation is None or operation.collective not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return 0
    into, out = (sum(t.elements for t in tensors) for tensors in (record.inputs, record.outputs))
    small, large = min(into, out), max(into, out)
    return large // small if small and large % small == 0 and large // small <= MOST_RANKS else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group as a recording lists it.

    Attributes:
        size: its ranks, 0 where not listed.
        ranks: their global numbers, empty where not listed, or where it is the whole job.
        backend: as in `cpu:gloo,cuda:nccl`, may be empty.
        description: `default_pg` and the like, may be empty.
    """

    size: int
    ranks: tuple[int, ...] = ()
    backend: str = ""
    description: str = ""


def parse_ranks(value: object) -> tuple[int, ...]:
    """Return the ranks in a list, or in a list written as text; empty where one of them is damaged or left out."""
    if isinstance(value, str):
        # A list that was shortened for printing does not show how many ranks there are.
        return () if "..." in value else tuple(int(n) for n in re.findall(r"\d{1,9}", value))
    ranks = [parse_int(n, most=MOST_RANKS) for n in value] if isinstance(value, list | tuple) else []
    return tuple(n for n in ranks if n is not None) if None not in ranks else ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """One recorded tensor: its elements, and its dtype as recorded."""

    elements: int
    dtype: str

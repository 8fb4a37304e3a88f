"""From the statements of NCCL logs to the messages of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message
from ncclt.nccl.log.calls import CollLine, TuningLine
from ncclt.profile.readers.nccl_log.book import LogBook
from ncclt.profile.readers.nccl_log.choices import Choices
from ncclt.profile.readers.nccl_log.comms import Communicators, Rank
from ncclt.profile.roles import RankMessages

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

PER_RANK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
"""Collectives whose count is of one rank's part, so that the message has that times the ranks."""

# ncclDataType_t of nccl.h; 9 since 2.10, 10 and 11 since 2.24.
_DATATYPES = (
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


@dataclass(slots=True, kw_only=True)
class RankFindings:
    """Messages and choices found in the logs.

    Attributes:
        calls: rank -> (communicator, message) -> calls.
        choices: what NCCL chose for which message.
        left_out: reason -> number of calls left out.
        untyped: all_gathers and broadcasts of int8, which NCCL up to 2.12 writes for every dtype.
    """

    calls: dict[Rank, Counter[tuple[str, Message]]] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)
    left_out: Counter[str] = field(default_factory=Counter)
    untyped: int = 0

    @property
    def views(self) -> tuple[RankMessages, ...]:
        """Return the calls per rank, for `find_roles`."""
        return tuple(RankMessages(rank=None, calls=dict(calls)) for calls in self.calls.values())

    def add(self, rank: Rank, group: str, message: Message, calls: int) -> None:
        """Count calls of a message by a rank in a communicator."""
        self.calls.setdefault(rank, Counter())[group, message] += calls

    def add_choices(self, tunings: Mapping[TuningLine, int], comms: Communicators) -> None:
        """Count the choices; sizes whose group is not known stay those of one rank."""
        for line, count in tunings.items():
            collective = OPERATIONS.get(line.operation)
            if collective is not None and 0 < int(line.size) <= MOST_BYTES:
                size, complete = full_size(line, collective, comms.group_decided_by(line.origin)[0])
                self.choices.add(collective, size, line.choice, count, per_rank=not complete)


def findings_from_calls(books: Sequence[LogBook], comms: Communicators) -> RankFindings:
    """Read the COLL lines; the receiving half of a send_recv counts if the rank sends nothing."""
    found = RankFindings()
    for book in books:
        found.left_out["calls whose line is cut off or torn apart"] += book.torn
        sending = {comms.rank_of(line, book.label) for line in book.calls if line.operation == "Send"}
        for line, count in book.calls.items():
            rank = comms.rank_of(line, book.label)
            if line.operation == "Recv" and rank in sending:
                continue
            message = _message(line, comms)
            if isinstance(message, str):
                found.left_out[message] += count
                continue
            found.add(rank, line.comm, message, count)
            if message.dtype == "int8" and line.operation in ("AllGather", "Broadcast"):
                found.untyped += count
        found.add_choices(book.tunings, comms)
    return found


def findings_from_tunings(books: Sequence[LogBook], comms: Communicators) -> RankFindings:
    """Read the TUNING lines, which rank 0 of each communicator writes, and which have bytes but no dtype."""
    found = RankFindings()
    for book in books:
        for line, count in book.tunings.items():
            group, spans_nodes = comms.group_decided_by(line.origin)
            message = _decided_message(line, group, spans_nodes=spans_nodes)
            if isinstance(message, str):
                found.left_out[message] += count
            else:
                found.add(comms.decider(line, book.label), "", message, count)
        found.add_choices(book.tunings, comms)
    return found


def _message(line: CollLine, comms: Communicators) -> Message | str:
    """Return the message of a call, or why there is none."""
    collective = OPERATIONS.get(line.operation)
    if collective is None:
        return f"calls of {line.operation}, which ncclt has no message for"
    number, ranks, count = int(line.datatype), int(line.ranks), int(line.elements)
    if number >= len(_DATATYPES):
        return f"calls of {line.operation} with datatype {number}, whose size is not known"
    dtype = _DATATYPES[number]
    size = count * DTYPE_SIZES[dtype] * (ranks if collective in PER_RANK else 1)
    if size == 0:
        return f"calls of {line.operation} of 0 bytes"
    if size > MOST_BYTES or ranks == 0:
        return "calls of an impossible size"
    return Message(
        collective=collective, dtype=dtype, size_bytes=size, group_size=ranks, spans_nodes=comms.spans_nodes(line)
    )


def _decided_message(line: TuningLine, group: int, *, spans_nodes: bool) -> Message | str:
    """Return the message of a decision, or why there is none."""
    if not line.operation:
        return "TUNING lines that do not name the collective, as NCCL 2.20 to 2.22 write them"
    collective = OPERATIONS.get(line.operation)
    if collective is None:
        return f"calls of {line.operation}, which ncclt has no message for"
    size, complete = full_size(line, collective, group)
    if not complete:
        return f"calls of {line.operation}: TUNING lines give one rank's part, and no INIT line the number of ranks"
    if size == 0:
        return f"calls of {line.operation} of 0 bytes"
    if size > MOST_BYTES:
        return "calls of an impossible size"
    return Message(
        collective=collective, dtype=UNKNOWN_DTYPE, size_bytes=size, group_size=group, spans_nodes=spans_nodes
    )


def full_size(line: TuningLine, collective: Collective, group: int) -> tuple[int, bool]:
    """Return the size of a decision, bytes, and whether it is that of the full buffer."""
    size = int(line.size)
    if line.is_full_size or collective not in PER_RANK:
        return size, True
    return (size * group, True) if group else (size, False)

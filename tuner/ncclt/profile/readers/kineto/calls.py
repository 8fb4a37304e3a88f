"""The calls that one rank's trace shows, and what had to be left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Message, parse_dtype
from ncclt.errors import InputError
from ncclt.profile.readers.kineto.names import Operation
from ncclt.profile.readers.kineto.trace import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a collective by one rank.

    Attributes:
        message: what was sent.
        group: name of the process group, empty where the trace does not tell.
        is_receive: the receiving half of a send_recv.
        event: the event that showed it.
    """

    message: Message
    group: str = ""
    is_receive: bool = False
    event: Event


@dataclass(slots=True, kw_only=True)
class CallBook:
    """Collects calls while a trace is read; a call that makes no message is counted by its reason instead.

    Attributes:
        source: which event family is read, for the provenance.
        calls: what was found.
        left_out: reason -> calls left out for it.
        assumptions: what was taken for granted, one sentence each.
    """

    source: str
    calls: list[Call] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    assumptions: dict[str, None] = field(default_factory=dict)

    def add(
        self,
        operation: Operation,
        event: Event,
        *,
        dtype: str,
        elements: int,
        group_size: int,
        group: str = "",
        spans_nodes: bool = False,
    ) -> None:
        """Add a call of `elements` of `dtype` (in the counting of `Message.size_bytes`), or the reason against it."""
        if operation.collective is None:
            self.left_out[f"{operation.word}, which ncclt has no message for"] += 1
            return
        try:
            known = parse_dtype(dtype)
        except InputError:
            self.left_out[f"{operation.word} of dtype {dtype!r}, whose size is not known"] += 1
            return
        size_bytes = elements * DTYPE_SIZES[known]
        if not 0 < size_bytes <= MOST_BYTES:
            self.left_out[f"{operation.word} of {'0 bytes' if elements <= 0 else 'an impossible size'}"] += 1
            return
        message = Message(
            collective=operation.collective,
            dtype=known,
            size_bytes=size_bytes,
            group_size=max(0, group_size),
            spans_nodes=spans_nodes,
        )
        self.calls.append(Call(message=message, group=group, is_receive=operation.is_receive, event=event))

    def assume(self, sentence: str) -> None:
        """Note something taken for granted, once."""
        self.assumptions[sentence] = None

    def without_answered_receives(self) -> tuple[Call, ...]:
        """Return the calls, of point-to-point ones the sends alone where there are sends.

        A message from rank to rank is one call; in the trace of a rank that does both halves the sends stand for it,
        and a rank that only receives shows it by its receives.
        """
        sends = any(c.message.collective == "send_recv" and not c.is_receive for c in self.calls)
        return tuple(c for c in self.calls if not (sends and c.is_receive))

    def notes(self) -> tuple[str, ...]:
        """Return one sentence per assumption and per reason of leaving calls out."""
        return (
            *self.assumptions,
            *(f"left out: {count} x {reason}" for reason, count in sorted(self.left_out.items())),
        )

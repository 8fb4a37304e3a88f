"""The calls that one rank's trace shows, and what had to be left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ncclt.core.message import Message
from ncclt.profile.readers.kineto.names import Operation
from ncclt.profile.readers.kineto.trace import Event
from ncclt.profile.reading import left_out_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a collective by one rank.

    Attributes:
        message: what was sent.
        group: name of the process group, empty where the trace does not say.
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
        made = operation.message(dtype, elements, group_size=max(0, group_size), spans_nodes=spans_nodes)
        if isinstance(made, str):
            self.left_out[made] += 1
        else:
            self.calls.append(Call(message=made, group=group, is_receive=operation.is_receive, event=event))

    def assume(self, sentence: str) -> None:
        """Note something taken for granted, once."""
        self.assumptions[sentence] = None

    def notes(self) -> tuple[str, ...]:
        """Return one sentence per assumption and per reason of leaving calls out."""
        return (*self.assumptions, *left_out_notes(self.left_out))

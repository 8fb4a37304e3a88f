"""Differences between two workloads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Message
from ncclt.core.workload import MessageCalls, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange(Documented):
    """A message that both workloads send, but not equally often."""

    SHAPE: ClassVar = Shape(inlined=("message",))

    message: Message
    calls_before: float
    calls_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Documented):
    """One workload in sums, per step.

    Attributes:
        messages: distinct messages.
        calls: calls.
        bytes_per_step: their bytes (tuning sizes).
        communication_us, step_time_us, exposed_us: as recorded, µs; None where not known.
    """

    messages: int
    calls: float
    bytes_per_step: float
    communication_us: float | None
    step_time_us: float | None
    exposed_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Changes that turn the first workload into the second; messages with most bytes first.

    Attributes:
        added: sent by the second alone.
        removed: sent by the first alone.
        changed: sent by both, with other calls per step.
        unchanged: messages that both send equally often.
        before, after: the sums of both.
    """

    added: tuple[MessageCalls, ...]
    removed: tuple[MessageCalls, ...]
    changed: tuple[WorkloadChange, ...]
    unchanged: int
    before: Totals
    after: Totals

    @property
    def is_empty(self) -> bool:
        """Return True if both send the same."""
        return not (self.added or self.removed or self.changed)

    def to_document(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {
            "added": [_row(c.message, 0.0, c.calls_per_step) for c in self.added],
            "removed": [_row(c.message, c.calls_per_step, 0.0) for c in self.removed],
            "changed": [change.to_document() for change in self.changed],
            "unchanged": self.unchanged,
            "totals": {"before": self.before.to_document(), "after": self.after.to_document()},
        }


def compare_workloads(before: Workload, after: Workload) -> Difference:
    """Compare what two workloads send; names, dates and notes do not count, calls may differ by rounding."""
    first, second = _by_message(before), _by_message(after)
    both = [m for m in first if m in second]
    changed = [m for m in both if not math.isclose(first[m].calls_per_step, second[m].calls_per_step, rel_tol=1e-9)]
    return Difference(
        added=tuple(c for m, c in second.items() if m not in first),
        removed=tuple(c for m, c in first.items() if m not in second),
        changed=tuple(
            WorkloadChange(message=m, calls_before=first[m].calls_per_step, calls_after=second[m].calls_per_step)
            for m in changed
        ),
        unchanged=len(both) - len(changed),
        before=_totals(before),
        after=_totals(after),
    )


def _by_message(workload: Workload) -> dict[Message, MessageCalls]:
    """Return one entry per message: a document may list one twice."""
    found: dict[Message, MessageCalls] = {}
    for calls in workload.messages:
        before = found.get(calls.message)
        total = calls.calls_per_step + (before.calls_per_step if before else 0.0)
        found[calls.message] = replace(calls, calls_per_step=total)
    return found


def _totals(workload: Workload) -> Totals:
    return Totals(
        messages=len(workload.messages),
        calls=sum(c.calls_per_step for c in workload.messages),
        bytes_per_step=workload.bytes_per_step,
        communication_us=workload.communication_us,
        step_time_us=workload.step_time_us,
        exposed_us=workload.exposed_us,
    )


def _row(message: Message, before: float, after: float) -> dict[str, Any]:
    return WorkloadChange(message=message, calls_before=before, calls_after=after).to_document()

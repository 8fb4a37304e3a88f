"""Differences between two workloads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Message
from ncclt.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange(Documented):
    """A message that two workloads do not send equally often; 0 calls = one of them never sends it."""

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

    added: tuple[WorkloadChange, ...]
    removed: tuple[WorkloadChange, ...]
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
        rows = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return {
            **{name: [change.to_document() for change in changes] for name, changes in rows.items()},
            "unchanged": self.unchanged,
            "totals": {"before": self.before.to_document(), "after": self.after.to_document()},
        }


def compare_workloads(before: Workload, after: Workload) -> Difference:
    """Compare what two workloads send; names, dates and notes do not count, calls may differ by rounding."""
    first, second = _count_calls(before), _count_calls(after)

    def list_changes(messages: Iterable[Message]) -> tuple[WorkloadChange, ...]:
        return tuple(
            WorkloadChange(message=m, calls_before=first.get(m, 0.0), calls_after=second.get(m, 0.0)) for m in messages
        )

    both = [m for m in first if m in second]
    changed = [m for m in both if not math.isclose(first[m], second[m], rel_tol=1e-9)]
    return Difference(
        added=list_changes(m for m in second if m not in first),
        removed=list_changes(m for m in first if m not in second),
        changed=list_changes(changed),
        unchanged=len(both) - len(changed),
        before=_add_up(before),
        after=_add_up(after),
    )


def _count_calls(workload: Workload) -> dict[Message, float]:
    """Return the calls per step of each message: a document may list one twice."""
    calls_per_step: dict[Message, float] = defaultdict(float)
    for calls in workload.messages:
        calls_per_step[calls.message] += calls.calls_per_step
    return dict(calls_per_step)


def _add_up(workload: Workload) -> Totals:
    return Totals(
        messages=len(workload.messages),
        calls=sum(c.calls_per_step for c in workload.messages),
        bytes_per_step=workload.bytes_per_step,
        communication_us=workload.communication_us,
        step_time_us=workload.step_time_us,
        exposed_us=workload.exposed_us,
    )

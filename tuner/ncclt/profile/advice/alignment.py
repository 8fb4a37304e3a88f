"""Messages whose parts begin off the 16 bytes that NCCL copies at once, and the gain of padding them.

Sources: the copy itself in NCCL 2.30.7 (see `ncclt.core.message.VECTOR_BYTES`); NVIDIA/nccl#413, where NVIDIA calls the
loss of all_gather under Simple and LL128 expected; pytorch/pytorch#195450, which reports it for the layout of FSDP2,
single node and RoCE; horovod/horovod#3727, the one published pair of times. What a part loses depends on protocol,
links and GPU, so a gain is predicted from times of the same cluster alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.core.trial import Measurement
from ncclt.core.workload import MessageCalls, Workload
from ncclt.profile.views.estimate import CurveKey, build_curves, read_curve

PUBLISHED: Mapping[Collective, str] = {
    Collective.ALL_GATHER: "published: over 7 ms unaligned, under 2 ms aligned, at 6.29 MB in fp16 "
    "(horovod/horovod#3727)",
    Collective.REDUCE_SCATTER: "published: less than all_gather loses (horovod/horovod#3727)",
}
"""Published gains on other clusters, by collective; no prediction for this one."""

UNKNOWN = "gain not known: no study of this cluster has times of the exact and of an aligned size"

_NEAR = 2
"""The time of an aligned size is read between measured ones at most this factor away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedMessage:
    """A message whose bytes per rank are no multiple of 16.

    Attributes:
        calls: the message, with its group size, and its calls per step.
        times_us: of one call as it is and padded, µs, both measured; None = at least one is not known.
    """

    calls: MessageCalls
    times_us: tuple[float, float] | None = None

    @property
    def divides(self) -> bool:
        """Return True if ranks have equal parts of whole elements; otherwise the size is of another number of ranks."""
        message = self.calls.message
        return message.size_bytes % (message.parts * DTYPE_SIZES[message.dtype]) == 0

    @property
    def begins_unaligned(self) -> bool:
        """Return True if parts begin off 16 bytes; without parts only the last bytes of a message are affected."""
        return self.calls.message.collective.has_rank_parts and self.divides

    @property
    def padding(self) -> int:
        """Return the elements to add per rank."""
        message = self.calls.message
        return math.ceil((message.padded_bytes - message.size_bytes) / message.parts / DTYPE_SIZES[message.dtype])

    @property
    def speedup(self) -> float | None:
        """Return the measured gain of a call by padding; None = not known."""
        return self.times_us[0] / self.times_us[1] if self.times_us else None

    @property
    def saved_us(self) -> float | None:
        """Return the communication that padding saves per step, µs; below 0 where it costs; None = not known."""
        return (self.times_us[0] - self.times_us[1]) * self.calls.calls_per_step if self.times_us else None

    @property
    def gain(self) -> str:
        """Return the gain of padding in words."""
        if not self.divides:
            return "not known: no whole elements per rank, the size is of another number of ranks"
        if not self.begins_unaligned:
            return "no gain expected: only its last bytes are copied one by one"
        if self.times_us and self.saved_us is not None:
            here = f"measured: {self.times_us[0]:.1f} µs as it is, {self.times_us[1]:.1f} µs aligned"
            return f"{here} ({self.speedup:.2f}x, {self.saved_us / 1e3:.3g} ms per step)"
        return "; ".join(filter(None, (UNKNOWN, PUBLISHED.get(self.calls.message.collective, ""))))


def find_unaligned(workload: Workload, measured: Iterable[Measurement] = ()) -> tuple[UnalignedMessage, ...]:
    """Return the messages whose bytes per rank are no multiple of 16, most bytes per step first.

    Args:
        workload: placed, so that every group size is known.
        measured: of the NCCL default on its cluster. A time of a size that stands for another one says nothing of the
            exact size, and an interpolated one nothing of any.
    """
    exact = [one for one in measured if not (one.interpolated or one.measured_bytes)]
    times: dict[Message, list[float]] = {}
    for one in exact:
        times.setdefault(one.message, []).append(one.time_us)
    aligned = [one for one in exact if one.message.is_aligned]
    curves = {dtype: build_curves(m for m in aligned if m.message.dtype == dtype) for dtype in DTYPE_SIZES}

    def compare(message: Message) -> tuple[float, float] | None:
        key: CurveKey = (message.collective, message.group_size, message.spans_nodes)
        near = [
            (size, time_us)
            for size, time_us in curves[message.dtype].get(key, ())
            if message.padded_bytes / _NEAR <= size <= message.padded_bytes * _NEAR
        ]
        padded = read_curve(near, message.padded_bytes)
        return (statistics.median(times[message]), padded[0]) if message in times and padded else None

    found = [
        UnalignedMessage(calls=calls, times_us=compare(calls.message))
        for calls in workload.messages
        if calls.message.group_size > 1 and not calls.message.is_aligned
    ]
    return tuple(sorted(found, key=lambda one: (not one.begins_unaligned, -one.calls.bytes_per_step)))

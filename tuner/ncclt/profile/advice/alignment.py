"""Messages whose parts begin off 16 bytes, which NCCL copies slowly, and the gain of padding them.

Sources: the copy itself in NCCL 2.30.7 (see `ncclt.core.message.VECTOR_BYTES`); NVIDIA/nccl#413, where NVIDIA calls the
loss of all_gather under Simple and LL128 expected; pytorch/pytorch#195450, which reports it for the layout of FSDP2,
single node and RoCE; horovod/horovod#3727, the one published pair of times. The loss depends on protocol, links and
GPU, so a gain is predicted from times of the same cluster alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.core.plural import count_noun
from ncclt.core.trial import Measurement, TimesOrigin
from ncclt.core.workload import MessageCalls, Workload
from ncclt.profile.views.estimate import CurvePoint, read_curve

PUBLISHED: Mapping[Collective, str] = {
    Collective.ALL_GATHER: "published: over 7 ms unaligned, under 2 ms aligned, at 6.29 MB in fp16 "
    "(horovod/horovod#3727)",
    Collective.REDUCE_SCATTER: "published: less than all_gather loses (horovod/horovod#3727)",
}
"""Published gains on other clusters, by collective; no prediction for this one."""

UNKNOWN = "gain not known: measure the exact and the padded size with `ncclt tune --benchmark torch_collectives`"

_NEAR = 2
"""Max factor between an aligned size and the measured sizes that its time is interpolated from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingTimes:
    """Times of one call under the NCCL default, as it is and padded.

    Attributes:
        exact_us: median of the launches with the message's own size, µs.
        launches: number of these.
        padded_us: median of the launches with the padded size, µs, or interpolated between near aligned sizes.
        padded_launches: number of these; 0 = interpolated.
        origin: of all these times.
    """

    exact_us: float
    launches: int
    padded_us: float
    padded_launches: int
    origin: TimesOrigin

    @property
    def sentence(self) -> str:
        """Return both times with their origin."""
        exact = f"{self.exact_us:.1f} µs as it is ({count_noun(self.launches, 'launch', 'launches')})"
        origin = count_noun(self.padded_launches, "launch", "launches") if self.padded_launches else "interpolated"
        return f"{self.origin}: {exact}, {self.padded_us:.1f} µs aligned ({origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedMessage:
    """A message whose bytes per rank are not a multiple of 16.

    Attributes:
        calls: the message, with its group size, and its calls per step.
        times: of one call; None = at least one of them is not known.
    """

    calls: MessageCalls
    times: PaddingTimes | None = None

    @property
    def padding(self) -> int:
        """Return the elements to add per rank."""
        message = self.calls.message
        return math.ceil((message.padded_bytes - message.size_bytes) / message.parts / DTYPE_SIZES[message.dtype])

    @property
    def speedup(self) -> float | None:
        """Return the gain of a call by padding; None = not known."""
        return self.times.exact_us / self.times.padded_us if self.times else None

    @property
    def saved_us(self) -> float | None:
        """Return the communication that padding saves per step, µs; below 0 where it costs; None = not known."""
        return (self.times.exact_us - self.times.padded_us) * self.calls.calls_per_step if self.times else None

    @property
    def gain(self) -> str:
        """Return the gain of padding in words."""
        if not self.calls.message.is_divisible:
            return "not known: the size does not divide by ranks and dtype; it is of another number of ranks"
        if not self.calls.message.begins_unaligned:
            return "no gain expected: it begins aligned, and only its last bytes miss the 16-byte copy"
        if self.times and self.saved_us is not None:
            return f"{self.times.sentence}: {self.speedup:.2f}x, {self.saved_us / 1e3:.3g} ms per step"
        return "; ".join(filter(None, (UNKNOWN, PUBLISHED.get(self.calls.message.collective, ""))))


def find_unaligned(
    workload: Workload, measured: Iterable[Measurement] = (), *, origin: TimesOrigin = TimesOrigin.MEASURED
) -> tuple[UnalignedMessage, ...]:
    """Return the messages whose bytes per rank are not a multiple of 16, most bytes per step first.

    Args:
        workload: placed, so that every group size is known.
        measured: of the NCCL default on its cluster. A time of a rounded size is one of an aligned size; interpolated
            times are left out.
    """
    times: dict[Message, list[float]] = {}
    for measurement in measured:
        if not measurement.interpolated:
            times.setdefault(measurement.sent, []).append(measurement.time_us)

    def compare(message: Message) -> PaddingTimes | None:
        size = message.padded_bytes
        near = [
            CurvePoint(timed.size_bytes, statistics.median(times_us))
            for timed, times_us in times.items()
            if replace(timed, size_bytes=size) == replace(message, size_bytes=size)
            and timed.is_aligned
            and size / _NEAR <= timed.size_bytes <= size * _NEAR
        ]
        padded = read_curve(sorted(near), size)
        if message not in times or padded is None:
            return None
        return PaddingTimes(
            exact_us=statistics.median(times[message]),
            launches=len(times[message]),
            padded_us=padded[0],
            padded_launches=len(times.get(replace(message, size_bytes=size), ())),
            origin=origin,
        )

    unaligned = [
        UnalignedMessage(calls=calls, times=compare(calls.message))
        for calls in workload.messages
        if calls.message.group_size > 1 and not calls.message.is_aligned
    ]
    return tuple(sorted(unaligned, key=lambda row: (not row.calls.message.begins_unaligned, -row.calls.bytes_per_step)))

"""Messages by size: a histogram by powers of two, size classes, and median sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective, bus_factor
from ncclt.core.workload import RANK_ROLES, MessageCalls, Workload

_KIB, _MIB = 1024, 1024 * 1024

SIZE_CLASSES: tuple[tuple[str, int], ...] = (("small", 64 * _KIB), ("medium", 4 * _MIB), ("large", 2**62))
"""Name of a class -> the size in bytes below which a message belongs to it. Below 64 KiB a call is all latency (the
recorded curves of 2 to 16 GPUs are flat within a factor of two there), above 4 MiB nearly all bandwidth."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Messages of `2**exponent` to below `2**(exponent + 1)` bytes.

    Attributes:
        exponent: log2 of the smallest size.
        calls: calls per step.
        bytes_per_step: their bytes (tuning sizes).
    """

    exponent: int
    calls: float
    bytes_per_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass(Documented):
    """Calls and bytes of one collective in one size class, per step.

    Attributes:
        collective: the operation.
        name: class of `SIZE_CLASSES`.
        calls: calls per step.
        bytes_per_step: their bytes (tuning sizes).
        time_us: their recorded time, µs; None where one of them has none.
    """

    SHAPE: ClassVar = Shape(hidden=("name",), computed=(("class", "name", "calls"),))

    collective: Collective
    name: str
    calls: float
    bytes_per_step: float
    time_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianSizes:
    """The size up to which the small messages make half of something.

    Attributes:
        calls_bytes: half of the calls are of this size or smaller.
        bytes_bytes: half of the bytes are in messages of this size or smaller.
        time_bytes: half of the recorded time; None where a message has no time.
    """

    calls_bytes: int
    bytes_bytes: int
    time_bytes: int | None


def histogram(workload: Workload) -> tuple[Bin, ...]:
    """Return calls and bytes per power of two, from the smallest to the largest, empty bins between them included."""
    rows: dict[int, list[MessageCalls]] = {}
    for row in workload.messages:
        rows.setdefault(row.message.size_bytes.bit_length() - 1, []).append(row)
    return tuple(
        Bin(exponent, sum((r.calls_per_step for r in binned), 0.0), sum((r.bytes_per_step for r in binned), 0.0))
        for exponent in range(min(rows), max(rows) + 1)
        for binned in [rows.get(exponent, [])]
    )


def group_by_size(workload: Workload) -> tuple[SizeClass, ...]:
    """Return calls and bytes of each collective by size class, most bytes first; empty classes are left out."""
    groups: dict[tuple[Collective, str], list[MessageCalls]] = {}
    for row in workload.messages:
        size_class = next((name for name, below in SIZE_CLASSES if row.message.size_bytes < below), SIZE_CLASSES[-1][0])
        groups.setdefault((row.message.collective, size_class), []).append(row)
    classes = []
    for (collective, name), rows in groups.items():
        times_us = [row.recorded_us * row.calls_per_step for row in rows if row.recorded_us is not None]
        classes.append(
            SizeClass(
                collective=collective,
                name=name,
                calls=sum(row.calls_per_step for row in rows),
                bytes_per_step=sum(row.bytes_per_step for row in rows),
                time_us=sum(times_us) if len(times_us) == len(rows) else None,
            )
        )
    return tuple(sorted(classes, key=lambda c: (-c.bytes_per_step, c.collective, c.name)))


def find_median_sizes(workload: Workload) -> MedianSizes:
    """Return the sizes that split the calls, the bytes and the time of a workload in half."""
    rows = sorted(workload.messages, key=lambda row: row.message.size_bytes)
    timed = bool(workload.communication_us)
    return MedianSizes(
        calls_bytes=_half(rows, lambda row: row.calls_per_step),
        bytes_bytes=_half(rows, lambda row: row.bytes_per_step),
        time_bytes=_half(rows, lambda row: row.calls_per_step * (row.recorded_us or 0.0)) if timed else None,
    )


def count_traffic(workload: Workload) -> tuple[float | None, float | None]:
    """Return the bytes that leave the GPUs in one step, if the collectives send no more than they must.

    Returns:
        Mean over the ranks, None where a message's group size is not known; and sum of all ranks, None where the size
        of the job is unknown too, or ranks send different messages.

    A rank sends size x bus factor (nccl-tests doc/PERFORMANCE.md); for broadcast and reduce in a group of n, n - 1
    ranks send the message once.
    """
    world_size = workload.provenance.world_size
    per_rank = 0.0
    for row in workload.messages:
        size = row.message.group_size or world_size
        if not size:
            return None, None
        once = row.message.collective in (Collective.BROADCAST, Collective.REDUCE)
        factor = (size - 1) / size if once else bus_factor(row.message.collective, size) if size > 1 else 0.0
        per_rank += row.bytes_per_step * factor
    is_same = RANK_ROLES not in workload.provenance.detail
    return per_rank, per_rank * world_size if world_size and is_same else None


def _half(rows: Sequence[MessageCalls], weight: Callable[[MessageCalls], float]) -> int:
    """Return the size of the row, in order of size, with which half of the weight is reached."""
    total = sum(weight(row) for row in rows)
    reached = 0.0
    for row in rows:
        reached += weight(row)
        if reached >= total / 2:
            break
    return row.message.size_bytes

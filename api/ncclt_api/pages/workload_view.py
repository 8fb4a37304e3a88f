"""The content of the page of one workload, computed before any HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ncclt.core.message import format_bytes
from ncclt.core.workload import MessageCalls, Workload
from ncclt.profile.views.difference import Difference, difference
from ncclt.profile.views.exposure import gain_bound
from ncclt.profile.views.histogram import cross_over, histogram
from ncclt.store.overview import Pair
from ncclt_api.pages.home_view import ShownGain, gain_of

MOST_MESSAGES = 60
"""Rows of the table of messages; the rest is in the JSON of the API."""

MOST_DIFFERENT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBar:
    """Messages of one power of two: sizes as text, and what they are in numbers and as shares of the largest bar."""

    sizes: str
    calls: float
    bytes_per_step: float
    calls_share: float
    bytes_share: float
    calls_bar: float
    bytes_bar: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShare:
    """One message: its share of the weight, and whether it is one of the few that carry 95 % of it."""

    calls: MessageCalls
    share: float
    is_dominant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What tuning can gain at most.

    Attributes:
        share: exposed communication as a share of the step, 0 to 1.
        speedup: of the step; None where nothing else is left of it.
        exposed_us, step_time_us, communication_us: as recorded, µs; the last one None where it is not known.
    """

    share: float
    speedup: float | None
    exposed_us: float
    step_time_us: float
    communication_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A cluster on which it was tuned, or is being tuned."""

    cluster: str
    gain: ShownGain | None
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """The content of the page.

    Attributes:
        digest: hash of what is sent.
        shipped: it came with ncclt.
        weighted_by: what the shares are shares of: `time` or `bytes`.
        calls: per step, of all messages.
        half_calls, half_bytes: half of the calls, and of the bytes, are of this size or smaller.
        hidden: messages that the table leaves out.
        ceiling: None where the recording lacks the step time or the exposed part.
        placed: where it was tuned.
        other: name of the workload that it is compared with; empty = none.
        changes: what the other one does differently.
    """

    workload: Workload
    digest: str
    shipped: bool
    bars: tuple[SizeBar, ...]
    messages: tuple[MessageShare, ...]
    weighted_by: str
    dominant: int
    calls: float
    half_calls: int
    half_bytes: int
    hidden: int
    ceiling: Ceiling | None
    placed: tuple[Placed, ...]
    other: str
    changes: Difference | None


def workload_view(
    workload: Workload, pairs: Sequence[Pair], *, shipped: bool, now: datetime, other: Workload | None = None
) -> WorkloadView:
    """Return the content of the page.

    Args:
        workload: as it is in the catalogue.
        pairs: where it was tuned.
        shipped: it came with ncclt.
        now: for ages.
        other: the one to compare it with.
    """
    dominant = {calls.message for calls in workload.dominant()}
    weights = workload.weights()
    total = sum(weights)
    ranked = sorted(zip(weights, workload.messages, strict=True), key=lambda pair: -pair[0])
    half = cross_over(workload)
    return WorkloadView(
        workload=workload,
        digest=workload.digest(),
        shipped=shipped,
        bars=_bars(workload),
        messages=tuple(
            MessageShare(calls=calls, share=weight / total, is_dominant=calls.message in dominant)
            for weight, calls in ranked[:MOST_MESSAGES]
        ),
        weighted_by="time" if workload.communication_us else "bytes",
        dominant=len(dominant),
        calls=sum(calls.calls_per_step for calls in workload.messages),
        half_calls=half.calls_bytes,
        half_bytes=half.bytes_bytes,
        hidden=max(0, len(workload.messages) - MOST_MESSAGES),
        ceiling=_ceiling(workload),
        placed=tuple(
            Placed(
                cluster=pair.cluster,
                gain=gain_of(pair.recommendation, now=now) if pair.recommendation else None,
                running=pair.running,
            )
            for pair in sorted(pairs, key=_best_first)
        ),
        other=other.name if other else "",
        changes=difference(workload, other) if other else None,
    )


def _best_first(pair: Pair) -> tuple[bool, bool, float, str]:
    found = pair.recommendation
    if found is None:
        return True, True, 0.0, pair.cluster
    return bool(found.stale), bool(found.label), -found.table.verdict.speedup, pair.cluster


def _bars(workload: Workload) -> tuple[SizeBar, ...]:
    bins = histogram(workload)
    calls, sizes = sum(one.calls for one in bins), sum(one.bytes_per_step for one in bins)
    most_calls, most_bytes = max(one.calls for one in bins), max(one.bytes_per_step for one in bins)
    return tuple(
        SizeBar(
            sizes=f"{format_bytes(2**one.exponent)} to {format_bytes(2 ** (one.exponent + 1))}",
            calls=one.calls,
            bytes_per_step=one.bytes_per_step,
            calls_share=one.calls / calls,
            bytes_share=one.bytes_per_step / sizes,
            calls_bar=one.calls / most_calls,
            bytes_bar=one.bytes_per_step / most_bytes,
        )
        for one in bins
    )


def _ceiling(workload: Workload) -> Ceiling | None:
    bound = gain_bound(workload)
    if bound is None or workload.exposed_us is None or workload.step_time_us is None:
        return None
    return Ceiling(
        share=bound.share,
        speedup=bound.speedup if math.isfinite(bound.speedup) else None,
        exposed_us=workload.exposed_us,
        step_time_us=workload.step_time_us,
        communication_us=workload.communication_us,
    )

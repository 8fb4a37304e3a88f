"""Times of calls: from a recording, or on a named cluster from studies and NCCL's cost model."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.profile.views.estimate import Curve, CurveKey, model_us, read_curve

Factors = tuple[tuple[float, float], ...]
"""(log2 of the size, time over the curve's) in order of size."""

RECORDING = "recording"
"""Name of the stand-in for the cluster of a recording."""

_IN_TRAINING = 1.3
"""Slowdown of a call in a training step against nccl-tests alone, see `Assumption.stretch`."""

_MODELLED = 2.0
"""Nominal links and NCCL's own model, unlike measurements, miss bandwidths by up to this (8 L40S: by far more)."""

_OTHER_SHAPE = 1.5
"""A correction of one number of nodes, used for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Times of calls of the whole job.

    Attributes:
        cluster: of the job, sized to it, or the stand-in for that of a recording.
        measured: curves of the NCCL default there, also for other numbers of nodes.
        factors: by collective, how the job differs from the curves; none for a collective that it does not call.
    """

    cluster: Cluster
    measured: Mapping[CurveKey, Curve]
    factors: Mapping[Collective, Factors] = field(default_factory=dict)

    def has_times(self, collective: Collective) -> bool:
        """Return False if a recording is the only source of times and lacks the collective."""
        return self.cluster.name != RECORDING or collective in self.factors

    def time_us(self, collective: Collective, size_bytes: float, cluster: Cluster | None = None) -> float:
        """Return the time of one call, µs.

        Args:
            collective: what is called.
            size_bytes: NCCL's tuning size, above 0.
            cluster: another number of nodes or GPUs than the job's.
        """
        time_us = self._read_curve(collective, size_bytes, cluster or self.cluster)
        factors = self.factors.get(collective)
        if not factors:
            return time_us
        log_size = math.log2(max(1.0, size_bytes))
        right = bisect_left(factors, (log_size,))
        if right in (0, len(factors)):
            return time_us * factors[min(right, len(factors) - 1)][1]
        (low, before), (high, after) = factors[right - 1], factors[right]
        return time_us * float(before + (after - before) * (log_size - low) / (high - low))

    def spread(self, collective: Collective, size_bytes: float, cluster: Cluster | None = None) -> float:
        """Return the factor, at least 1, by which the true time may be more, or less, than `time_us`.

        A recorded size is exact, and each doubling away from it adds a tenth.
        """
        where, factors = cluster or self.cluster, self.factors.get(collective)
        is_measured = bool(self._find_curve(collective, where))
        if not factors:
            return _IN_TRAINING if is_measured else _MODELLED
        distance = min(abs(math.log2(size_bytes) - log_size) for log_size, _ in factors)
        near = min(1 + 0.1 * distance, _OTHER_SHAPE)
        if (where.world_size, where.nodes) == (self.cluster.world_size, self.cluster.nodes):
            return near
        return near * (_IN_TRAINING if is_measured else _OTHER_SHAPE)

    def _find_curve(self, collective: Collective, where: Cluster) -> Curve:
        return self.measured.get((collective, where.world_size, where.nodes > 1), ())

    def _read_curve(self, collective: Collective, size_bytes: float, where: Cluster) -> float:
        size = max(1, round(size_bytes))
        if where.world_size == 1:
            return 0.0
        if curve := self._find_curve(collective, where):
            point = read_curve(curve, size)
            if point is not None:
                return point[0]
            first, last = curve[0], curve[-1]
            if size > last.size_bytes:
                return last.time_us * size / last.size_bytes
            return first.time_us * min(
                1.0, _model_us(collective, size, where) / _model_us(collective, first.size_bytes, where)
            )
        time_us = _model_us(collective, size, where)
        if where != self.cluster and self._find_curve(collective, self.cluster):
            # What the model misses here it is taken to miss there.
            here_us = self._read_curve(collective, size, self.cluster)
            return here_us * time_us / _model_us(collective, size, self.cluster)
        return time_us


def _model_us(collective: Collective, size: int, where: Cluster) -> float:
    ranks, spans = where.world_size, where.nodes > 1
    message = Message(collective=collective, dtype="uint8", size_bytes=size, group_size=ranks, spans_nodes=spans)
    return model_us(where, message)


def recorded_cluster(workload: Workload) -> Cluster:
    """Return a stand-in for the cluster of a recording, whose own times correct every call on it.

    Its links only shape the curve between recorded sizes, and it has no network: nothing is predicted for other nodes.

    Raises:
        UsageError: the recording lacks its number of GPUs or the times of its calls.
    """
    if workload.provenance.world_size < 2 or not any(
        calls.recorded_us and calls.message.collective.is_tunable for calls in workload.messages
    ):
        hint = "add --cluster NAME; `ncclt cluster list` shows the names"
        raise UsageError(f"the recording of {workload.name} lacks the number of GPUs and the times of calls", hint=hint)
    return Cluster(
        name=RECORDING,
        gpus_per_node=workload.provenance.world_size,
        gpu="unknown GPU",
        compute_capability=80,
        link_class="nvlink",
        link_gbps=100.0,
        nccl_version="2.19.0",
    )


def call_times(
    workload: Workload, cluster: Cluster, measured: Mapping[CurveKey, Curve], *, ran_there: bool = False
) -> CallTimes:
    """Return the times of calls; those of a recording count where it was made alone.

    A recorded call that took longer than a larger one waited for other ranks; the larger one's time counts for it.

    Args:
        workload: recorded with times, or without.
        cluster: a named one sized to the job, or `recorded_cluster(workload)`.
        measured: see `CallTimes`.
        ran_there: the recording is of the named cluster.
    """
    times = CallTimes(cluster=cluster, measured=measured)
    if cluster.name != RECORDING and not ran_there:
        return times
    recorded: dict[Collective, dict[int, float]] = {}
    for calls in workload.messages:
        message = calls.message
        is_whole_job = message.group_size in (0, workload.provenance.world_size, cluster.world_size)
        if calls.recorded_us and is_whole_job and message.collective.is_tunable:
            by_size = recorded.setdefault(message.collective, {})
            by_size[message.size_bytes] = min(calls.recorded_us, by_size.get(message.size_bytes, math.inf))
    factors: dict[Collective, Factors] = {}
    for collective, by_size in recorded.items():
        corrections, least_us = [], math.inf
        for size in sorted(by_size, reverse=True):
            least_us = min(least_us, by_size[size])
            corrections.append((math.log2(size), least_us / times.time_us(collective, size)))
        factors[collective] = tuple(sorted(corrections))
    return replace(times, factors=factors)

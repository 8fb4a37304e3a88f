"""Times of calls on a cluster: measured curves or NCCL's cost model, corrected by a recording."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message, bus_factor
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.profile.views.estimate import Curve, CurveKey, link_busbw_gbps, read_curve

Factors = tuple[tuple[float, float], ...]
"""(log2 of the size, recorded time over the curve's) in order of size."""

RECORDING = "recording"
"""Name of the stand-in for the cluster of a recording."""

_IN_TRAINING = 1.3
"""Slowdown of a call in a training step against nccl-tests alone, see `Assumption.stretch`."""

_MODELLED = 2.0
"""Nominal links and NCCL's own model, unlike measurements, miss bandwidths by up to this (8 L40S: by far more)."""

_OTHER_SHAPE = 1.5
"""A correction that was recorded on one number of nodes, used for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Times of calls of the whole job.

    Attributes:
        cluster: of the recording, sized to its job.
        measured: curves of the NCCL default there, also for other numbers of nodes.
        factors: by collective, how the recording differs from the curves; empty = it has no times.
    """

    cluster: Cluster
    measured: Mapping[CurveKey, Curve]
    factors: Mapping[Collective, Factors]

    def time_us(self, collective: Collective, size_bytes: float, cluster: Cluster | None = None) -> float:
        """Return the time of one call, µs.

        Args:
            collective: what is called.
            size_bytes: NCCL's tuning size, above 0.
            cluster: another number of nodes or GPUs than the recording's.
        """
        where = cluster or self.cluster
        return self._on_curve(collective, size_bytes, where) * self._factor(collective, size_bytes)

    def spread(self, collective: Collective, size_bytes: float, cluster: Cluster | None = None) -> float:
        """Return the factor, at least 1, by which the true time may be more, or less, than `time_us`.

        A recorded size on the recorded cluster is exact. Each doubling away from it adds a tenth; a
        collective that was not recorded itself a third.
        """
        where, known = cluster or self.cluster, self._factors(collective)
        if not known:
            return _IN_TRAINING if self._curve(collective, where) else _MODELLED
        distance = min(abs(math.log2(size_bytes) - at) for at, _ in known)
        near = min(1 + 0.1 * distance, _OTHER_SHAPE) * (1 if collective in self.factors else _IN_TRAINING)
        same = where.world_size == self.cluster.world_size and where.nodes == self.cluster.nodes
        return near if same else near * (_IN_TRAINING if self._curve(collective, where) else _OTHER_SHAPE)

    def _curve(self, collective: Collective, where: Cluster) -> Curve:
        return self.measured.get((collective, where.world_size, where.nodes > 1), ())

    def _on_curve(self, collective: Collective, size_bytes: float, where: Cluster) -> float:
        size = max(1, round(size_bytes))
        if where.world_size == 1:
            return 0.0
        if curve := self._curve(collective, where):
            found = read_curve(curve, size)
            if found is not None:
                return found[0]
            first, last = curve[0], curve[-1]
            if size > last.size_bytes:
                return last.time_us * size / last.size_bytes
            least_us = _modelled_us(collective, first.size_bytes, where)
            return first.time_us * min(1.0, _modelled_us(collective, size, where) / least_us)
        modelled_us = _modelled_us(collective, size, where)
        if where != self.cluster and self._curve(collective, self.cluster):
            # What the model misses here it is taken to miss there.
            here_us = self._on_curve(collective, size, self.cluster)
            return here_us * modelled_us / _modelled_us(collective, size, self.cluster)
        return modelled_us

    def _factors(self, collective: Collective) -> Factors:
        return self.factors.get(collective) or next(iter(self.factors.values()), ())

    def _factor(self, collective: Collective, size_bytes: float) -> float:
        known = self._factors(collective)
        if not known:
            return 1.0
        at = math.log2(max(1.0, size_bytes))
        right = bisect_left(known, (at,))
        if right in (0, len(known)):
            return known[min(right, len(known) - 1)][1]
        (low, before), (high, after) = known[right - 1], known[right]
        return float(before + (after - before) * (at - low) / (high - low))


def _modelled_us(collective: Collective, size: int, where: Cluster) -> float:
    choice = nccl_choice(collective, size, build_topology(where))
    if choice is not None:
        return choice.time_us
    message = Message(
        collective=collective, dtype="uint8", size_bytes=size, group_size=where.world_size, spans_nodes=where.nodes > 1
    )
    return size * bus_factor(collective, where.world_size) / link_busbw_gbps(where, message) / 1e3


def recorded_cluster(workload: Workload) -> Cluster:
    """Return a stand-in for the cluster of a recording, whose own times correct every call on it.

    Its links only shape the curve between recorded sizes, and it has no network: nothing is predicted for other nodes.

    Raises:
        UsageError: the recording lacks its number of GPUs or the times of its calls.
    """
    if workload.provenance.world_size < 2 or not any(
        calls.recorded_us and calls.message.collective.is_tunable for calls in workload.messages
    ):
        raise UsageError(
            f"the recording of {workload.name} lacks the number of GPUs and the times of calls",
            hint="add --cluster NAME; `ncclt cluster list` shows the names",
        )
    return Cluster(
        name=RECORDING,
        gpus_per_node=workload.provenance.world_size,
        gpu="unknown GPU",
        compute_capability=80,
        link_class="nvlink",
        link_gbps=100.0,
        nccl_version="2.19.0",
    )


def call_times(workload: Workload, cluster: Cluster, measured: Mapping[CurveKey, Curve]) -> CallTimes:
    """Return the times of calls as a recording corrects them.

    A recorded call that took longer than a larger one waited for other ranks; the larger one's time counts for it.

    Args:
        workload: recorded with times, or without.
        cluster: where it was recorded, sized to the job.
        measured: see `CallTimes`.
    """
    plain = CallTimes(cluster=cluster, measured=measured, factors={})
    recorded: dict[Collective, dict[int, float]] = {}
    for calls in workload.messages:
        message = calls.message
        whole = message.group_size in (0, workload.provenance.world_size or 0, cluster.world_size)
        if calls.recorded_us and whole and message.collective.is_tunable:
            times = recorded.setdefault(message.collective, {})
            times[message.size_bytes] = min(calls.recorded_us, times.get(message.size_bytes, math.inf))
    factors: dict[Collective, Factors] = {}
    for collective, times in recorded.items():
        found, least_us = [], math.inf
        for size in sorted(times, reverse=True):
            least_us = min(least_us, times[size])
            if (curve_us := plain.time_us(collective, size)) > 0:
                found.append((math.log2(size), least_us / curve_us))
        if found:
            factors[collective] = tuple(sorted(found))
    # All_reduce first: its times stand in for collectives that were not recorded.
    return replace(plain, factors=dict(sorted(factors.items(), key=lambda one: one[0] is not Collective.ALL_REDUCE)))

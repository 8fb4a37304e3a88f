"""Job of a recording, times of its calls, its unknowns, and prediction of a change.

Times of calls come from a recording, or on a named cluster from studies and NCCL's cost model.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import NormalDist

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.profile.advice.step_model import Backward, Compute, even_backward, gpu_figures
from ncclt.profile.views.estimate import Curve, CurveKey, model_us, read_curve

Factors = tuple[tuple[float, float], ...]
"""(log2 of the size, ratio of the time to the curve) in order of size."""

RECORDING = "recording"
"""Name of the stand-in for the cluster of a recording."""

_IN_TRAINING = 1.3
"""Slowdown of a call in a training step against nccl-tests alone, see `Assumption.stretch`."""

_MODELLED = 2.0
"""Max usual error of bandwidths by nominal links and NCCL's model, as a factor (8 L40S: far more)."""

_OTHER_SHAPE = 1.5
"""Uncertainty of a correction from another number of nodes, as a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Times of calls of the whole job.

    Attributes:
        cluster: cluster sized to the job, or the stand-in for the cluster of a recording.
        measured: curves of the NCCL default on it, also for other numbers of nodes.
        factors: corrections of the curves by the job's own times, by collective.
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
        """Return the uncertainty of `time_us` as a factor, at least 1, in both directions.

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
            # Assume the same error of the model there.
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
    """Return the times of calls, corrected by a recording only where it was made.

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


_BACKWARD_SHARE = 2 / 3
"""Of forward and backward together: two operations forward and four backward per parameter (Narayanan et al. 2021)."""

_ADAM_BYTES = 28
"""Adam reads parameter, gradient and two moments and writes three of them, in float32: bytes per parameter."""

_STEPS = 0.01
"""Steps of one job differ by this at the least: median against 75th percentile of ResNet-101 on 4 to 16 GPUs (GPU
fabric preflight checks)."""

_UNKNOWN_MEMORY_GBPS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Assumptions of a prediction; its range spans the corners of them.

    Attributes:
        calls: -1, 0, 1: calls are as much shorter, or longer, as `CallTimes.spread` allows.
        memory: share of its nominal memory bandwidth that a GPU reaches in casts, copies and sums (BabelStream on
            A100: 0.85 to 0.9; PyTorch's kernels on strided or small tensors less).
        pace: -1, 0, 1: a shorter, the likely, a longer backward pass.
        stretch: how many times as long a call takes beside compute. An all_reduce of 128 MiB on 2 and 4 L40S and on 8
            A100 takes 1.0, 1.3 and 1.3 times as long beside little compute, on L40S 1.8 to 2.5 times beside much
            (CS244C-Research, phase 1).
        uneven: standard deviation of compute over the ranks, as a share of it. GPUs of one model differ by 8 % on
            average and 22 % at most (Sinha et al. 2022, Not all GPUs are created equal), taken as six deviations.
    """

    calls: int = 0
    memory: float = 0.85
    pace: int = 0
    stretch: float = 1.3
    uneven: float = 0.013


LIKELY = Assumption()
CORNERS = tuple(
    Assumption(calls=calls, memory=memory, pace=pace, stretch=stretch, uneven=uneven)
    for calls, memory, pace, stretch, uneven in product((-1, 1), (0.6, 0.95), (-1, 1), (1.0, 2.2), (0.0, 0.037))
)

Modelled = Callable[[Assumption, bool], float]
"""Time of a step, µs, as the model sees it; with True every call is free."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time of a step, µs: likely, at best, at worst."""

    step_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A job as it is.

    Attributes:
        workload: what it sends.
        cluster: where it runs, sized to it.
        times: of its calls.
        compute_us: of one step, without exposed communication.
        step_us: as recorded or given; None = only compute is known, and the step itself is a prediction.
        traced: the backward pass as recorded, None where it is not seen.
    """

    workload: Workload
    cluster: Cluster
    times: CallTimes
    compute_us: float
    step_us: float | None
    traced: Backward | None = None

    def call_us(self, collective: Collective, size_bytes: float, assumed: Assumption, where: Cluster) -> float:
        """Return the time of a call of the whole job on a cluster, µs."""
        time_us = self.times.time_us(collective, size_bytes, where)
        return time_us * self.times.spread(collective, size_bytes, where) ** assumed.calls

    def memory_us(self, touched_bytes: float, assumed: Assumption) -> float:
        """Return the time that a GPU takes to read and write so many bytes, µs."""
        figures = gpu_figures(self.cluster.gpu)
        gbps = figures[0] if figures else _UNKNOWN_MEMORY_GBPS * (1 + 2 * (assumed.memory - LIKELY.memory))
        return touched_bytes / (gbps * assumed.memory) / 1e3

    def backward(self, parameters: float, assumed: Assumption) -> Backward:
        """Return the backward pass: as traced, give or take a tenth, or at an even pace."""
        if self.traced is not None:
            factor = min(1 + 0.1 * assumed.pace, self.compute_us / self.traced.length_us)
            return Backward(knots=tuple((share, at * factor) for share, at in self.traced.knots))
        optimizer_us = min(self.memory_us(_ADAM_BYTES * parameters, assumed), self.compute_us / 4)
        likely_us = (self.compute_us - optimizer_us) * _BACKWARD_SHARE
        return even_backward({-1: self.compute_us / 2, 0: likely_us, 1: self.compute_us * 0.7}[assumed.pace])

    def waiting_us(self, assumed: Assumption, where: Cluster) -> float:
        """Return the time that a step waits for its slowest rank, µs: the expected maximum of the ranks (Blom 1958)."""
        ranks = where.world_size
        return self.compute_us * assumed.uneven * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))

    def sharded_compute(self, parameters: float, assumed: Assumption) -> Compute:
        """Return the compute of a step by pass, the forward pass half as long as the backward pass."""
        backward_us = self.backward(parameters, assumed).length_us
        forward_us = min(backward_us / 2, self.compute_us - backward_us)
        return Compute(forward_us, backward_us, self.compute_us - backward_us - forward_us)

    def predict(self, changed: Modelled, as_is: Modelled) -> Prediction:
        """Predict a step: the recorded one and the difference that the model sees, but never less than its compute.

        What the model misses in both, such as waiting for slow ranks, cancels.
        """

        def under(assumed: Assumption) -> float:
            if self.step_us is None:
                return changed(assumed, False)
            least = self.compute_us + changed(assumed, True) - as_is(assumed, True)
            return max(self.step_us + changed(assumed, False) - as_is(assumed, False), least)

        likely, corners = under(LIKELY), [under(assumed) for assumed in CORNERS]
        if self.step_us is not None and changed == as_is:
            return Prediction(likely, likely, likely)
        return Prediction(likely, min(likely, *corners) * (1 - _STEPS), max(likely, *corners) * (1 + _STEPS))


@dataclass(frozen=True, slots=True)
class AdvisedChange:
    """Something to try.

    Attributes:
        name: what is changed.
        code: the line that does it.
        modelled: the step with it; None where it cannot be predicted.
        why: why it cannot be predicted; else what else changes with it, empty = nothing.
        lossy: gradients are rounded: check the loss.
        prediction: None where it cannot be predicted, or is not yet.
    """

    name: str
    code: str = ""
    modelled: Modelled | None = None
    why: str = ""
    lossy: bool = False
    prediction: Prediction | None = None

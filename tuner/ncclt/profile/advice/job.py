"""A job as it is, what is not known of it, and the prediction of a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.workload import Workload
from ncclt.profile.advice.call_times import CallTimes
from ncclt.profile.advice.step_model import Backward, Compute, even_backward, gpu_figures

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

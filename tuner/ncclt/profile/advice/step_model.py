"""A training step as two streams, one that computes and one that communicates, and what a change does to it.

The communication of a step is serial: a bucket starts when its gradients are ready and the one before it is through.
What ends after the backward pass is exposed. Compute beside communication is slower, for NCCL's channels hold
multiprocessors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.workload import TimedCall
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology

_QUEUED_US = 20.0
"""A kernel that starts later than this after the one before it waited for its gradients, not for that kernel."""


_GPUS = {
    r"B[123]00|GB[23]00": (8000, 148),
    r"H200|GH200": (4800, 132),
    r"H[18]00.*PCIE": (2000, 114),
    r"H[18]00": (3350, 132),
    r"A[18]00.*40GB": (1555, 108),
    r"A[18]00.*64GB": (1640, 124),
    r"A[18]00": (2000, 108),
    r"L40": (864, 142),
    r"L4\b": (300, 58),
    r"A10G?\b": (600, 80),
    r"V100": (900, 80),
    r"T4\b": (320, 40),
    r"RTX 3090": (936, 82),
    r"RTX 4090": (1008, 128),
    r"RTX 5090": (1792, 170),
    r"MI355X": (8000, 256),
    r"MI325X": (6000, 304),
    r"MI300X": (5300, 304),
}
"""Memory bandwidth, 1e9 bytes/s, and multiprocessors: data sheets of the makers. First match counts."""


def gpu_figures(name: str) -> tuple[int, int] | None:
    """Return memory bandwidth, 1e9 bytes/s, and number of multiprocessors of a GPU by its name; None = not known.

    >>> gpu_figures("A100-SXM4-40GB")
    (1555, 108)
    """
    return next((figures for pattern, figures in _GPUS.items() if re.search(rf"\b(?:{pattern})", name)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Progress of a backward pass: gradients ready over time.

    Attributes:
        knots: (share of the gradients' bytes, µs after the backward pass began), both rising, from share 0 to 1.
    """

    knots: tuple[tuple[float, float], ...]

    @property
    def length_us(self) -> float:
        """Return the length of the backward pass, µs."""
        return self.knots[-1][1]

    def ready_us(self, share: float) -> float:
        """Return the time, µs from the start of the backward pass, at which a share of the gradients is ready."""
        for (low, before), (high, after) in pairwise(self.knots):
            if share <= high:
                return before + (after - before) * (share - low) / (high - low)
        return self.length_us


def even_backward(length_us: float) -> Backward:
    """Return a backward pass in which each byte of gradients takes as long as any other."""
    return Backward(knots=((0.0, 0.0), (1.0, length_us)))


def find_backward(gradients: Sequence[TimedCall], *, exposed_us: float, compute_us: float) -> Backward | None:
    """Return the backward pass that a recorded step shows; None where fewer than two moments of it can be seen.

    A bucket that found the stream free shows when its gradients were ready. The pass ends where the exposed
    communication begins. Before the first bucket the pace is that of the rest.

    Args:
        gradients: the all_reduces of the gradients, in order of time.
        exposed_us: exposed communication of the step, µs.
        compute_us: step without exposed communication, µs: no backward pass is longer.
    """
    total = sum(call.message.size_bytes for call in gradients)
    start_us = gradients[0].start_us if gradients else 0.0
    moments: list[tuple[float, float]] = []
    sent, free_us = 0, float("-inf")
    for call in gradients:
        sent += call.message.size_bytes
        if call.start_us > free_us + _QUEUED_US:
            moments.append((sent / total, call.start_us - start_us))
        free_us = max(free_us, call.start_us + call.duration_us)
    if not moments:
        return None
    if moments[-1][0] < 1:
        last_us = gradients[-1].start_us - start_us
        moments.append((1.0, min(last_us, max(moments[-1][1], free_us - start_us - exposed_us))))
    (first_share, _), (_, end_us) = moments[0], moments[-1]
    if len(moments) < 2 or end_us <= 0:
        return None
    ahead_us = end_us / (1 - first_share) * first_share
    if ahead_us + end_us > compute_us:
        ahead_us = max(0.0, compute_us - end_us)
    return Backward(knots=((0.0, 0.0), *((share, at + ahead_us) for share, at in moments)))


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Gradients that are sent together; all times in µs.

    Attributes:
        bytes: of the gradients, before any compression.
        call_us: on the stream of communication.
        before_us: extra work on the stream of compute, such as a cast, before it can be sent.
        after_us: extra work on its data once it has arrived.
    """

    bytes: float
    call_us: float
    before_us: float = 0.0
    after_us: float = 0.0


def ddp_us(
    buckets: Sequence[GradientBucket],
    backward: Backward,
    *,
    front_us: float,
    slowdown: float = 0.0,
    stretch: float = 1.0,
) -> float:
    """Return the time of a step under DDP, µs.

    Args:
        buckets: in the order in which they become ready.
        backward: the pass beside which they are sent.
        front_us: all compute outside of the backward pass.
        slowdown: share by which compute is slower beside communication, 0 to below 1.
        stretch: how many times as long a call takes beside compute, at least 1.
    """
    total = sum(bucket.bytes for bucket in buckets)
    clock = done = extra = sent = after_us = 0.0
    for bucket in buckets:
        sent += bucket.bytes
        extra += bucket.before_us
        wanted = backward.ready_us(min(1.0, sent / total)) + extra
        if done < wanted:
            clock, done = clock + wanted - done, wanted
        left_us = max(0.0, backward.length_us + extra - done)
        beside_us = min(bucket.call_us * stretch, left_us / (1 - slowdown))
        clock += beside_us + bucket.call_us - beside_us / stretch
        done += beside_us * (1 - slowdown)
        after_us = bucket.after_us
    return front_us + max(clock + after_us, clock + backward.length_us + extra - done)


@dataclass(frozen=True, slots=True)
class Unit:
    """One FSDP unit: time of its all_gather and of its reduce_scatter, µs."""

    gather_us: float
    reduce_us: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute of a step, µs: of the two passes, and of the optimizer and everything else."""

    forward_us: float
    backward_us: float
    rest_us: float

    @property
    def step_us(self) -> float:
        """Return the step without any communication, µs."""
        return self.forward_us + self.backward_us + self.rest_us


def fsdp_us(units: Sequence[Unit], compute: Compute, *, gathers_again: bool, stretch: float = 1.0) -> float:
    """Return the time of a step under FSDP, µs: one gather ahead, one stream for all communication of the group.

    Args:
        units: in the order of the forward pass; each takes the same share of compute.
        gathers_again: parameters are gathered for the backward pass too, but for the last unit's.
        stretch: how many times as long a call takes beside compute, at least 1.
    """
    step_us = _fsdp_us(units, compute, gathers_again)
    total = sum(unit.gather_us + unit.reduce_us for unit in units)
    total += sum(unit.gather_us for unit in units[:-1]) if gathers_again else 0.0
    if total <= 0 or stretch <= 1:
        return step_us
    hidden = max(0.0, 1 - (step_us - compute.step_us) / total)
    longer = 1 + (stretch - 1) * hidden
    slower = [Unit(unit.gather_us * longer, unit.reduce_us * longer) for unit in units]
    return _fsdp_us(slower, compute, gathers_again)


def _fsdp_us(units: Sequence[Unit], compute: Compute, gathers_again: bool) -> float:
    count = len(units)
    stream = clock = before = 0.0
    for unit in units:
        stream = max(stream, before) + unit.gather_us
        before, clock = clock, max(clock, stream) + compute.forward_us / count
    gathered = clock
    for number in reversed(range(count)):
        begun = max(clock, gathered)
        clock = begun + compute.backward_us / count
        if gathers_again and number:
            gathered = stream = max(stream, begun) + units[number - 1].gather_us
        stream = max(stream, clock) + units[number].reduce_us
    return max(clock, stream) + compute.rest_us


def slowdown_beside(cluster: Cluster, size_bytes: int) -> float:
    """Return the share of a GPU's multiprocessors that NCCL's channels hold during an all_reduce; at most a half."""
    figures = gpu_figures(cluster.gpu)
    if figures is None or cluster.world_size == 1:
        return 0.0
    choice = nccl_choice(Collective.ALL_REDUCE, size_bytes, build_topology(cluster))
    return min(0.5, choice.channels / figures[1]) if choice else 0.0

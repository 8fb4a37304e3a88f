"""Estimate of a step's computation and communication on a cluster, before anything runs there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message, bus_factor
from ncclt.core.trial import Measurement
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology

OPERATIONS = 6
"""Operations of the model per parameter and token of a training step: 2 forward and 4 backward (Narayanan et al. 2021,
section 5.1). Those of recomputed activations are not counted, as in model FLOP/s."""

_ELEMENT_BYTES = 8


TimeOrigin = Literal["measured", "nearest", "interpolated", "model"]
"""Origin of a message's time."""


@dataclass(frozen=True, slots=True)
class MessageTime:
    """One message of a step.

    Attributes:
        message: what is sent, with its group size.
        calls_per_step: how often.
        time_us: of one call, µs.
        source: where the time comes from.
        link_gbps: bus bandwidth that the links allow, 1e9 bytes/s.
    """

    message: Message
    calls_per_step: float
    time_us: float
    source: TimeOrigin
    link_gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A step on a cluster, all times in seconds.

    Attributes:
        messages: most time first.
        communication_s: of all messages one after the other.
        links_s: the same over rings: t = latency + S / B x bus factor, B the nominal bandwidth of the links.
        compute_s: computation of one step; None = not known.
        bus_bytes: size x bus factor of all calls: what has to pass each GPU's links in a step.
    """

    messages: tuple[MessageTime, ...]
    communication_s: float
    links_s: float
    compute_s: float | None
    bus_bytes: float

    @property
    def is_network_bound(self) -> bool | None:
        """Return True if communication takes longer than compute, so that it cannot all be hidden; None = not known."""
        return None if self.compute_s is None else self.communication_s > self.compute_s

    @property
    def bus_gbps(self) -> float:
        """Return the mean bus bandwidth of the step's communication, 1e9 bytes/s."""
        return self.bus_bytes / self.communication_s / 1e9 if self.communication_s else 0.0

    @property
    def turning_gbps(self) -> float | None:
        """Return the mean bus bandwidth at which communication takes as long as compute, 1e9 bytes/s."""
        return self.bus_bytes / self.compute_s / 1e9 if self.compute_s else None


def compute_seconds(*, parameters: float, tokens_per_step: float, gpus: int, tflops: float) -> float:
    """Return the compute time of one step of a dense transformer, s.

    Args:
        tokens_per_step: of the whole job: sequence length x global batch.
        gpus: that share the work.
        tflops: 1e12 operations/s of the model, see `OPERATIONS`, that one GPU sustains; commonly 40 % of its peak.

    Raises:
        UsageError: a figure is not above 0.
    """
    figures = {"--params": parameters, "--tokens-per-step": tokens_per_step, "--tflops": tflops}
    for option, value in figures.items():
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{option} must be above 0, not {value:g}")
    seconds = OPERATIONS * parameters * tokens_per_step / (gpus * tflops * 1e12)
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{parameters:g} parameters and {tokens_per_step:g} tokens at {tflops:g} TFLOP/s take {seconds:g} s",
            hint="give --params and --tokens-per-step in units, --tflops in 1e12 operations/s",
        )
    return seconds


def link_busbw_gbps(cluster: Cluster, message: Message) -> float:
    """Return the bus bandwidth that the nominal links leave to a message, 1e9 bytes/s.

    Rings enter and leave a node over all its ports at once, so over nodes the ports of a node are the limit; in
    all_to_all and send_recv each GPU has its own share of them. Groups side by side share the ports of their nodes.
    Trees can do better: between two nodes a byte crosses once there, and not 2 (n-1)/n times.
    """
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    link = cluster.link_gbps
    if cluster.link_class == "nvlink" and graph.per_node > 1:
        # Direct links: those to GPUs outside of the group stay idle.
        link *= (graph.per_node - 1) / max(1, cluster.gpus_per_node - 1)
    if graph.nodes == 1:
        return link
    per_gpu = cluster.nics_per_node * cluster.nic_gbps / cluster.gpus_per_node
    if message.collective in (Collective.ALL_TO_ALL, Collective.SEND_RECV):
        return min(link, per_gpu)
    ports = per_gpu * graph.per_node
    return min(link, ports) if graph.per_node > 1 else ports


def latency_us(cluster: Cluster, message: Message) -> float:
    """Return the latency of a call, µs: NCCL's own prediction for an element of 8 bytes.

    NCCL's cost model has no send_recv and no all_to_all: a broadcast in the same group stands for them.
    """
    modelled = message.collective not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)
    collective = message.collective if modelled else Collective.BROADCAST
    choice = nccl_choice(collective, _ELEMENT_BYTES, build_topology(cluster, message.group_size, message.spans_nodes))
    return choice.time_us if choice else 0.0


def model_us(cluster: Cluster, message: Message) -> float:
    """Return the time of a call by NCCL's cost model, µs; of send_recv and all_to_all latency and nominal links."""
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    choice = nccl_choice(message.collective, message.size_bytes, graph)
    if choice is not None:
        return choice.time_us
    carried = message.size_bytes * bus_factor(message.collective, graph.ranks)
    return latency_us(cluster, message) + carried / link_busbw_gbps(cluster, message) / 1e3


CurveKey = tuple[Collective, int, bool]
"""Collective, group size, whether the group spans nodes."""


class CurvePoint(NamedTuple):
    """Time of one size.

    Attributes:
        size_bytes: that was sent.
        time_us: of one call, µs.
        is_measured: False = interpolated between sizes that were measured.
    """

    size_bytes: int
    time_us: float
    is_measured: bool = True


Curve = tuple[CurvePoint, ...]
"""In order of size."""


def build_curves(measured: Iterable[Measurement]) -> dict[CurveKey, Curve]:
    """Return the median time by size of each kind of message; dtypes of one size count as one.

    A size has interpolated times only where no launch measured it.
    """
    times: dict[CurveKey, dict[int, list[Measurement]]] = {}
    for measurement in measured:
        if measurement.samples_us and measurement.time_us > 0:
            sizes = times.setdefault(_curve_key(measurement.sent), {})
            sizes.setdefault(measurement.sent.size_bytes, []).append(measurement)
    return {
        key: tuple(_build_point(size, measurements) for size, measurements in sorted(by_size.items()))
        for key, by_size in times.items()
    }


def _curve_key(message: Message) -> CurveKey:
    return message.collective, message.group_size, message.spans_nodes


def _build_point(size_bytes: int, measurements: Sequence[Measurement]) -> CurvePoint:
    measured = [measurement for measurement in measurements if not measurement.interpolated]
    time_us = statistics.median(measurement.time_us for measurement in measured or measurements)
    return CurvePoint(size_bytes, time_us, is_measured=bool(measured))


def estimate(
    workload: Workload, cluster: Cluster, *, compute_s: float | None = None, measured: Mapping[CurveKey, Curve]
) -> Estimate:
    """Estimate a step.

    Args:
        workload: placed on the cluster, so that every group size is known.
        cluster: sized to the job.
        compute_s: computation of one step, s; None = not known.
        measured: curves of the NCCL default there. Sizes on a curve are taken from it, those between two points
            log-log from both. Beyond its ends by no more than a benchmark rounds sizes, the end is taken; other sizes
            come from NCCL's cost model, like kinds without a curve.
    """
    rows: list[MessageTime] = []
    links_us = bus_bytes = 0.0
    for calls in workload.messages:
        message = calls.message
        if message.group_size == 1:
            continue  # a group of one sends nothing
        gbps = link_busbw_gbps(cluster, message)
        carried = message.size_bytes * bus_factor(message.collective, message.group_size)
        at_links_us = latency_us(cluster, message) + carried / gbps / 1e3
        curve = measured.get(_curve_key(message), ())
        on_curve = read_curve(curve, message.size_bytes, rounding=message.rounding_bytes)
        time_us, source = on_curve or (model_us(cluster, message), "model")
        rows.append(MessageTime(message, calls.calls_per_step, time_us, source, gbps))
        links_us += at_links_us * calls.calls_per_step
        bus_bytes += carried * calls.calls_per_step
    return Estimate(
        messages=tuple(sorted(rows, key=lambda row: -row.time_us * row.calls_per_step)),
        communication_s=sum(row.time_us * row.calls_per_step for row in rows) / 1e6,
        links_s=links_us / 1e6,
        compute_s=compute_s,
        bus_bytes=bus_bytes,
    )


def read_curve(curve: Sequence[CurvePoint], size_bytes: int, *, rounding: int = 0) -> tuple[float, TimeOrigin] | None:
    """Return the time of a size, µs, from a curve in order of size; None where the size lies beyond its ends.

    Args:
        curve: medians by size.
        rounding: bytes beyond an end at which the time of the end is still taken.
    """
    for left, right in pairwise(curve):
        if left.size_bytes < size_bytes < right.size_bytes:
            part = math.log(size_bytes / left.size_bytes) / math.log(right.size_bytes / left.size_bytes)
            return left.time_us * (right.time_us / left.time_us) ** part, "interpolated"
    point = min(curve, key=lambda point: abs(point.size_bytes - size_bytes), default=None)
    if point is None or abs(point.size_bytes - size_bytes) > rounding:
        return None
    if not point.is_measured:
        return point.time_us, "interpolated"
    return point.time_us, "measured" if point.size_bytes == size_bytes else "nearest"

"""What a preflight will cost, and the record of what came out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from ncclt.core.preflight import SEVERITY, ExpectedSize, Preflight
from ncclt.health.preflight.checkup import Checkup
from ncclt.health.preflight.elimination import pair_rounds
from ncclt.health.preflight.probes import Probes
from ncclt.health.preflight.request import PreflightRequest

_LAUNCH_S = 15.0
"""A launch on real nodes before one was timed: loading CUDA, connecting ranks (an estimate, not tested on a GPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCost:
    """How many launches a preflight takes.

    Attributes:
        healthy: where all is well.
        one_fault: about as many where one node is slow.
        launch_s: estimate of one, s.
        rounds: pairs of nodes that are launched whatever is found, disjoint ones together; only without `adaptive`.
    """

    healthy: int
    one_fault: int
    launch_s: float
    rounds: tuple[tuple[tuple[str, str], ...], ...] = ()


def cost(request: PreflightRequest, *, simulated: bool) -> PreflightCost:
    """Estimate what a preflight will cost; nothing is launched."""
    nodes = len(request.hosts)
    played = pair_rounds(request.plan, request.hosts) if nodes > 1 else None
    pairs = sum(map(len, played)) if played is not None else None
    # Three launches of all nodes, halving to groups of four, their partners, a repeat, and a look inside.
    adaptive = 3 * nodes // 2 if nodes <= 8 else 2 * math.ceil(math.log2(nodes / 4)) + 6
    inside = 2 if request.cluster.gpus_per_node > 1 else 0
    narrowing = 0 if request.quick else (adaptive if pairs is None else pairs) + 4 + inside
    alone = nodes if nodes > 1 and request.cluster.gpus_per_node > 1 else 0
    return PreflightCost(
        healthy=1 + (narrowing + alone if request.full else 0),
        one_fault=3 + narrowing + (alone if request.full else 0),
        launch_s=0.0 if simulated else _LAUNCH_S,
        rounds=tuple(tuple(pairs) for pairs in played or ()) if not request.quick else (),
    )


def preflight(
    request: PreflightRequest, probes: Probes, *, now: Callable[[], str], clock: Callable[[], float]
) -> Preflight:
    """Examine a fabric; whatever a launch does is a reading and never raised.

    Args:
        request: what to examine.
        probes: makes the launches and keeps their readings.
        now: ISO time.
        clock: seconds.
    """
    began, created = clock(), now()
    checkup = Checkup(request, probes)
    state = checkup.run()
    identity = f"{created}|{request.hosts}|{[reading.times_us for reading in probes.readings]}"
    return Preflight(
        id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        created=created,
        cluster=request.cluster.name,
        fingerprint=request.cluster.fingerprint().digest(),
        launcher=request.launcher,
        benchmark=request.benchmark,
        simulated=probes.simulated,
        hosts=request.hosts,
        gpus_per_node=request.cluster.gpus_per_node,
        source=request.expectation.source,
        expected=tuple(ExpectedSize(size_bytes=size, busbw_gbps=gbps) for size, gbps in request.expectation.sizes),
        tolerance=request.expectation.tolerance,
        state=state,
        findings=tuple(sorted(checkup.findings, key=lambda one: (SEVERITY.index(one.outcome), one.share))),
        readings=tuple(probes.readings),
        notes=(*request.notes, *checkup.notes),
        wall_s=clock() - began,
    )

"""A simulated fleet, and a preflight of it in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import Preflight
from ncclt.health.preflight.checkup import PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes, RunnerFor
from ncclt.health.preflight.simulated import parse_fault, simulated_runners

CLUSTER = Cluster(
    name="dgx",
    nodes=1,
    gpus_per_node=8,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=8,
    nic_gbps=25.0,
    gpudirect=True,
    nccl_version="2.28.9",
)
SIZES = (64, 1 << 30)


@pytest.fixture
def examine() -> Callable[..., Preflight]:
    """Return a caller: faults of a fleet in, the preflight out."""

    def run(
        weak: Sequence[str] = (),
        *,
        nodes: int = 8,
        cluster: Cluster = CLUSTER,
        given_gbps: float | None = None,
        sigma: float = 0.0,
        time_s: float | None = None,
        at_once: int = 1,
        runner_for: RunnerFor | None = None,
        **more,
    ) -> Preflight:
        sized = cluster.sized(nodes=nodes)
        hosts = tuple(f"n{index:02d}" for index in range(nodes))
        simulated = simulated_runners(sized, hosts, faults=[parse_fault(text) for text in weak], sigma=sigma)
        expected = expectation(sized, SIZES, tolerance=0.15, given_gbps=given_gbps)
        seconds = iter(range(10**6))
        probes = Probes(
            runner_for or simulated,
            expected,
            at_once=at_once,
            time_s=time_s,
            clock=lambda: float(next(seconds)),
        )
        request = PreflightRequest(
            cluster=sized,
            hosts=hosts,
            expectation=expected,
            sizes=SIZES,
            launcher="simulate",
            benchmark="simulated",
            **more,
        )
        return preflight(request, probes, now=lambda: "2026-01-01T00:00:00", clock=lambda: 0.0)

    return run

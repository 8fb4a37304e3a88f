"""A fleet with injected faults, and a preflight of it in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fleet import Fleet, parse_fault

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import Preflight
from ncclt.health.preflight.checkup import Depth, PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes, RunnerFor
from ncclt.store.shipped import profiles_folder, shipped_clusters

SIZES = (64, 1 << 30)


@pytest.fixture(scope="session")
def dgx() -> Cluster:
    return replace(shipped_clusters(profiles_folder())["dgx-a100"], cpu="intel", nccl_version="2.28.9")


@pytest.fixture
def examine(dgx) -> Callable[..., Preflight]:
    """Return a caller: faults of a fleet in, the preflight out."""

    def run(
        faults: Sequence[str] = (),
        *,
        nodes: int = 8,
        cluster: Cluster = dgx,
        given_gbps: float | None = None,
        sigma: float = 0.0,
        time_s: float | None = None,
        at_once: int = 1,
        runner_for: RunnerFor | None = None,
        **depth,
    ) -> Preflight:
        cluster = cluster.sized(nodes=nodes)
        hosts = tuple(f"n{index:02d}" for index in range(nodes))
        fleet = Fleet(cluster, [parse_fault(text) for text in faults], sigma=sigma)
        expected = expectation(cluster, SIZES, tolerance=0.15, given_gbps=given_gbps)
        seconds = iter(range(10**6))
        probes = Probes(
            runner_for or fleet.runner,
            expected,
            at_once=at_once,
            time_s=time_s,
            clock=lambda: float(next(seconds)),
        )
        request = PreflightRequest(
            cluster=cluster,
            hosts=hosts,
            expectation=expected,
            sizes=SIZES,
            launcher="ssh",
            benchmark="invented",
            depth=Depth(**depth),
        )
        return preflight(request, probes, now=lambda: "2026-01-01T00:00:00", clock=lambda: 0.0)

    return run

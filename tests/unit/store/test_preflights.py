"""Preflights are kept, and found newest first."""

from dataclasses import replace

import pytest
from fleet import Fleet, parse_fault

from ncclt.core.cluster import Cluster
from ncclt.errors import StoreError
from ncclt.health.preflight.checkup import SIZES, PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes

CLUSTER = Cluster(
    name="dgx",
    nodes=4,
    gpus_per_node=2,
    gpu="A100",
    compute_capability=80,
    link_class="nvswitch",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=2,
    nic_gbps=25.0,
    gpudirect=True,
    nccl_version="2.28.9",
)


def sample(id, *, weak=(), **changes):
    hosts = ("a", "b", "c", "d")
    fleet = Fleet(CLUSTER, [parse_fault(text) for text in weak])
    expected = expectation(CLUSTER, SIZES, tolerance=0.15)
    request = PreflightRequest(
        cluster=CLUSTER, hosts=hosts, expectation=expected, launcher="ssh", benchmark="nccl_tests"
    )
    probes = Probes(fleet.runner, expected, clock=lambda: 0.0)
    return replace(preflight(request, probes, now=lambda: "2026-01-01", clock=lambda: 0.0), id=id, **changes)


def test_what_is_kept_comes_back_whole(store):
    preflight = sample("p1", weak=["b=0.5", "c:1=timeout"])
    assert preflight.findings
    store.records.add_preflight(preflight)
    assert store.records.preflights() == (preflight,)


def test_the_newest_come_first_of_one_cluster_or_of_all(store):
    for id, cluster in (("p1", "dgx"), ("p2", "other"), ("p3", "dgx")):
        store.records.add_preflight(sample(id, cluster=cluster))
    assert [preflight.id for preflight in store.records.preflights(cluster="dgx")] == ["p3", "p1"]
    assert [preflight.id for preflight in store.records.preflights(limit=2)] == ["p3", "p2"]


def test_the_newest_20_are_found_unless_another_number_is_given(store):
    preflight = sample("p0")
    for number in range(22):
        store.records.add_preflight(replace(preflight, id=f"p{number}"))
    assert [preflight.id for preflight in store.records.preflights()] == [f"p{number}" for number in range(21, 1, -1)]


def test_one_is_stored_once(store):
    store.records.add_preflight(sample("p1"))
    store.records.add_preflight(sample("p1"))  # its answer may have been lost
    assert len(store.records.preflights()) == 1
    with pytest.raises(StoreError, match="already stored"):
        store.records.add_preflight(sample("p1", weak=["b=0.5"]))

"""What a preflight refuses, and what it says beforehand that it will cost."""

from dataclasses import replace
from itertools import pairwise

import pytest

from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError
from ncclt.health.preflight import SIZES, PreflightRequest, cost
from ncclt.health.preflight.expectation import expectation

CLUSTER = Cluster(
    name="dgx",
    nodes=4,
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


def request(nodes=4, cluster=CLUSTER, **more):
    sized = cluster.sized(nodes=nodes)
    expected = expectation(sized, SIZES, tolerance=0.15)
    values = {"hosts": tuple(f"n{index:03d}" for index in range(nodes)), **more}
    return PreflightRequest(cluster=sized, expectation=expected, launcher="slurm", benchmark="nccl_tests", **values)


@pytest.mark.parametrize(
    "more",
    [
        {"quick": True, "full": True},
        {"hosts": ("a", "b", "c")},
        {"hosts": ("a", "b", "c", "c")},
        {"plan": "tree"},
        {"nodes": 1, "cluster": replace(CLUSTER, gpus_per_node=1)},
    ],
)
def test_what_makes_no_sense_is_refused(more):
    with pytest.raises(UsageError):
        request(**more)


def test_the_sizes_are_one_sweep_of_nccl_tests():
    assert {later // earlier for earlier, later in pairwise(SIZES)} == {64}


@pytest.mark.parametrize("nodes", [8, 32, 128])
def test_the_estimate_is_near_what_one_slow_node_really_takes(examine, nodes):
    planned = cost(request(nodes), simulated=False)
    real = len(examine(["n03=0.6"], nodes=nodes).readings)
    assert planned.healthy == 1
    assert planned.one_fault / 1.6 < real < planned.one_fault * 1.6


def test_a_quick_one_is_at_most_three_launches():
    assert cost(request(quick=True), simulated=False).one_fault <= 3
    assert cost(request(quick=True, plan="all"), simulated=False).rounds == ()


def test_named_plans_say_their_rounds():
    planned = cost(request(8, plan="rotate:2"), simulated=False)
    assert [len(pairs) for pairs in planned.rounds] == [4, 4]
    assert planned.one_fault > 8

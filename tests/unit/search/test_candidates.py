"""Candidate policies without a measurement."""

import pytest

from ncclt.core.message import Collective
from ncclt.nccl.compile import compile_policy
from ncclt.search.candidates import propose_policies
from ncclt.store import open_store


@pytest.fixture
def job(tmp_path):
    """Return a workload and its cluster by names and size."""
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:

        def find(model, cluster, nodes, gpus):
            sized = store.clusters.get(cluster).sized(nodes=nodes, gpus_per_node=gpus, nccl_version=None)
            return store.workloads.get(model).placed(nodes=nodes, gpus_per_node=gpus), sized

        yield find


@pytest.mark.parametrize("by_table", [True, False])
def test_candidates_differ_from_each_other_and_from_the_default(job, by_table):
    workload, cluster = job("bert", "leonardo", 2, 4)
    found = propose_policies(workload, cluster, most=4, by_table=by_table, expressible=lambda _setting: True)
    assert len(found) == 4
    assert not any(policy.is_default for policy in found)
    compiled = [compile_policy(p, version=cluster.version, collectives=workload.collectives) for p in found]
    assert len(set(found)) == 4
    if not by_table:
        assert all(one.complete for one in compiled)
        assert len({one.variables for one in compiled}) == 4


def test_rules_of_a_table_name_algorithm_and_protocol(job):
    workload, cluster = job("bert", "leonardo", 2, 4)
    found = propose_policies(workload, cluster, most=4, by_table=True, expressible=lambda _setting: True)
    rules = [rule for policy in found for rule in policy.rules]
    assert {rule.collective for rule in rules} == {Collective.ALL_REDUCE}
    assert all(rule.algorithm and rule.protocol for rule in rules)


def test_fewer_are_proposed_on_request(job):
    workload, cluster = job("nasnetmobile", "dgx-a100", 1, 8)
    assert len(propose_policies(workload, cluster, most=1, by_table=True, expressible=lambda _setting: True)) == 1

"""Real places to measure: what fits together, and what is refused before anything starts."""

from dataclasses import replace

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.errors import UsageError
from ncclt.grounds import Place, cluster_here, launched_ground, on_cpus

CLUSTER = Cluster(
    name="pair", nodes=2, gpus_per_node=4, gpu="A100", compute_capability=80, link_class="nvlink", link_gbps=300,
    fabric="infiniband", nics_per_node=1, nic_gbps=25.0, nccl_version="2.27.3",
)  # fmt: skip
ONE = CLUSTER.sized(nodes=1)
ALL_REDUCE = frozenset({Collective.ALL_REDUCE})
GLOO = {"benchmark": "torch_collectives", "backend": "gloo"}


def ground(cluster=CLUSTER, *, environ=None, **place):
    given = Place(**({"launcher": "ssh", "reason": "test", "hosts": ("a", "b")} | place))
    return launched_ground(cluster, ALL_REDUCE, given, environ=environ or {"PATH": "/usr/bin:/bin"}, ask=False)


@pytest.mark.parametrize(
    ("cluster", "place", "said"),
    [
        (CLUSTER, {"launcher": "torchrun", "hosts": ()}, "this machine alone, not 2 nodes"),
        (CLUSTER, {"launcher": "local", "hosts": ()}, "this machine alone, not 2 nodes"),
        (CLUSTER, {"benchmark": "nccl_tests"}, "nccl-tests across them needs MPI"),
        (ONE, {"launcher": "local", "hosts": (), "benchmark": "torch_collectives"}, "one for each GPU"),
        (ONE, {"launcher": "local", "hosts": (), "beside": "gemm"}, "--beside goes with"),
        (ONE, {"launcher": "torchrun", "hosts": ("a",)}, "--hosts does not go with"),
        (CLUSTER, {"container": "image:1"}, "--container does not go with"),
        (CLUSTER, {"parallel": 2}, "need 4 nodes, 2 are named"),
        (CLUSTER, {"hosts": ("a",)}, "need 2 nodes, 1 are named"),
        (CLUSTER, {"launcher": "slurm", "hosts": (), "parallel": 2}, "need 4 nodes, none are named"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(cluster, place, said):
    with pytest.raises(UsageError, match=said):
        ground(cluster, **place)


def test_trials_at_once_run_on_disjoint_nodes():
    found = ground(ONE, hosts=("a", "b", "c"), parallel=3)

    runners = [found.runner, *found.others]
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=4)
    hosts = [[host for host in "abc" if f"'{host}'" in str(runner.plans(DEFAULT, [message]))] for runner in runners]
    assert len(runners) == 3
    assert len({str(runner.plans(DEFAULT, [message])) for runner in runners}) == 3, hosts
    assert any("3 trials at once" in note for note in found.notes)


def test_inherited_variables_are_named_and_removed_unless_they_are_wanted():
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=4)
    environ = {"PATH": "/usr/bin:/bin", "NCCL_ALGO": "Tree"}
    place = {"launcher": "torchrun", "hosts": ()}

    removed, kept = (ground(ONE, environ=environ, keep_env=keep, **place) for keep in (False, True))

    assert any("removed from every trial, the default's too: NCCL_ALGO" in note for note in removed.notes)
    assert removed.runner.plans(DEFAULT, [message])[0].unset_env == ("NCCL_ALGO",)
    assert any("kept in every trial" in note for note in kept.notes)
    assert kept.runner.plans(DEFAULT, [message])[0].unset_env == ()


def test_what_gloo_measures_never_stands_for_the_gpus_of_the_cluster():
    found = ground(**GLOO)

    assert found.runner.cluster == on_cpus(CLUSTER) == on_cpus(on_cpus(CLUSTER))
    assert found.runner.cluster.fingerprint() != CLUSTER.fingerprint()
    assert found.runner.cluster.name != CLUSTER.name
    assert "NCCL takes no part" in found.inert
    assert ground().inert == ""
    assert ground(replace(CLUSTER), backend="nccl").runner.cluster == CLUSTER


def test_without_a_cluster_only_cpus_can_be_measured():
    here = cluster_here(nodes=1, gpus_per_node=3, nccl_version=None, backend="gloo")
    assert (here.nodes, here.gpus_per_node, here.gpu) == (1, 3, "none (CPU, gloo)")
    with pytest.raises(UsageError, match="--cluster is needed"):
        cluster_here(nodes=1, gpus_per_node=2, nccl_version=None, backend="nccl")
    with pytest.raises(UsageError, match="several nodes need a --cluster"):
        cluster_here(nodes=2, gpus_per_node=2, nccl_version=None, backend="gloo")

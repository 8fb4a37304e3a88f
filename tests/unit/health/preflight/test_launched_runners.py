"""Runners of parts of a job: the nodes and GPUs that a launch is given."""

import pytest

from ncclt.errors import UsageError
from ncclt.health.preflight.probes import hosts_here, launched_runners
from ncclt.measure.target import Target
from ncclt.store.shipped import profiles_folder, shipped_clusters

CLUSTER = shipped_clusters(profiles_folder())["dgx-a100"].sized(nodes=4)
HOSTS = ("a", "b", "c", "d")


def place(launcher, **more):
    return Target(launcher=launcher, reason="", **more)


def test_hosts_are_those_that_are_named_those_of_the_allocation_or_this_machine():
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[01-04]", "SLURM_JOB_NUM_NODES": "4"}
    assert hosts_here(CLUSTER, place("ssh", hosts=(*HOSTS, "e")), environ={}) == HOSTS
    assert hosts_here(CLUSTER, place("slurm"), environ=environ) == ("n01", "n02", "n03", "n04")
    assert len(hosts_here(CLUSTER.sized(nodes=1), place("local"), environ={})) == 1


@pytest.mark.parametrize("where", [place("ssh"), place("mpirun", hosts=("a", "b")), place("kubernetes", hosts=HOSTS)])
def test_too_few_names_and_places_that_choose_themselves_are_refused(where):
    with pytest.raises(UsageError):
        hosts_here(CLUSTER, where, environ={})


def test_a_pair_of_nodes_gets_a_runner_of_its_own_size():
    runner_for, _ = launched_runners(CLUSTER, place("ssh", hosts=HOSTS), environ={})
    runner = runner_for(("b", "d"), ())
    assert (runner.cluster.nodes, runner.cluster.gpus_per_node, runner.simulated) == (2, 8, False)
    assert callable(runner.kill)
    assert runner_for(("b",), (2, 5)).cluster.gpus_per_node == 2


@pytest.mark.parametrize(
    ("inherited", "visible"), [("", "1,2"), ("4,5,6,7", "5,6"), ("GPU-a,GPU-b,GPU-c", "GPU-b,GPU-c")]
)
def test_gpus_count_among_those_that_are_visible_here(inherited, visible):
    from ncclt.health.preflight.probes import _list_visible

    environ = {"CUDA_VISIBLE_DEVICES": inherited} if inherited else {}
    assert _list_visible((1, 2), place("local"), environ) == visible
    assert _list_visible((1, 2), place("ssh"), environ) == "1,2"

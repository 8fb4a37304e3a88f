"""A cluster: what cannot be one is refused, and the part of it that a job uses."""

from dataclasses import replace

import pytest

from ncclt.core.cluster import Cluster
from ncclt.errors import InputError, UsageError
from ncclt.testing.samples import sample_cluster

HALL = replace(sample_cluster("hall", nodes=4), gpus_per_node=8, gpu="H100", link_class="nvswitch")


def test_what_cannot_be_a_cluster_is_refused(subtests):
    for wrong in [
        {"link_class": "string"},
        {"fabric": "smoke"},
        {"link_gbps": 0.0},
        {"link_gbps": -1.0},
        {"fabric": "none"},
        {"nics_per_node": 0},
        {"nic_gbps": 0.0},
    ]:
        with subtests.test(wrong=wrong), pytest.raises(InputError):
            replace(HALL, **wrong)


def test_entries_of_earlier_versions_are_ignored():
    document = {**HALL.to_document(), "gpu_path": "NODE", "calibration": {"constants": []}}
    assert Cluster.from_document(document) == HALL
    with pytest.raises(InputError, match="unknown field 'gpu_road'"):
        Cluster.from_document({**document, "gpu_road": "NODE"})


@pytest.mark.parametrize("name", ["nodes", "gpus_per_node"])
def test_a_cluster_has_one_to_a_million_nodes_and_gpus_per_node(name):
    assert getattr(replace(HALL, **{name: 10**6}), name) == 10**6
    for wrong in (0, 10**6 + 1):
        with pytest.raises(UsageError, match="1 to 1,000,000 nodes, and GPUs per node"):
            replace(HALL, **{name: wrong})
    assert HALL.sized(nodes=10**6).nodes == 10**6
    for nodes in (-2, 0, 10**6 + 1):
        with pytest.raises(UsageError, match=f"^--nodes must be 1 to 1,000,000, not {nodes}$"):
            HALL.sized(nodes=nodes)


def test_what_a_cluster_does_not_say_is_one_node_without_a_network():
    alone = Cluster(
        name="box",
        gpus_per_node=1,
        gpu="A100",
        compute_capability=80,
        link_class="pcie",
        link_gbps=0.5,
        nccl_version="2.28.9",
    )
    assert (alone.world_size, alone.fabric, alone.nics_per_node, alone.nic_gbps) == (1, "none", 0, 0.0)
    assert not alone.gpudirect


def test_the_digest_of_a_fingerprint_stays_the_same_in_every_release_and_driver():
    """Stores count revisions by it."""
    assert HALL.fingerprint().digest() == "00ee2d97aa6b"
    assert replace(HALL, driver="570.1").fingerprint().digest() == "00ee2d97aa6b"
    assert replace(HALL, topology_hash="t").fingerprint().digest() != "00ee2d97aa6b"


def test_one_node_needs_no_network():
    alone = replace(HALL, nodes=1, fabric="none", nics_per_node=0, nic_gbps=0.0)
    assert alone.fingerprint().fabric == "none"
    with pytest.raises(UsageError, match="has 2 nodes and no network"):
        alone.sized(nodes=2)


def test_the_fabric_is_part_of_the_fingerprint_from_two_nodes_on():
    assert HALL.sized(nodes=2).fingerprint().fabric == "infiniband"
    assert HALL.sized(nodes=1).fingerprint().fabric == "none"


def test_a_job_uses_a_part_of_each_node_and_as_many_nodes_as_it_likes():
    part = HALL.sized(nodes=5, gpus_per_node=8, nccl_version="2.30")
    assert (part.nodes, part.gpus_per_node, part.world_size) == (5, 8, 40)
    assert part.nccl_version == "2.30.0" == part.fingerprint().nccl_version
    assert HALL.sized() == HALL
    assert HALL.sized(gpus_per_node=1).world_size == 4


@pytest.mark.parametrize("wrong", [{"gpus_per_node": 0}, {"gpus_per_node": 9}], ids=str)
def test_a_part_that_is_none_or_more_than_a_node_is_refused(wrong):
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        HALL.sized(**wrong)


def test_a_recorded_system_is_named_once_and_with_its_source():
    recorded = replace(HALL, description="eight H100", sources=("a page", "another"))
    assert recorded.recorded_label == "recorded: eight H100, a page"
    assert replace(recorded, description="", sources=()).recorded_label == "recorded: hall"


def test_a_fingerprint_names_every_difference_but_what_one_side_does_not_know():
    mine = replace(HALL, topology_hash="t", driver="570.1").fingerprint()
    assert mine.mismatches(mine) == mine.mismatches(HALL.fingerprint()) == HALL.fingerprint().mismatches(mine) == ()
    other = replace(HALL, gpu="H200", topology_hash="u", driver="580.1").fingerprint()
    assert mine.mismatches(other) == (
        "gpu: measured on H100, asked for H200",
        "topology_hash: measured on t, asked for u",
        "driver: measured on 570.1, asked for 580.1",
    )


def test_a_recorded_cluster_is_tuned_in_its_own_shape_alone():
    asked = {"nodes": None, "gpus_per_node": None, "nccl_version": None}
    assert HALL.as_recorded(**asked) is HALL
    assert HALL.as_recorded(nodes=4, gpus_per_node=8, nccl_version="2.28.9") is HALL
    for other, said in (
        ({"nodes": 2}, "hall was recorded with --nodes 4, not 2 (hall is a recorded cluster)"),
        ({"gpus_per_node": 4}, "hall was recorded with --gpus-per-node 8, not 4 (hall is a recorded cluster)"),
        ({"nccl_version": "2.30", "why": "replayed"}, "hall was recorded with --nccl-version 2.28.9, not 2.30.0 (repl"),
    ):
        with pytest.raises(UsageError) as refused:
            HALL.as_recorded(**(asked | other))
        assert refused.value.message.startswith(said)

"""A cluster made from what was seen; what cannot be seen is asked for."""

from pathlib import Path

import pytest

from ncclt.errors import UsageError
from ncclt.health.doctor import Facts
from ncclt.health.doctor.cluster_draft import draft_cluster
from ncclt.health.doctor.facts import Adapter
from ncclt.health.doctor.files import facts_of_files
from ncclt.health.doctor.matrix import parse_matrix

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "doctor"


def _saved(case, *names):
    return facts_of_files([GOLDEN / case / name for name in names])


def test_a_whole_node_with_its_log_needs_no_help():
    facts = _saved("healthy_h100", "topo.txt", "gpus.xml", "nccl.log")
    drafted = draft_cluster("mine", facts, {})

    assert (drafted.gpu, drafted.compute_capability, drafted.gpus_per_node) == ("H100-80GB-HBM3", 90, 8)
    assert (drafted.link_class, drafted.link_gbps) == ("nvswitch", 450.0)
    assert (drafted.fabric, drafted.nics_per_node, drafted.nic_gbps, drafted.gpudirect) == ("infiniband", 4, 50.0, True)
    assert (drafted.nodes, drafted.cpu, drafted.nccl_version) == (2, "intel", "2.30.7")
    assert drafted.topology_hash == facts.matrices[0].topology_hash()
    assert drafted.driver == facts.gpu_reports[0].driver != ""
    assert drafted.sources == ("ncclt doctor: topo.txt", "ncclt doctor: gpus.xml", "ncclt doctor: nccl.log")


def test_everything_that_is_missing_is_named_at_once():
    with pytest.raises(UsageError) as refused:
        draft_cluster("mine", _saved("sockets_a100", "topo.txt"), {})

    assert "gpu, compute_capability, link_class, link_gbps, fabric, cpu, nccl_version" in refused.value.message
    assert "--set gpu=..." in refused.value.hint


def test_direct_links_and_switches_are_told_apart_by_the_model():
    """Four lanes to each of three peers are all that an A100 has; twelve to each of seven need a switch."""
    given = {"gpu": "A100-SXM4-64GB", "cpu": "intel", "nccl_version": "2.22.3", "fabric": "none"}

    direct = draft_cluster("mine", _saved("sockets_a100", "topo.txt"), given)
    assert (direct.link_class, direct.link_gbps) == ("nvlink", 300.0)


def test_two_gpus_with_all_lanes_may_be_either():
    pair = parse_matrix(["\tGPU0\tGPU1\tCPU Affinity", "GPU0\tX\tNV12\t0", "GPU1\tNV12\tX\t0"], "topo.txt")
    given = {"gpu": "A100-SXM4-80GB", "cpu": "amd", "nccl_version": "2.28.9"}

    with pytest.raises(UsageError, match="link_class cannot be seen"):
        draft_cluster("mine", Facts(matrices=(pair,)), given)
    assert draft_cluster("mine", Facts(matrices=(pair,)), given | {"link_class": "nvlink"}).fabric == "none"


def test_the_network_of_this_machine():
    facts = _saved("sockets_a100", "topo.txt")
    adapters = (Adapter(name="mlx5_0", link_layer="Ethernet", gbps=12.5),)
    given = {"gpu": "A100-SXM4-64GB", "cpu": "intel", "nccl_version": "2.22.3", "gpudirect": "false"}

    drafted = draft_cluster("mine", Facts(matrices=facts.matrices, adapters=adapters), given)
    assert (drafted.fabric, drafted.nics_per_node, drafted.nic_gbps) == ("roce", 1, 12.5)


@pytest.mark.parametrize("text", ["none_such=1", "gpudirect=maybe", "nic_gbps=fast", "nodes=1.5"])
def test_wrong_fields_and_values_are_refused(text):
    field, _, value = text.partition("=")

    with pytest.raises(UsageError):
        draft_cluster("mine", Facts(), {field: value})

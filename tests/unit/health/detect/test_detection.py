"""A cluster made from what was seen; what cannot be seen is asked for."""

import os
from pathlib import Path

import pytest

from ncclt.core.cluster_file import parse_cluster_toml
from ncclt.errors import InputError, UsageError
from ncclt.health.detect.detection import detect
from ncclt.health.doctor import Facts
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.files import read_files
from ncclt.health.doctor.matrix import parse_matrix

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
COMMAND = "ncclt cluster detect"
NODE = {"cpu": "amd", "nccl_version": "2.28.9"}


def _saved(case, *names):
    folder = GOLDEN / case
    return read_files([folder / name for name in names] or [p for p in folder.iterdir() if p.suffix != ".toml"])


CASES = {
    "dgx_a100": {},
    "h100_sxm": {"gpudirect": "true", "cpu": "intel", "nccl_version": "2.27.5"},
    "l40s_two_sockets": {"gpudirect": "false"},
    "v100_mesh": {"gpudirect": "true", "cpu": "intel", "nccl_version": "2.18.3"},
    "a6000_bridge": NODE,
}
"""Folder -> what cannot be seen there."""


def test_the_written_file(subtests):
    for case in CASES:
        with subtests.test(case=case):
            found = detect([_saved(f"cluster/{case}")], CASES[case])
            made = found.cluster(COMMAND)
            text = found.toml(made)

            path = GOLDEN / "cluster" / case / "cluster.toml"
            if os.environ.get("NCCLT_UPDATE_GOLDEN"):
                path.write_text(text)
            assert text == path.read_text()
            assert parse_cluster_toml(text, "it") == made
            # What cannot be seen is asked for, and nothing else.
            assert set(detect([_saved(f"cluster/{case}")], {}).missing) == set(CASES[case])


def test_everything_that_is_missing_is_named_at_once_with_units_and_the_next_command():
    found = detect([_saved("doctor/sockets_a100", "topo.txt")], {}, name="mine")
    with pytest.raises(UsageError) as refused:
        found.cluster(COMMAND)

    assert found.missing == ("gpu", "fabric", "nic_gbps", "gpudirect", "cpu", "nccl_version")
    assert "could not detect 6 fields of mine:" in refused.value.message
    assert "\n  nic_gbps            of one port, one direction: '400 Gb/s' or '50 GB/s'" in refused.value.message
    assert refused.value.hint.endswith(
        "ncclt cluster detect --set gpu=... --set fabric=... --set nic_gbps=... --set gpudirect=... --set cpu=... "
        "--set nccl_version=..."
    )


def test_nodes_that_differ_are_named():
    found = detect([_saved("cluster/nodes_differ")], NODE | {"fabric": "none"})

    assert found.contradictions == (
        "gpus_per_node is 8 (node1-gpus.xml; node1-topo.txt), 6 (node2-gpus.xml; node2-topo.txt)",
    )
    assert [note.split(" is ")[0] for note in found.notes] == ["driver", "topology_hash"]
    with pytest.raises(UsageError, match="sources disagree: gpus_per_node is 8"):
        found.cluster(COMMAND)
    chosen = detect([_saved("cluster/nodes_differ")], NODE | {"fabric": "none", "nodes": "1", "gpus_per_node": "6"})
    assert (chosen.cluster(COMMAND).gpus_per_node, chosen.cluster(COMMAND).driver) == (6, "")


def test_sources_that_contradict_each_other_are_named():
    """The network devices are InfiniBand, and the job used sockets."""
    job = _saved("doctor/sockets_a100", "node1.log")
    ports = Facts(adapters=(Adapter(name="mlx5_0", link_layer="InfiniBand", gbps=25.0),))

    (said,) = [text for text in detect([job, ports], {}).contradictions if text.startswith("fabric")]
    assert said == "fabric is ethernet (node1.log: Using network Socket), infiniband (/sys/class/infiniband)"
    # NCCL rounds what it reads: 25 GB/s in its log.
    rounded = Facts(adapters=(Adapter(name="mlx5_0", link_layer="InfiniBand", gbps=24.2),))
    assert detect([_saved("cluster/dgx_a100", "nccl.log"), rounded], {}).contradictions == ()


def test_the_fastest_kind_of_port_counts_and_the_others_are_named():
    ports = (
        *(Adapter(name=f"mlx5_{n}", link_layer="InfiniBand", gbps=50.0) for n in range(4)),
        Adapter(name="mlx5_4", link_layer="Ethernet", gbps=12.5),
        Adapter(name="mlx5_5", link_layer="InfiniBand", gbps=50.0, active=False),
    )
    found = detect([Facts(adapters=ports)], {}).fields

    assert (found["fabric"].value, found["nics_per_node"].value, found["nic_gbps"].value) == ("infiniband", 4, 50.0)
    assert found["nics_per_node"].source == (
        "/sys/class/infiniband: 4 x 50 GB/s (400 Gb/s), mlx5_0 to mlx5_3; not counted: 1 x 12.5 GB/s (100 Gb/s), mlx5_4"
    )


def test_two_gpus_with_all_lanes_may_be_either_unless_the_board_says(subtests):
    for gpu, lanes, link_class in [
        ("A100-SXM4-80GB", 12, None),
        ("A100-PCIE-40GB", 12, "nvlink"),
        ("H100-NVL", 12, "nvlink"),
        ("V100", 2, "nvlink"),
    ]:
        with subtests.test(gpu=gpu, lanes=lanes, link_class=link_class):
            rows = ["\tGPU0\tGPU1\tCPU Affinity", f"GPU0\tX\tNV{lanes}\t0", f"GPU1\tNV{lanes}\tX\t0"]
            found = detect([Facts(matrices=(parse_matrix(rows, "topo.txt"),))], NODE | {"gpu": gpu})

            assert (found.fields["link_class"].value if link_class else None) == link_class
            assert ("link_class" in found.missing) == (link_class is None)


def test_nvlink_pairs_that_do_not_join_all_gpus_are_not_nvlink():
    """Two bridged pairs: between them data takes PCIe."""
    word = lambda a, b: "X" if a == b else "NV4" if a // 2 == b // 2 else "SYS"  # noqa: E731
    rows = [f"GPU{a}\t" + "\t".join(word(a, b) for b in range(4)) + "\t0" for a in range(4)]
    rows.insert(0, "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity")
    found = detect([Facts(matrices=(parse_matrix(rows, "topo.txt"),))], NODE | {"gpu": "RTX A6000"})

    assert found.missing == ("link_class", "link_gbps")


def test_a_log_alone_shows_the_switch():
    found = detect([_saved("cluster/dgx_a100", "nccl.log")], {"gpu": "A100-SXM4-80GB"}).fields

    assert (found["link_class"].value, found["link_gbps"].value) == ("nvswitch", 300.0)
    assert (found["nodes"].value, found["gpus_per_node"].value) == (4, 8)


def test_several_nodes_are_not_said_to_have_no_network():
    pair = parse_matrix(["\tGPU0\tGPU1\tCPU Affinity", "GPU0\tX\tNV18\t0", "GPU1\tNV18\tX\t0"], "topo.txt")

    assert "fabric" in detect([Facts(matrices=(pair,))], {"nodes": "2"}).missing
    assert detect([Facts(matrices=(pair,))], {}).fields["fabric"].value == "none"


def test_wrong_fields_and_values_are_refused(subtests):
    for text in ["none_such=1", "gpudirect=maybe", "nic_gbps=fast", "nodes=1.5", "cpu=...", "nic_gbps=400", "name=x"]:
        with subtests.test(text=text):
            field, _, value = text.partition("=")

            with pytest.raises(UsageError):
                detect([Facts()], {field: value})


def test_both_directions_of_nvlink_are_refused():
    given = CASES["h100_sxm"] | {"link_gbps": "900 GB/s"}
    with pytest.raises(InputError, match="carry 450 GB/s at most") as refused:
        detect([_saved("cluster/h100_sxm")], given).cluster(COMMAND)
    assert refused.value.hint.startswith("did you mean 450 GB/s?")

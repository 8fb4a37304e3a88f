"""Logs that nobody here wrote, against what was read in them by eye."""

import pytest

from ncclt.health.detect.detection import detect
from ncclt.health.doctor.examine import examine_files

pytestmark = pytest.mark.shared


def test_two_h100_of_a_larger_node(shared_data):
    """NCCL 2.29.2 in a container without adapters: sockets are loaded and not used."""
    diagnosis = examine_files([shared_data / "traces/nccl_log/wayne_tuning_2.29.2_g2_auto.log"])
    log = diagnosis.facts.log

    assert (str(diagnosis.facts.nccl), log.gpu_models) == ("2.29.2", ("NVIDIA H100 80GB HBM3",))
    assert [(s.rank, s.ranks, s.nodes, s.channels["coll"], s.bus_id, s.complete) for s in log.starts] == [
        (1, 2, 1, 24, "44000", True),
        (0, 2, 1, 24, "41000", True),
    ]
    assert log.transports() == {"P2P/direct pointer": 48}
    assert log.disabled()["AllReduce"] == ["CollNetDirect", "CollNetChain", "NVLSTree"]
    assert [process.name for process in log.processes] == ["38dcf168f605:1343"]
    assert [finding.id for finding in diagnosis.findings] == ["VER001"]


def test_two_ranks_on_one_board(shared_data):
    """NCCL 2.29.7 with NCCL_P2P_DISABLE=1 and the cost table, without lines of a start."""
    diagnosis = examine_files([shared_data / "traces/nccl_log/eunomia_tuning_2.29.7.log"])

    assert diagnosis.facts.log.gpu_models == ("NVIDIA GeForce RTX 5090",)
    assert diagnosis.facts.log.disabled()["AllGather"] == ["CollNetDirect", "NVLS"]
    assert [finding.id for finding in diagnosis.findings] == ["ENV006", "LOG002"]
    assert diagnosis.findings[0].evidence[0].text.endswith("NCCL INFO NCCL_P2P_DISABLE set by environment to 1")


def test_every_public_log_is_read(shared_data):
    """Also those of RCCL, of Ray, and of calls alone; what they do not tell is said, not invented."""
    logs = sorted((shared_data / "traces/nccl_log").rglob("*.log"))
    logs += sorted((shared_data / "nccl-tests").glob("superbench_*.log"))
    assert len(logs) >= 15
    for path in logs:
        diagnosis = examine_files([path])
        assert diagnosis.facts.log.lines > 0, path
        assert not diagnosis.blocking, path
        told = diagnosis.facts.log.tells_starts
        assert told != any(finding.id == "LOG002" for finding in diagnosis.findings), path


def test_a_network_error_is_shown(shared_data):
    (found, *_) = examine_files(
        [shared_data / "traces/nccl_log/issues/NVIDIA_nccl_531_allgather_int8_16ranks.log"]
    ).findings

    assert found.id == "LOG001"
    assert "collective mismatch error local size 32768" in found.evidence[0].text


FIELD = [
    (
        "05a_tuner_without_symbol.log",
        "PLG001",
        "/opt/site/libnccl-net-site.so was requested and is not loaded: Failed to",
    ),
    ("05b_tuner_not_found.log", "PLG001", "/opt/site/libtuner.so was requested and is not loaded: Could not find"),
    ("07_net_plugin_sets_proto.log", "PLG002", "NCCL_PROTO=simple is set inside the process, which takes LL and LL128"),
    ("08_pci_link_unknown.log", "TOP011", "the PCIe link to PCI/0-41000 is taken for 0.2 GB/s (others 48)"),
    ("10_nps4_topo.txt", "TOP007", "GPU1 reaches every NIC across NUMA nodes (SYS)"),
]


def test_input_from_the_field_is_diagnosed(subtests, shared_data):
    """One warning that says what is wrong, and exit code 4 with what was not examined."""
    for name, rule, what in FIELD:
        with subtests.test(name=name, rule=rule, what=what):
            diagnosis = examine_files([shared_data / "field" / name])
            (finding,) = [found for found in diagnosis.findings if found.severity != "info"]

            assert (finding.id, finding.severity, diagnosis.verdict) == (rule, "warning", "degraded")
            assert what in finding.what
            assert "were not examined" in diagnosis.summary


def test_dumped_topology_is_read(shared_data):
    """By the doctor and by detection: PCIe 5 x16, 18 NVLinks to NVSwitch, one NIC of 400 Gb/s with GPUDirect, AMD."""
    diagnosis = examine_files([shared_data / "field/11_nccl_topology_dump.xml"])
    (topology,) = diagnosis.facts.topologies
    (gpu,), (nic,) = topology.gpus, topology.nics

    assert (str(gpu.link), gpu.link.gbps, gpu.nvlinks, gpu.compute_capability) == ("PCIe 5 x16", 48.0, 18, 90)
    assert (nic.name, nic.gbps, nic.gpudirect, topology.cpu) == ("mlx5_0", 50.0, True, "amd")
    assert diagnosis.findings == ()
    seen = {field: row.value for field, row in detect([diagnosis.facts], {}).fields.items()}
    assert seen == {
        "nodes": 1,
        "gpus_per_node": 1,
        "compute_capability": 90,
        "link_class": "nvswitch",
        "link_gbps": 450.0,
        "fabric": "infiniband",
        "nics_per_node": 1,
        "nic_gbps": 50.0,
        "gpudirect": True,
        "cpu": "amd",
    }

"""NCCL's dumped topology: what it shows, and files that are no such thing."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import InputError
from ncclt.health.detect.detection import detect
from ncclt.health.doctor import Facts
from ncclt.health.doctor.examine import examine_files
from ncclt.health.doctor.nccl_topology import is_nccl_topology, parse_nccl_topology

GPU = '<gpu dev="{0}" sm="80" rank="{0}" gdr="1">{1}</gpu>'
PCI = '<pci busid="0000:0{0}:00.0" class="{1}" link_speed="16.0 GT/s PCIe" link_width="16">{2}</pci>'
PEER = '<nvlink target="0000:0{0}:00.0" count="4" tclass="0x030200"/>'


def topology(*devices):
    return f'<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">{"".join(devices)}</cpu></system>'


def parse(text):
    content = text if isinstance(text, bytes) else text.encode()
    return parse_nccl_topology(io.BytesIO(content), "topo.xml")


def nic(name, device_class, speed=100_000):
    return PCI.format(9, device_class, f'<nic><net name="{name}" dev="0" speed="{speed}" port="1" gdr="0"/></nic>')


TWO = [PCI.format(n, "0x030200", GPU.format(n, PEER.format(1 - n))) for n in (0, 1)]


@pytest.mark.parametrize(
    ("name", "device_class", "fabric"),
    [("mlx5_0", "0x020700", "infiniband"), ("mlx5_0", "0x020000", "roce"), ("rdmap16s27", "0x020000", "efa")],
)
def test_fabric_follows_from_the_nic(name, device_class, fabric):
    found = parse(topology(*TWO, nic(name, device_class)))
    seen = detect([Facts(topologies=(found,), adapters=found.adapters)], {}).fields

    assert (seen["fabric"].value, seen["nic_gbps"].value, seen["gpudirect"].value) == (fabric, 12.5, False)
    assert (seen["link_class"].value, seen["link_gbps"].value) == ("nvlink", 100.0)
    assert (seen["gpus_per_node"].value, seen["cpu"].value) == (2, "intel")
    sockets = parse(topology(*TWO, nic("eth0", "0x020000", 10_000)))
    assert (sockets.adapters, [(port.name, port.gbps) for port in sockets.nics]) == ((), [("eth0", 1.25)])


def test_damaged_topology_is_refused(subtests):
    for text, said in [
        (topology(*TWO)[:-30], "cut off"),
        (topology(nic("mlx5_0", "0x020700")), "lists no GPU"),
        (f'<!DOCTYPE x [<!ENTITY a "a">]>{topology(*TWO)}', "entities"),
        ("<system>" + "<cpu>" * 100, "nested deeper or longer"),
    ]:
        with subtests.test(text=text, said=said):
            with pytest.raises(InputError, match=said) as refused:
                parse(text)
            assert "NCCL_TOPO_DUMP_FILE" in refused.value.hint or said == "entities"


def test_graphs_are_refused_by_name(tmp_path):
    """The other file that NCCL dumps; the hint names the variable that dumps this one."""
    (tmp_path / "graphs.xml").write_text('<graphs version="1"><graph id="0" pattern="4" crossnic="0"/></graphs>')
    with pytest.raises(InputError, match="not its topology") as refused:
        examine_files([tmp_path / "graphs.xml"])

    assert refused.value.hint == "run a job with NCCL_TOPO_DUMP_FILE=FILE"


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content):
    text = topology(*TWO).encode()
    for damaged in (content, text[:60] + content + text[60:]):
        is_nccl_topology(damaged)
        with contextlib.suppress(InputError):
            assert parse(damaged).gpus

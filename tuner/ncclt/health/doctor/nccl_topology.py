"""The topology of a node as NCCL detected it: the file that NCCL_TOPO_DUMP_FILE names (graph/xml.h, graph/xml.cc)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import IO, Any

from ncclt.errors import InputError
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.gpu_report import read_elements

COMMAND = "NCCL_TOPO_DUMP_FILE=FILE"

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s -> generation."""

_UNKNOWN_GENERATION, _UNKNOWN_WIDTH = 3, 16
"""NCCL's guess where Linux shows none: PCIe 3 x16."""

_NVSWITCH_CLASS, _INFINIBAND_CLASS = "0x0680", "0x0207"
_RDMA = re.compile(r"(mlx|bnxt_re|irdma|qedr|hns|roce)")
CPU_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLink:
    """The PCIe link of a device.

    Attributes:
        bus_id: of the device.
        speed_gts: per lane; 0 = Linux shows none.
        width: lanes; 0 = Linux shows none.
    """

    bus_id: str
    speed_gts: float
    width: int

    @property
    def gbps(self) -> float:
        """Return the bandwidth that NCCL assumes for the link, GB/s (graph/topo.cc, kvDictPciGen: 15, 30, 60, ...)."""
        speed = 15 << ((self.generation or _UNKNOWN_GENERATION) - 1)
        return speed * (self.width or _UNKNOWN_WIDTH) / 80

    @property
    def generation(self) -> int | None:
        """Return the generation of PCIe; None = Linux shows none."""
        return _GENERATIONS.get(self.speed_gts)

    def __str__(self) -> str:
        """Write it as `PCIe 5 x16`."""
        return f"PCIe {self.generation or 'of unknown speed'} x{self.width or '?'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyGpu:
    """One GPU; `nvlinks` are all of its NVLinks, `compute_capability` is 90 for H100."""

    index: int
    link: PciLink
    compute_capability: int
    nvlinks: int
    to_nvswitch: bool

    def __str__(self) -> str:
        """Write it in one line."""
        nvlinks = f", {self.nvlinks} NVLinks{' to NVSwitch' * self.to_nvswitch}" if self.nvlinks else ""
        return f"{self.link}{nvlinks}, sm {self.compute_capability}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyNic:
    """One port of a network device; `gbps` is 1e9 bytes/s, 0 where Linux shows none."""

    name: str
    gbps: float
    gpudirect: bool
    infiniband: bool
    link: PciLink | None

    def __str__(self) -> str:
        """Write it in one line."""
        return f"{self.gbps * 8:g} Gb/s{', GPUDirect' * self.gpudirect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTopology:
    """The devices of one node that a job used.

    Attributes:
        source: where it was read.
        cpu: `intel`, `amd` or `arm`; empty = not told.
        gpus, nics: in the order of the file.
        bridges: PCIe links of switches and bridges above them.
    """

    source: str
    cpu: str
    gpus: tuple[TopologyGpu, ...]
    nics: tuple[TopologyNic, ...]
    bridges: tuple[PciLink, ...]

    def pci_links(self) -> tuple[PciLink, ...]:
        """Return the PCIe link of every device."""
        nics = (nic.link for nic in self.nics if nic.link)
        return (*(gpu.link for gpu in self.gpus), *nics, *self.bridges)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Return the RDMA devices among the NICs; those of sockets are named like `eth0`."""
        return tuple(
            Adapter(
                name=nic.name,
                link_layer="InfiniBand" if nic.infiniband else "Ethernet" if _RDMA.match(nic.name) else "",
                gbps=nic.gbps,
                source=self.source,
            )
            for nic in self.nics
            if nic.infiniband or _RDMA.match(nic.name) or nic.name.startswith(("efa", "rdmap"))
        )

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "source": self.source,
            "cpu": self.cpu,
            "gpus": [
                {"index": gpu.index, "link": str(gpu.link), "sm": gpu.compute_capability, "nvlinks": gpu.nvlinks}
                for gpu in self.gpus
            ],
            "nics": [{"name": nic.name, "gbps": nic.gbps, "gpudirect": nic.gpudirect} for nic in self.nics],
        }


def is_nccl_topology(head: bytes) -> bool:
    """Return True if a file begins like a dumped topology."""
    return re.search(rb"<system\b[^>]*\bversion=", head) is not None and b"<cpu " in head


def parse_nccl_topology(stream: IO[bytes], source: str) -> NcclTopology:
    """Read what NCCL dumped.

    Raises:
        InputError: it is cut off, too long, defines entities, or lists no GPU.
    """
    *_, root = read_elements(stream, source, COMMAND, clear=False)
    elements = list(root.iter())
    above = {child: parent for parent in elements for child in parent}
    gpus = tuple(_gpu(element, above[element]) for element in elements if element.tag == "gpu" and element in above)
    if not gpus:
        raise InputError(f"{source} lists no GPU", hint=_HINT)
    cpus = [element for element in elements if element.tag == "cpu"]
    vendors = ("arm" if cpu.get("arch") == "arm64" else CPU_VENDORS.get(cpu.get("vendor", ""), "") for cpu in cpus)
    return NcclTopology(
        source=source,
        cpu=next(filter(None, vendors), ""),
        gpus=gpus,
        nics=tuple(_nic(net, above.get(nic)) for nic in elements if nic.tag == "nic" for net in nic.findall("net")),
        bridges=tuple(
            _pci_link(pci)
            for pci in elements
            if pci.tag == "pci" and not any(child.tag in ("gpu", "nic") for child in pci)
        ),
    )


_HINT = f"dump it again: run a job with {COMMAND}"


def _gpu(element: ET.Element, pci: ET.Element) -> TopologyGpu:
    links = element.findall("nvlink")
    return TopologyGpu(
        index=_int(element.get("dev")),
        link=_pci_link(pci),
        compute_capability=_int(element.get("sm")),
        nvlinks=sum(_int(link.get("count")) for link in links),
        to_nvswitch=any(link.get("tclass", "").startswith(_NVSWITCH_CLASS) for link in links),
    )


def _nic(net: ET.Element, pci: ET.Element | None) -> TopologyNic:
    on_pci = pci is not None and pci.tag == "pci"
    return TopologyNic(
        name=net.get("name", "?"),
        gbps=max(_int(net.get("speed")), 0) / 8000,
        gpudirect=net.get("gdr") == "1",
        infiniband=pci is not None and pci.get("class", "").startswith(_INFINIBAND_CLASS),
        link=_pci_link(pci) if pci is not None and on_pci else None,
    )


def _pci_link(pci: ET.Element) -> PciLink:
    speed = re.match(r"[\d.]{1,6}", pci.get("link_speed", ""))
    width = _int(pci.get("link_width"))
    return PciLink(
        bus_id=pci.get("busid", "?"),
        speed_gts=float(speed[0]) if speed and re.fullmatch(r"\d+(\.\d+)?", speed[0]) else 0.0,
        width=width if 0 < width <= 32 else 0,
    )


def _int(text: str | None) -> int:
    return int(text) if text and re.fullmatch(r"-?\d{1,9}", text) else 0

"""GPU models with their links, and the state of each GPU from `nvidia-smi -q -x`.

Element names: nvsmi_device_v10 to v12 (drivers 450 to 580). What a driver does not print stays None or empty.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from ncclt.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One family of GPUs.

    Attributes:
        pattern: of the name that nvidia-smi prints.
        compute_capability: 80 for A100, 90 for H100, ...
        nvlinks: of one GPU at best.
        nvlink_gbps: of one link.
        arm: it comes with an Arm CPU.
        peer_to_peer: the driver lets boards without NVLink reach each other over PCIe.
    """

    pattern: str
    compute_capability: int
    nvlinks: int = 0
    nvlink_gbps: float = 0.0
    arm: bool = False
    peer_to_peer: bool = True

    def is_bridged(self, name: str) -> bool:
        """Return True if a board of this name has no NVLinks but those of a bridge, if any."""
        return self.nvlinks <= _BRIDGE_LINKS or any(word in name.upper() for word in _BRIDGED)


_BRIDGE_LINKS = 4
"""Most NVLinks of a bridge: no NVSwitch was made for fewer than six."""

_BRIDGED = ("PCIE", "NVL")
"""Words in the names of boards whose only NVLinks are bridges."""

GPU_MODELS = (
    GpuModel(pattern=r"GB10\b", compute_capability=121, arm=True),
    GpuModel(pattern=r"GB300", compute_capability=103, nvlinks=18, nvlink_gbps=50.0, arm=True),
    GpuModel(pattern=r"B300", compute_capability=103, nvlinks=18, nvlink_gbps=50.0),
    GpuModel(pattern=r"GB200", compute_capability=100, nvlinks=18, nvlink_gbps=50.0, arm=True),
    GpuModel(pattern=r"B[12]00", compute_capability=100, nvlinks=18, nvlink_gbps=50.0),
    GpuModel(pattern=r"GH200", compute_capability=90, nvlinks=18, nvlink_gbps=25.0, arm=True),
    GpuModel(pattern=r"H800", compute_capability=90, nvlinks=8, nvlink_gbps=25.0),
    GpuModel(pattern=r"H(100|200|20)\b", compute_capability=90, nvlinks=18, nvlink_gbps=25.0),
    GpuModel(pattern=r"A800", compute_capability=80, nvlinks=8, nvlink_gbps=25.0),
    GpuModel(pattern=r"A100", compute_capability=80, nvlinks=12, nvlink_gbps=25.0),
    GpuModel(pattern=r"A30\b", compute_capability=80, nvlinks=4, nvlink_gbps=25.0),
    GpuModel(pattern=r"A40\b|RTX A[4-6]000", compute_capability=86, nvlinks=4, nvlink_gbps=14.0),
    GpuModel(pattern=r"RTX 3090", compute_capability=86, nvlinks=4, nvlink_gbps=14.0, peer_to_peer=False),
    GpuModel(pattern=r"A10\b|A16\b|A2\b", compute_capability=86),
    GpuModel(pattern=r"A10G\b|RTX 30\d\d", compute_capability=86, peer_to_peer=False),
    GpuModel(pattern=r"L40S?\b|L4\b|L20\b|Ada Generation", compute_capability=89),
    GpuModel(pattern=r"RTX 40\d\d", compute_capability=89, peer_to_peer=False),
    GpuModel(pattern=r"RTX PRO \d000 Blackwell", compute_capability=120),
    GpuModel(pattern=r"RTX 50\d\d", compute_capability=120, peer_to_peer=False),
    GpuModel(pattern=r"V100", compute_capability=70, nvlinks=6, nvlink_gbps=25.0),
    GpuModel(pattern=r"T4\b|Quadro RTX", compute_capability=75),
    GpuModel(pattern=r"RTX 20\d\d", compute_capability=75, peer_to_peer=False),
    GpuModel(pattern=r"P100", compute_capability=60, nvlinks=4, nvlink_gbps=20.0),
)
"""First match counts."""


def gpu_model(name: str) -> GpuModel | None:
    """Return the figures of a model by the name that nvidia-smi prints; None = not known.

    >>> gpu_model("NVIDIA A100-SXM4-80GB").compute_capability
    80
    """
    return next((model for model in GPU_MODELS if re.search(rf"\b(?:{model.pattern})", name)), None)


MOST_BYTES = 16 * 1024 * 1024
"""A GPU takes about 60 KB, most of it its supported clocks: this is more than 250 of them."""

# These bound the memory that a file can take, whatever it nests or repeats. A GPU of driver 580 has 7 levels and some
# 2,000 elements, none longer than a line.
_DEEPEST = 32
_MOST_ELEMENTS = 50_000  # in one child of the root
_MOST_GPUS = 1024
_CHUNK_BYTES = 256 * 1024
_MOST_CHUNKS_WITHOUT_TAG = 4
_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Throttling reasons that are a fault; reaching the power limit is normal."""
_UNCORRECTED = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU.

    Attributes:
        index: position in the report, as nvidia-smi counts.
        bus_id: PCI address.
        model: for example `NVIDIA A100-SXM4-80GB`.
        idle: it does nothing now, so its clocks and links may be lowered.
        link_gen, max_link_gen: PCIe generation now and at best.
        link_width, max_link_width: PCIe lanes now and at best.
        slowdowns: active reasons for a lower clock, without `power limit reached`.
        uncorrected_errors: memory errors since the driver was loaded that ECC could not correct.
        remap_failed, remap_pending: rows of memory that could not be, or at the next reset will be, replaced.
        recovery: what the driver recommends; empty = nothing.
        mig: it is split by MIG.
        persistence: its driver stays loaded; None = not reported.
        virtualization: how a virtual machine has it, `Pass-Through` or `VGPU`; empty = it is not in one.
        fabric_state: registration with NVSwitch, `Completed` when done; empty = not reported.
    """

    index: int
    bus_id: str
    model: str
    idle: bool = False
    link_gen: int | None = None
    max_link_gen: int | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    slowdowns: tuple[str, ...] = ()
    uncorrected_errors: int = 0
    remap_failed: bool = False
    remap_pending: bool = False
    recovery: str = ""
    mig: bool = False
    persistence: bool | None = None
    virtualization: str = ""
    fabric_state: str = ""

    @property
    def name(self) -> str:
        """Return its usual name, `GPU3`."""
        return f"GPU{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """The GPUs of one node.

    Attributes:
        source: where it was read.
        driver, cuda: versions.
        gpus: in nvidia-smi's order.
    """

    source: str
    driver: str = ""
    cuda: str = ""
    gpus: tuple[GpuState, ...]

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "source": self.source,
            "driver": self.driver,
            "cuda": self.cuda,
            "gpus": [{"index": gpu.index, "bus_id": gpu.bus_id, "model": gpu.model} for gpu in self.gpus],
        }


def parse_gpu_report(stream: IO[bytes], source: str) -> GpuReport:
    """Read what `nvidia-smi -q -x` printed.

    Raises:
        InputError: it is another file, is cut off, too long, or defines entities.
    """
    gpus: list[GpuState] = []
    texts: dict[str, str] = {}
    for element in read_elements(stream, source, "nvidia-smi -q -x > FILE", clear=True):
        if element.tag == "gpu":
            gpus.append(_gpu(element, len(gpus)))
        elif element.tag in ("driver_version", "cuda_version"):
            texts.setdefault(element.tag, (element.text or "").strip())
        if len(gpus) > _MOST_GPUS:
            raise InputError(
                f"{source} is longer than any report of GPUs", hint="give the output of `nvidia-smi -q -x`"
            )
    if not gpus:
        raise InputError(f"{source} lists no GPU", hint="give the output of `nvidia-smi -q -x`")
    return GpuReport(
        source=source,
        driver=texts.get("driver_version", ""),
        cuda=texts.get("cuda_version", ""),
        gpus=tuple(gpus),
    )


def read_elements(stream: IO[bytes], source: str, command: str, *, clear: bool) -> Iterator[ET.Element]:
    """Yield each element of an XML file when it ends, the root last.

    Args:
        command: that writes such files.
        clear: empty the children of the root when they have been yielded, so that one of them is kept at a time.

    Raises:
        InputError: it is cut off, too long, too deep, or defines entities.
    """
    parser: Any = ET.XMLPullParser(events=("start", "end"))  # typeshed does not type its events
    hint = f"write it again with `{command}`"
    open_elements: list[ET.Element] = []
    elements = chunks_without_tag = 0
    try:
        for chunk in _read_chunks(stream, source, command):
            parser.feed(chunk)
            chunks_without_tag += 1
            for event, element in parser.read_events():
                chunks_without_tag = 0
                if event == "start":
                    open_elements.append(element)
                    elements += 1
                else:
                    open_elements.pop()
                    yield element
                    if clear and len(open_elements) == 1:
                        open_elements[0].clear()
                        elements = 0
                if len(open_elements) > _DEEPEST or elements > _MOST_ELEMENTS:
                    raise InputError(f"{source} is nested deeper or longer than any output of `{command}`", hint=hint)
            if chunks_without_tag > _MOST_CHUNKS_WITHOUT_TAG:
                raise InputError(f"{source} is longer between two tags than any output of `{command}`", hint=hint)
        parser.close()
    except ET.ParseError as error:
        raise InputError(f"{source} is cut off or not XML: {error}", hint=hint) from error


def _read_chunks(stream: IO[bytes], source: str, command: str) -> Iterator[bytes]:
    """Yield the file, refusing what no tool of NVIDIA writes: entities, which can expand a small file to any size.

    They are searched for in bytes, so encodings with two bytes per character, which would hide them, are refused.

    Raises:
        InputError: it is too long, defines entities, or is not UTF-8.
    """
    size, tail = 0, b""
    while chunk := stream.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > MOST_BYTES:
            raise InputError(f"{source} is longer than any output of `{command}`", hint=f"write it with `{command}`")
        if b"<!ENTITY" in tail + chunk:
            raise InputError(f"{source} defines XML entities, which NVIDIA never writes", hint="where is it from?")
        if b"\0" in chunk:
            raise InputError(f"{source} is not UTF-8", hint=f"write it again with `{command}`")
        tail = (tail + chunk)[-8:]
        yield chunk


def _gpu(element: ET.Element, index: int) -> GpuState:
    reasons = element.find("clocks_event_reasons")
    if reasons is None:  # the name until driver 530
        reasons = element.find("clocks_throttle_reasons")
    tags = [child.tag for child in reasons if (child.text or "").strip() == "Active"] if reasons is not None else []
    # Drivers changed the prefix over time.
    active = {re.sub(r"^clocks_(event|throttle)_reason_", "", tag) for tag in tags}
    state = _text(element, "performance_state")
    recovery = _text(element, "gpu_recovery_action")
    persistence = _text(element, "persistence_mode")
    virtualization = _text(element, "gpu_virtualization_mode/virtualization_mode")
    return GpuState(
        index=index,
        bus_id=_text(element, "pci/pci_bus_id") or element.get("id", ""),
        model=_text(element, "product_name"),
        # P0 and P1 are for work; many boards lower their link when idle.
        idle="gpu_idle" in active or state not in ("P0", "P1", ""),
        link_gen=_number(element, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        max_link_gen=_number(element, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        link_width=_number(element, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        max_link_width=_number(element, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        slowdowns=tuple(reason for reason in _SLOWDOWNS if reason in active),
        uncorrected_errors=sum(_number(element, f"ecc_errors/volatile/{name}") or 0 for name in _UNCORRECTED),
        remap_failed=_text(element, "remapped_rows/remapped_row_failure") == "Yes",
        remap_pending=_text(element, "remapped_rows/remapped_row_pending") == "Yes",
        recovery="" if recovery in ("None", "N/A") else recovery,
        mig=_text(element, "mig_mode/current_mig") == "Enabled",
        persistence=persistence == "Enabled" if persistence in ("Enabled", "Disabled") else None,
        virtualization="" if virtualization in ("None", "N/A", "Host VGPU", "Host VSGA") else virtualization,
        fabric_state="" if _text(element, "fabric/state") == "N/A" else _text(element, "fabric/state"),
    )


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(element: ET.Element, path: str) -> int | None:
    """Return the number at the beginning of a text such as `16x`; None for `N/A` and the like."""
    match = re.match(r"\d{1,9}", _text(element, path))
    return int(match[0]) if match else None

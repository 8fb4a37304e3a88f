"""Guesses the cluster of a recorded landscape from the text of its table; every guess is noted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.measure.simulated.landscape_rows import LandscapeRow

FALLBACK_VERSION = "2.21.5"
"""Used if the table names no NCCL version: old enough to rely on nothing newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The cluster and what was guessed about it."""

    cluster: Cluster
    notes: tuple[str, ...]


_GPUS: tuple[tuple[str, int], ...] = (
    ("GB200", 100), ("GB10", 121), ("B200", 100), ("B300", 103), ("GH200", 90), ("H200", 90), ("H100", 90),
    ("H800", 90), ("H20", 90), ("RTX PRO 6000", 120), ("RTX 5090", 120), ("RTX 4090", 89), ("L40S", 89), ("L40", 89),
    ("L4", 89), ("A100", 80), ("A800", 80), ("A30", 80), ("A10G", 86), ("A10", 86), ("RTX 3090", 86), ("A40", 86),
    ("T4", 75), ("V100", 70), ("P100", 60), ("MI355X", 95), ("MI350X", 95), ("MI325X", 94), ("MI300X", 94),
    ("MI250X", 90), ("MI250", 90),
)  # fmt: skip
"""Names to look for and their compute capability; for AMD gfx950 -> 95, gfx942 -> 94, gfx90a -> 90."""

_NVLINK_GBPS = {70: 150.0, 80: 300.0, 90: 450.0, 100: 900.0, 94: 448.0, 95: 538.0}
"""Nominal bandwidth out of one GPU over NVLink or xGMI, by compute capability (vendors' data sheets)."""

_PCIE_GBPS = {"5": 64.0, "4": 32.0, "3": 16.0}
_FABRICS = (
    ("slingshot", "slingshot"), ("efa", "efa"), ("roce", "roce"), ("infiniband", "infiniband"), ("hdr", "infiniband"),
    ("ndr", "infiniband"), ("edr", "infiniband"), ("ib", "infiniband"), ("cx7", "roce"), ("connectx", "roce"),
    ("rdma", "roce"), ("tcp", "ethernet"), ("network", "ethernet"), ("ethernet", "ethernet"),
)  # fmt: skip


def guess_cluster(row: LandscapeRow, *, name: str) -> Guess:
    """Return the cluster that a row of a landscape was measured on; `name` is that of the table."""
    words = f"{row.system} {row.interconnect}"
    notes = []
    gpu, capability = _gpu(row.system)
    if not capability:
        notes.append(f"the GPU of {row.system!r} is not known; compute capability 80 is assumed")
        capability = 80
    version = _version(row.nccl_version)
    if version is None:
        version = FALLBACK_VERSION
        notes.append(f"NCCL version {row.nccl_version or 'not given'}: {FALLBACK_VERSION} is assumed")
    elif "rccl" in row.nccl_version.lower():
        notes.append(f"{row.nccl_version} is taken as NCCL {version}")
    link_class = _link_class(words)
    fabric, nics, nic_gbps = _network(row)
    if row.nodes > 1:
        notes.append(f"network guessed as {nics} x {nic_gbps:g} GB/s {fabric} per node")
    return Guess(
        cluster=Cluster(
            name=_slug(row.system),
            nodes=row.nodes,
            gpus_per_node=row.gpus_per_node,
            gpu=gpu,
            compute_capability=capability,
            link_class=link_class,
            link_gbps=_link_gbps(link_class, capability, words),
            fabric=fabric,
            nics_per_node=nics,
            nic_gbps=nic_gbps,
            gpudirect=fabric not in ("none", "ethernet"),
            nccl_version=version,
            description=row.system,
            sources=(row.source or name, f"guessed from {row.system!r} and {row.interconnect!r}"),
        ),
        notes=tuple(notes),
    )


def _slug(system: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", system.lower()).strip("-")[:40].strip("-") or "recorded"


def _gpu(system: str) -> tuple[str, int]:
    """Return (name, compute capability); 0 = unknown name."""
    folded = re.sub(r"[\s_-]+", " ", system.upper())
    for name, capability in _GPUS:
        if re.search(rf"(?<![A-Z0-9])(?:\d+X)?{name}(?![A-Z0-9])", folded):
            suffix = re.search(rf"{name} (SXM\d?|PCIE)(?: (\d+GB))?", folded)
            return "-".join(
                [name.replace(" ", "-"), *(part for part in (suffix.groups() if suffix else ()) if part)]
            ), capability
    return system, 0


def known_gpu(name: str) -> tuple[str, int, float] | None:
    """Return (name, compute capability, 1e9 bytes/s over NVLink or xGMI, 0 = none) of a GPU; None = not known."""
    found, capability = _gpu(name)
    return (found, capability, _NVLINK_GBPS.get(capability, 0.0)) if capability else None


def _version(text: str) -> str | None:
    found = re.search(r"(?<![\d.])(2\.\d+(?:\.\d+)?)", text)
    return found[1] if found else None


def _link_class(words: str) -> str:
    low = words.lower()
    if "nvswitch" in low or "nvl72" in low:
        return "nvswitch"
    if "shm" in low or "no p2p" in low or "loopback" in low:
        return "shm"
    if "nvlink" in low or "xgmi" in low:
        return "nvlink"
    return "pcie"


def _link_gbps(link_class: str, capability: int, words: str) -> float:
    if link_class in ("nvswitch", "nvlink"):
        return _NVLINK_GBPS.get(capability, 300.0)
    generation = re.search(r"pcie\s*(?:gen)?\s*([345])", words, re.IGNORECASE)
    return _PCIE_GBPS[generation[1] if generation else "4"]


def _network(row: LandscapeRow) -> tuple[str, int, float]:
    """Return (fabric, ports per node, 1e9 bytes/s per port)."""
    if row.nodes == 1:
        return "none", 0, 0.0
    low = row.interconnect.lower()
    fabric = next((fabric for word, fabric in _FABRICS if re.search(rf"(?<![a-z]){word}", low)), "ethernet")
    ports = re.search(r"(\d+)\s*x\s*(?:ib\s+)?(\d+)?\s*(g|hdr|edr|ndr)", low)
    rate = {"hdr": 200, "edr": 100, "ndr": 400}
    if ports:
        gbit = int(ports[2]) if ports[2] else rate.get(ports[3], 100)
        return fabric, int(ports[1]), gbit / 8
    return fabric, max(1, row.gpus_per_node), 12.5

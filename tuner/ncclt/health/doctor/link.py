"""How two devices of one node reach each other, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

_NVLINK = re.compile(r"NV(\d{1,3})")


class Path(IntEnum):
    """What is between two devices; a smaller number is nearer (legend of `nvidia-smi topo -m`).

    Attributes:
        SELF: the same device.
        NVLINK: bonded NVLinks, directly or over NVSwitch.
        PIX: one PCIe switch.
        PXB: several PCIe switches, without the CPU.
        PHB: the CPU's PCIe host bridge.
        NODE: several host bridges of one NUMA node.
        SYS: the link between NUMA nodes, of one CPU socket or of two.
        UNKNOWN: a word unknown to ncclt.
    """

    SELF = 0
    NVLINK = 1
    PIX = 2
    PXB = 3
    PHB = 4
    NODE = 5
    SYS = 6
    UNKNOWN = 7


NEAR_NIC = Path.PXB
"""Up to here NCCL lets a NIC read GPU memory directly: NCCL_NET_GDR_LEVEL is PXB by default (graph/paths.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The path between two devices.

    Attributes:
        path: what is between them.
        lanes: bonded NVLinks; 0 for every other path.
        word: as nvidia-smi writes it.
    """

    path: Path
    lanes: int = 0
    word: str


def parse_link(word: str) -> Link:
    """Classify one cell of the matrix.

    >>> parse_link("NV12").lanes
    12
    """
    if match := _NVLINK.fullmatch(word):
        return Link(path=Path.NVLINK, lanes=int(match[1]), word=word)
    if word == "X":
        return Link(path=Path.SELF, word=word)
    known = word in ("PIX", "PXB", "PHB", "NODE", "SYS")
    return Link(path=Path[word] if known else Path.UNKNOWN, word=word)

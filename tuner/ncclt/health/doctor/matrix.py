"""The matrix of `nvidia-smi topo -m`: the path from each GPU to every other GPU and NIC of its node."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ncclt.errors import InputError

_NVLINK = re.compile(r"NV(\d{1,3})")


class Path(IntEnum):
    """Kind of connection between two devices; a smaller number is nearer (legend of `nvidia-smi topo -m`).

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
    is_path = word in ("PIX", "PXB", "PHB", "NODE", "SYS")
    return Link(path=Path[word] if is_path else Path.UNKNOWN, word=word)


_ANSI = re.compile(r"\x1b?\[[0-9;]*m")  # nvidia-smi underlines its header, even in a pipe; copying loses the escape
_GPU = re.compile(r"GPU(\d+)")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_PEER_ACCESS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
"""Cells of `nvidia-smi topo -p2p`, whose head is the same."""

_MOST_DEVICES = 1024
"""Virtual functions make dozens of NICs per node; a header with more than this is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyMatrix:
    """The devices of one node and the paths between them.

    Attributes:
        source: where it was read.
        gpus: indices, as nvidia-smi counts.
        nics: names of the network devices; those of the legend where there is one.
        links: (GPU, other device) -> link; devices are called `GPU3` or by the NIC's name.
        cpu_affinity, numa_affinity: of each GPU as printed; empty = not printed.
    """

    source: str
    gpus: tuple[int, ...]
    nics: tuple[str, ...]
    links: Mapping[tuple[int, str], Link]
    cpu_affinity: tuple[str, ...]
    numa_affinity: tuple[str, ...]

    def link(self, gpu: int, device: int | str) -> Link | None:
        """Return the path from a GPU to another GPU or to a NIC; None = not in the matrix."""
        return self.links.get((gpu, f"GPU{device}" if isinstance(device, int) else device))

    def gpu_pairs(self) -> Iterator[tuple[int, int, Link]]:
        """Yield every pair of GPUs once, the smaller index first."""
        for position, first in enumerate(self.gpus):
            for second in self.gpus[position + 1 :]:
                yield first, second, self.links[first, f"GPU{second}"]

    def nic_links(self, gpu: int) -> tuple[tuple[str, Link], ...]:
        """Return (NIC, link) of one GPU, the nearest first."""
        return tuple(sorted(((nic, self.links[gpu, nic]) for nic in self.nics), key=lambda item: item[1].path))

    @property
    def has_nvlink(self) -> bool:
        """Return True if any two GPUs are connected by NVLink."""
        return any(link.path is Path.NVLINK for _, _, link in self.gpu_pairs())

    def topology_hash(self) -> str:
        """Return a hash of the paths, the same for equal nodes.

        NIC names and CPU lists are not included, because they differ between images and containers of equal nodes; NICs
        count by their columns, in any order.
        """
        between = [[self.links[a, f"GPU{b}"].word for b in self.gpus] for a in self.gpus]
        columns = sorted([self.links[gpu, nic].word for gpu in self.gpus] for nic in self.nics)
        text = json.dumps({"gpus": between, "nics": columns}, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        names = [*(f"GPU{gpu}" for gpu in self.gpus), *self.nics]
        return {
            "source": self.source,
            "gpus": [f"GPU{gpu}" for gpu in self.gpus],
            "nics": list(self.nics),
            "links": {f"GPU{gpu}": {name: self.links[gpu, name].word for name in names} for gpu in self.gpus},
            "cpu_affinity": list(self.cpu_affinity),
            "numa_affinity": list(self.numa_affinity),
            "topology_hash": self.topology_hash(),
        }


def is_matrix_header(line: str) -> bool:
    """Return True if a line is the header of a matrix."""
    words = _ANSI.sub("", line).split()
    return words[:1] == ["GPU0"] and (words[1:2] == ["GPU1"] or {"CPU", "Affinity"} <= set(words))


def parse_matrix(lines: Iterable[str], source: str) -> TopologyMatrix:
    """Read the first matrix of a text; what is before and after it does not matter.

    Raises:
        InputError: there is no matrix, or it is cut off.
    """
    remaining = iter(lines)
    header = next((line for line in remaining if is_matrix_header(line)), None)
    if header is None:
        raise InputError(f"{source} holds no matrix of GPUs", hint="give the output of `nvidia-smi topo -m`")
    words = _ANSI.sub("", header).split()
    devices = words[: words.index("CPU")] if "CPU" in words else words  # the columns before `CPU Affinity`
    if len(devices) > _MOST_DEVICES or len(set(devices)) != len(devices):
        raise InputError(f"the header of the matrix in {source} is damaged", hint="print it again")
    cells: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for line in remaining:
        words = _ANSI.sub("", line).split()
        if words and words[0] in devices and words[0] not in cells:
            cells[words[0]] = words[1:]
        elif legend := _LEGEND.fullmatch(line):
            names[legend[1]] = legend[2]
        elif is_matrix_header(line):
            break  # a second node's matrix in the same file is ignored
    return _build_matrix(source, devices, cells, names)


def _build_matrix(
    source: str, devices: list[str], cells: dict[str, list[str]], names: dict[str, str]
) -> TopologyMatrix:
    gpus = [device for device in devices if _GPU.fullmatch(device)]
    nics = [device for device in devices if not _GPU.fullmatch(device)]
    links: dict[tuple[int, str], Link] = {}
    for gpu in gpus:
        row = cells.get(gpu, [])
        if len(row) < len(devices):
            raise InputError(
                f"the matrix in {source} is cut off: the row of {gpu} has {len(row)} of {len(devices)} cells",
                hint="print it again with `nvidia-smi topo -m`, into a file",
            )
        for device, word in zip(devices, row, strict=False):
            links[int(gpu[3:]), names.get(device, device)] = parse_link(word)
    between = {links[int(a[3:]), b].word for a in gpus for b in gpus if a != b}
    if between and between <= _PEER_ACCESS:
        raise InputError(f"{source} has no paths between GPUs", hint="give `nvidia-smi topo -m`, not -p2p")
    return TopologyMatrix(
        source=source,
        gpus=tuple(int(gpu[3:]) for gpu in gpus),
        nics=tuple(names.get(nic, nic) for nic in nics),
        links=links,
        cpu_affinity=tuple(_read_cell(cells[gpu], len(devices)) for gpu in gpus),
        numa_affinity=tuple(_read_cell(cells[gpu], len(devices) + 1) for gpu in gpus),
    )


def _read_cell(row: list[str], position: int) -> str:
    return row[position] if position < len(row) else ""

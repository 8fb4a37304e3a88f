"""Network adapters of one node: from /sys, from saved rows of /sys, and from `ibstat`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

INFINIBAND = "sys/class/infiniband"

_SYS_ROW = re.compile(rf"/{INFINIBAND}/([\w.+-]+)/ports/(\d+)/(state|rate|link_layer):(.*)")
"""Line that `grep -r . /sys/class/infiniband/*/ports/*/{state,rate,link_layer}` prints."""

_HSN_ROW = re.compile(r"/sys/class/net/hsn(\d+)/speed:(\d+)")
"""Likewise of HPE Slingshot, whose devices are no RDMA devices of Linux; Mb/s."""

_CA = re.compile(r"CA '([\w.+-]+)'\s*")
_PORT = re.compile(r"\s*Port (\d+):\s*")
_ENTRY = re.compile(r"\s*(State|Rate|Link layer):\s*(.*?)\s*")
_RATE = re.compile(r"([\d.]+)")
_SYS_NAMES = {"State": "state", "Rate": "rate", "Link layer": "link_layer"}
_LAYERS = {"infiniband": "infiniband", "ib": "infiniband", "ethernet": "roce", "roce": "roce", "slingshot": "slingshot"}

Rows = Mapping[tuple[str, str], Mapping[str, str]]
"""(device, port) -> name of the file in /sys -> its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A port of a network device that GPUs can be served through.

    Attributes:
        name: `mlx5_0`; `mlx5_0:2` for a second port.
        link_layer: `InfiniBand`, `Ethernet`, or another word of the driver.
        gbps: 1e9 bytes/s; 0 = not known.
        active: the port is up.
        source: where it was read.
    """

    name: str
    link_layer: str = ""
    gbps: float = 0.0
    active: bool = True
    source: str = f"/{INFINIBAND}"

    @property
    def fabric(self) -> str:
        """Return the fabric of a cluster that it makes, empty where it is not known.

        EFA gives no link layer; its devices are `efa_0`, or `rdmap16s27` where rdma-core renames them.
        """
        if self.name.startswith(("efa", "rdmap")) and self.link_layer.lower() in ("", "unspecified", "unknown"):
            return "efa"
        return _LAYERS.get(self.link_layer.lower(), "")


def adapters_here(root: Path) -> tuple[Adapter, ...]:
    """Return the adapters of this machine; a container has only those that were passed to it."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for port in sorted((root / INFINIBAND).glob("*/ports/*")):
        names = _SYS_NAMES.values()
        rows[port.parents[1].name, port.name] = {name: first_line(port / name) for name in names}
    adapters = list(_build_adapters(rows, f"/{INFINIBAND}"))
    for device in sorted((root / "sys/class/cxi").glob("cxi*")):  # HPE Slingshot; its interface shows the speed
        number = device.name.removeprefix("cxi")
        speed = first_line(root / "sys/class/net" / f"hsn{number}" / "speed")
        adapters.append(_build_slingshot(number, speed, "/sys/class/cxi"))
    return tuple(adapters)


def parse_adapters(lines: Iterable[str], source: str) -> tuple[Adapter, ...]:
    """Read what `ibstat` printed, or saved rows of /sys; empty where a text has neither."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    slingshot = []
    device = port = ""
    for line in lines:
        if row := _SYS_ROW.search(line):
            rows.setdefault((row[1], row[2]), {})[row[3]] = row[4].strip()
        elif hsn := _HSN_ROW.search(line):
            slingshot.append(_build_slingshot(hsn[1], hsn[2], source))
        elif ca := _CA.fullmatch(line):
            device, port = ca[1], ""
        elif device and (number := _PORT.fullmatch(line)):
            port = number[1]
        elif port and (entry := _ENTRY.fullmatch(line)):
            rows.setdefault((device, port), {})[_SYS_NAMES[entry[1]]] = entry[2]
    return (*_build_adapters(rows, source), *slingshot)


def shows_adapters(line: str) -> bool:
    """Return True if a line is of `ibstat` or of /sys."""
    return bool(_CA.fullmatch(line) or _SYS_ROW.search(line) or _HSN_ROW.search(line))


def _build_adapters(rows: Rows, source: str) -> Iterator[Adapter]:
    for (device, port), entries in rows.items():
        rate = _RATE.match(entries.get("rate", ""))
        state = entries.get("state", "").upper()
        yield Adapter(
            name=device if port == "1" else f"{device}:{port}",
            link_layer=entries.get("link_layer", ""),
            gbps=float(rate[1]) / 8 if rate else 0.0,
            active="ACTIVE" in state or not state,
            source=source,
        )


def _build_slingshot(number: str, speed: str, source: str) -> Adapter:
    gbps = int(speed) / 8000 if speed.isdecimal() else 0.0
    return Adapter(name=f"cxi{number}", link_layer="Slingshot", gbps=gbps, source=source)


def first_line(path: Path) -> str:
    """Return the first line of a file, empty where it cannot be read, as many of /sys cannot."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return ""

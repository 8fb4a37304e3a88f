"""A cluster as people write it: TOML, with units behind bandwidths."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.errors import InputError

_UNITS = {"Gb": 0.125, "Gbit": 0.125, "Gbits": 0.125, "GB": 1.0, "Tb": 125.0, "Tbit": 125.0, "TB": 1000.0}
"""Unit -> 1e9 bytes/s. Bits and bytes differ by the case of one letter, as everywhere."""
_TEXT = re.compile(
    r"\s*(\d{1,9}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)\s*(?:([GT](?:b|B|bit|bits))(?:/s|/sec|ps))?\s*", re.ASCII
)

_LEAST_AMBIGUOUS_GBPS, _MOST_NIC_GBPS, _MOST_LINK_GBPS = 100.0, 200.0, 2000.0
"""Ports of 100 GB/s are the newest (XDR, 800 Gb/s), but 100, 200 and 400 are Gb/s on most data sheets."""

_MEANT = {
    "nodes": "nodes used without --nodes",
    "link_class": "nvswitch, nvlink, pcie, or shm (through host memory)",
    "link_gbps": "out of one GPU towards its peers in the node, in one direction",
    "fabric": "none, infiniband, roce, efa, slingshot or ethernet",
    "nics_per_node": "network ports of one node",
    "nic_gbps": "of one port, in one direction",
    "gpudirect": "NICs read GPU memory directly",
    "cpu": "intel, amd or arm",
    "nccl_version": "that jobs load",
    "topology_hash": 'from `ncclt cluster detect`; "" = not examined',
    "driver": "NVIDIA's",
}
"""Comments of the fields."""

BANDWIDTHS = ("link_gbps", "nic_gbps")
"""Fields in 1e9 bytes/s, which may be written with a unit."""


def parse_gbps(value: float | str, field: str) -> float:
    """Return a bandwidth in 1e9 bytes/s as a person wrote it: `400 Gb/s`, `50 GB/s`, or a number in GB/s.

    Raises:
        InputError: it is not a bandwidth, or most likely in the wrong unit.
    """
    match = _TEXT.fullmatch(str(value))
    if isinstance(value, bool) or match is None or float(match[1]) < 0:
        raise InputError(f"{field} cannot be {value!r}", hint="write a bandwidth, for example '50 GB/s' or '400 Gb/s'")
    number, unit = float(match[1]), match[2]
    gbps = number * _UNITS[unit or "GB"]
    limit_gbps = _MOST_NIC_GBPS if field == "nic_gbps" else _MOST_LINK_GBPS
    ambiguous = field == "nic_gbps" and not unit and number >= _LEAST_AMBIGUOUS_GBPS
    if gbps > limit_gbps or ambiguous:
        raise InputError(
            f"{field} = {value}: it counts GB/s (1e9 bytes/s), and no {_ONE[field]} has {format_gbps(gbps)}"
            if gbps > limit_gbps
            else f"{field} = {value} may be GB/s or Gb/s, a factor of 8",
            hint=f'did you mean {number / 8:g} GB/s ({number:g} Gb/s)? write the unit: {field} = "{number:g} Gb/s"',
        )
    return gbps


_ONE = {"link_gbps": "GPU", "nic_gbps": "port"}


def format_gbps(gbps: float) -> str:
    """Return a bandwidth in both units: `50 GB/s (400 Gb/s)`."""
    return f"{gbps:g} GB/s ({gbps * 8:g} Gb/s)"


def parse_cluster_toml(text: str, source: str) -> Cluster:
    """Read a cluster that a person wrote.

    Args:
        text: TOML with the fields of a cluster; bandwidths are numbers in GB/s, or texts with a unit.

    Raises:
        InputError: it is not TOML, not a cluster, or has an implausible bandwidth.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{source} is not TOML: {error}", hint="`ncclt cluster show leonardo --toml` prints an example"
        ) from error
    bandwidths = {name: document[name] for name in BANDWIDTHS if isinstance(document.get(name), int | float | str)}
    return Cluster.from_document(document | {name: parse_gbps(value, name) for name, value in bandwidths.items()})


def cluster_toml(cluster: Cluster, origins: dict[str, str] | None = None) -> str:
    """Return a cluster as TOML that `parse_cluster_toml` reads back.

    Args:
        origins: field -> where its value was seen, written as a comment above it.
    """
    lines = []
    for name, value in cluster.to_document().items():
        lines += [f"# {line}" for line in textwrap.wrap((origins or {}).get(name, ""), 110)]
        text = _text(f"{value!r} GB/s".replace(".0 ", " ") if name in BANDWIDTHS else value)
        unit = f", {value * 8:g} Gb/s" if name == "nic_gbps" else ""
        comment = f"  # {_MEANT[name]}{unit}" if name in _MEANT else ""
        lines.append(f"{name} = {text}{comment}")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """Return a value as TOML; its basic strings escape as JSON does, and DEL as well."""
    if isinstance(value, list):
        return "[" + "".join(f"\n  {_text(item)}," for item in value) + ("\n]" if value else "]")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_text(item)}" for name, item in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else str(value)
    return text.replace("\x7f", "\\u007f")

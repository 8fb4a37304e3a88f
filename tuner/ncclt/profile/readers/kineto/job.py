"""What the head of a Kineto trace says about the job: rank, world, process groups."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoGroup:
    """A process group: its ranks, and its backends as in `cpu:gloo,cuda:nccl`."""

    size: int
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoJob:
    """The job as one rank's trace describes it.

    Attributes:
        rank: global rank, None where the trace does not say.
        world_size: ranks of the job, 0 where the trace does not say.
        backend: `nccl`, `gloo`, ..., empty where the trace does not say.
        nccl_version: as written in the trace, may be empty.
        groups: name of a process group -> what is said of it, where listed.
        node_gpus: GPUs that the recording process saw, 0 where not listed.
    """

    rank: int | None
    world_size: int
    backend: str
    nccl_version: str
    groups: Mapping[str, KinetoGroup]
    node_gpus: int

    @property
    def assumed_group_size(self) -> int:
        """Return the group size of a call that names no group: that of all groups where they agree, else the world."""
        sizes = {group.size for name, group in self.groups.items() if not self.bypasses_nccl(name)}
        return sizes.pop() if len(sizes) == 1 else self.world_size

    def bypasses_nccl(self, group: str) -> bool:
        """Return whether a group of a job over NCCL runs over another backend."""
        known = self.groups.get(group)
        return known is not None and "nccl" in self.backend and "nccl" not in known.backend

    def spans_nodes(self, *, start: int | None, stride: int | None, size: int) -> bool:
        """Return whether a group of part of the job reaches over nodes; False where that is not known.

        Ranks are taken to fill the nodes in order, as torchrun places them, and a node to have as many GPUs as the
        recording process saw. Groups of the whole job stay False: their place is known only when they are placed.
        """
        if start is None or stride is None or stride < 1 or not 1 < size < self.world_size:
            return False
        if self.node_gpus < 2 or self.world_size % self.node_gpus:
            return False
        return start // self.node_gpus != (start + stride * (size - 1)) // self.node_gpus


def job_of(document: Mapping[str, Any]) -> KinetoJob:
    """Read the head of a trace; every field of it may be missing, and numbers may be strings."""
    info = document.get("distributedInfo")
    info = info if isinstance(info, Mapping) else {}
    groups: dict[str, KinetoGroup] = {}
    config = info.get("pg_config")
    for row in config if isinstance(config, list) else ():
        size = integer(row.get("pg_size")) if isinstance(row, Mapping) else None
        if size:
            groups[str(row.get("pg_name"))] = KinetoGroup(size=size, backend=str(row.get("backend_config", "")))
    devices = document.get("deviceProperties")
    return KinetoJob(
        rank=integer(info.get("rank")),
        world_size=max(0, integer(info.get("world_size")) or 0),
        backend=str(info.get("backend", "")),
        nccl_version=str(info.get("nccl_version", "")),
        groups=groups,
        node_gpus=len(devices) if isinstance(devices, list) else 0,
    )


def integer(value: object) -> int | None:
    """Return a whole number written as a number or a string, None for anything else."""
    if isinstance(value, str):
        return int(value) if _WHOLE_NUMBER.fullmatch(value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float:
    """Return a number written as a number or a string, 0 for anything else (infinities and NaN included)."""
    if not isinstance(value, int | float | str):
        return 0.0
    try:
        converted = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return converted if math.isfinite(converted) else 0.0

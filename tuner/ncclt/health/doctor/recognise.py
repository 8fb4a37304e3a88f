"""What a file is, told by its content and never by its name."""

from __future__ import annotations

import re
from enum import StrEnum

from ncclt.health.doctor.matrix import is_matrix_header

HEAD_BYTES = 256 * 1024
"""Looked at to tell what a file is."""

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?[\"']?NCCL_\w+\s*=")


class Kind(StrEnum):
    """What a file can hold; a text may hold a matrix and a log."""

    GPU_REPORT = "nvidia-smi -q -x"
    MATRIX = "nvidia-smi topo -m"
    LOG = "NCCL log"
    CONF = "NCCL configuration file"


def recognise(head: bytes) -> frozenset[Kind]:
    """Return what the beginning of a file shows it to be; empty = nothing that is known here."""
    if b"<nvidia_smi_log" in head:
        return frozenset({Kind.GPU_REPORT})
    lines = head.decode(errors="replace").splitlines()
    found = set()
    if any(is_matrix_header(line) for line in lines):
        found.add(Kind.MATRIX)
    if any("NCCL INFO " in line or "NCCL WARN " in line for line in lines):
        found.add(Kind.LOG)
    if not found and _is_conf(lines):
        found.add(Kind.CONF)
    return frozenset(found)


def _is_conf(lines: list[str]) -> bool:
    said = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return bool(said) and any(_ASSIGNMENT.match(line) for line in said) and all("=" in line for line in said[:-1])

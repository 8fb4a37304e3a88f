"""GPUs by the names that people give them: compute capability, and bandwidth towards peers in the node."""

from __future__ import annotations

import re

_GPUS: tuple[tuple[str, int], ...] = (
    ("GB200", 100),
    ("GB10", 121),
    ("B200", 100),
    ("B300", 103),
    ("GH200", 90),
    ("H200", 90),
    ("H100", 90),
    ("H800", 90),
    ("H20", 90),
    ("RTX PRO 6000", 120),
    ("RTX 5090", 120),
    ("RTX 4090", 89),
    ("L40S", 89),
    ("L40", 89),
    ("L4", 89),
    ("A100", 80),
    ("A800", 80),
    ("A30", 80),
    ("A10G", 86),
    ("A10", 86),
    ("RTX 3090", 86),
    ("A40", 86),
    ("T4", 75),
    ("V100", 70),
    ("P100", 60),
    ("MI355X", 95),
    ("MI350X", 95),
    ("MI325X", 94),
    ("MI300X", 94),
    ("MI250X", 90),
    ("MI250", 90),
)
"""Names to look for and their compute capability; for AMD gfx950 -> 95, gfx942 -> 94, gfx90a -> 90."""

_NVLINK_GBPS = {70: 150.0, 80: 300.0, 90: 450.0, 100: 900.0, 94: 448.0, 95: 538.0}
"""Nominal bandwidth out of one GPU over NVLink or xGMI, by compute capability (vendors' data sheets)."""


def find_gpu(name: str) -> tuple[str, int, float] | None:
    """Return (name, compute capability, 1e9 bytes/s over NVLink or xGMI, 0 = none) of a GPU; None = not known."""
    folded = re.sub(r"[\s_-]+", " ", name.upper())
    for model, capability in _GPUS:
        if re.search(rf"(?<![A-Z0-9])(?:\d+X)?{model}(?![A-Z0-9])", folded):
            suffix = re.search(rf"{model} (SXM\d?|PCIE)(?: (\d+GB))?", folded)
            parts = [model.replace(" ", "-"), *(part for part in (suffix.groups() if suffix else ()) if part)]
            return "-".join(parts), capability, _NVLINK_GBPS.get(capability, 0.0)
    return None

"""Figures of GPU models that nvidia-smi does not print.

Sources: NVIDIA's list of CUDA GPUs (compute capability) and the data sheets (NVLinks, 1e9 bytes/s of one link in one
direction). 0 links = the model has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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

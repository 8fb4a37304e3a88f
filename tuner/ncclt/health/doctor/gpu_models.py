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
    """

    pattern: str
    compute_capability: int
    nvlinks: int = 0
    nvlink_gbps: float = 0.0
    arm: bool = False


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
    GpuModel(pattern=r"A40\b|RTX A[4-6]000|RTX 3090", compute_capability=86, nvlinks=4, nvlink_gbps=14.0),
    GpuModel(pattern=r"A10G?\b|A16\b|A2\b|RTX 30\d\d", compute_capability=86),
    GpuModel(pattern=r"L40S?\b|L4\b|L20\b|RTX 40\d\d|Ada Generation", compute_capability=89),
    GpuModel(pattern=r"RTX 50\d\d|RTX PRO \d000 Blackwell", compute_capability=120),
    GpuModel(pattern=r"V100", compute_capability=70, nvlinks=6, nvlink_gbps=25.0),
    GpuModel(pattern=r"T4\b|RTX 20\d\d|Quadro RTX", compute_capability=75),
    GpuModel(pattern=r"P100", compute_capability=60, nvlinks=4, nvlink_gbps=20.0),
)
"""First match counts."""


def gpu_model(name: str) -> GpuModel | None:
    """Return the figures of a model by the name that nvidia-smi prints; None = not known.

    >>> gpu_model("NVIDIA A100-SXM4-80GB").compute_capability
    80
    """
    return next((model for model in GPU_MODELS if re.search(rf"\b(?:{model.pattern})", name)), None)

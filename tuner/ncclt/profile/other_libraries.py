"""Kernels of libraries that communicate between GPUs without NCCL.

They are neither NCCL's communication nor compute: no NCCL setting reaches them, and they hide nothing of what NCCL
sends. They are known by the names of their kernels, in the sources of vLLM, SGLang, aiter, TensorRT-LLM, FlashInfer,
DeepEP, pplx-kernels, MSCCL++, NVSHMEM, Transformer Engine and PyTorch.
"""

from __future__ import annotations

import re
from functools import lru_cache

NCCL_INSTEAD = (
    "tune that library; or let NCCL communicate instead (vLLM and SGLang: --disable-custom-all-reduce, TensorRT-LLM: "
    "allreduce_strategy NCCL) and record again"
)
"""Hint for a recording in which other libraries do all the communication."""

COPIES_BETWEEN_GPUS = "copies between GPUs"
"""Label of copy engines that move data to another GPU."""

# In this order: DeepEP is built on NVSHMEM, and FlashInfer has taken over kernels of TensorRT-LLM.
_LIBRARIES = (
    ("DeepEP", r"deep_ep::|hybrid_ep"),
    ("pplx-kernels", r"pplx::"),
    ("UCCL-EP", r"uccl::"),
    ("MORI", r"mori::"),
    ("MSCCL++", r"mscclpp"),
    ("MSCCL", r"msccl"),
    ("NVSHMEM", r"(?:nv|roc)shmem"),
    ("FlashInfer", r"flashinfer::.*(?:all_?reduce|all_?to_?all|all_?gather|reduce_?scatter|mnnvl)"),
    (
        "TensorRT-LLM",
        r"(?:tensorrt_llm|trtllm).*(?:all_?reduce|all_?to_?all|all_?gather|scatter|mnnvl|moe_?comm)"
        r"|moeA2A|moe_?prepare.*all_?to_?all",
    ),
    ("vLLM's custom all-reduce", r"vllm::.*(?:cross_device_reduce|all_?reduce)"),
    ("SGLang's custom all-reduce", r"(?:sglang|sgl)\w*::.*(?:cross_device_reduce|all_?reduce)"),
    ("a custom all-reduce", r"cross_device_reduce|quick_?reduce"),
    ("Transformer Engine's userbuffers", r"userbuffers"),
    ("PyTorch's symmetric memory", r"symmetric_memory|symm_?mem|multimem_|(?:one|two)_shot_all_?reduce"),
    # Whatever else names a collective. Inside a block or warp of one GPU nothing is communicated, "small_gather" is no
    # all_gather, and Inductor names its kernels after the operators around them.
    (
        "another library",
        r"^(?!triton_[a-z]+_fused_).*"
        r"(?:(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!sm)all_?(?:reduce|gather)|reduce_?scatter|all_?to_?all)",
    ),
)
_PATTERNS = tuple((label, re.compile(pattern, re.IGNORECASE)) for label, pattern in _LIBRARIES)


@lru_cache(maxsize=4096)
def other_library(kernel: str) -> str:
    """Return the library whose communication kernel this is, empty for NCCL's own and for compute.

    >>> other_library("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)")
    "vLLM's custom all-reduce"
    >>> other_library("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    ''
    """
    if is_nccl_kernel(kernel):
        return ""
    return next((label for label, pattern in _PATTERNS if pattern.search(kernel)), "")


# NCCL and RCCL name all their kernels so; symmetric-memory kernels are ncclSym(k)DevKernel_*.
_NCCL = re.compile(r"nccl\w*Kernel|ncclSym", re.IGNORECASE)


def is_nccl_kernel(kernel: str) -> bool:
    """Return True if a kernel is of NCCL or RCCL."""
    return _NCCL.match(kernel) is not None

"""Names of variables that begin with NCCL_: numbers and limits, those that were removed, and who must read them.

Sources: the libraries of NCCL 2.16 to 2.32 (docs/reference/nccl-versions.json, which a test compares with this), and
NVIDIA's user guide. Their classes are in `ncclt.nccl.variables`.
"""

from __future__ import annotations

import re

from ncclt.nccl.parameters import BY_VARIABLE
from ncclt.nccl.variables import VariableClass, classify, masked

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")

_ALSO_WORDS = frozenset({"NCCL_CTA_POLICY"})
"""Also accept words (user guide)."""

_FURTHER = frozenset(
    f"NCCL_{name}"
    for name in (
        "IB_DISABLE", "IB_TIMEOUT", "IB_RETRY_CNT", "NVB_DISABLE", "MNNVL_ENABLE", "DMABUF_ENABLE", "RAS_ENABLE",
        "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "NET_GDR_C2C", "PXN_C2C", "COMM_BLOCKING", "GDRCOPY_ENABLE",
        "MULTI_RANK_GPU_ENABLE", "OOB_NET_ENABLE", "COLLNET_NODE_THRESHOLD", "LL128_C2C",
    )
)  # fmt: skip
"""Numeric variables that have no row in `ncclt.nccl.parameters`."""

LIMITS: dict[str, tuple[int, int]] = {
    "NCCL_MIN_CTAS": (1, 64), "NCCL_MAX_CTAS": (1, 64), "NCCL_MIN_NCHANNELS": (1, 64), "NCCL_MAX_NCHANNELS": (1, 64),
    "NCCL_NTHREADS": (64, 512), "NCCL_LL128_NTHREADS": (160, 640), "NCCL_CGA_CLUSTER_SIZE": (0, 8),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128), "NCCL_SOCKET_NTHREADS": (0, 16), "NCCL_NSOCKS_PERTHREAD": (0, 64),
}  # fmt: skip
"""Variable -> smallest and largest value; NCCL clamps or ignores others."""

REMOVED: dict[str, tuple[str, str]] = {
    "NCCL_SINGLE_RING_THRESHOLD": ("2.3", "it has no successor"),
    "NCCL_IB_CUDA_SUPPORT": ("2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_LL_THRESHOLD": ("2.5", "NCCL chooses by a model since"),
    "NCCL_TREE_THRESHOLD": ("2.5", "NCCL chooses by a model since, and this forces neither ring nor tree"),
    # These were removed before 2.16; in which release is not known.
    "NCCL_CHECKS_DISABLE": ("2.16", "use NCCL_CHECK_MODE"),
    "NCCL_NRINGS": ("2.16", "use NCCL_MIN_CTAS and NCCL_MAX_CTAS"),
    "NCCL_RINGS": ("2.16", "use NCCL_GRAPH_FILE"),
    "NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS": ("2.16.5", "use NCCL_ALLOC_P2P_NET_LL_BUFFERS"),
    "NCCL_AGG_CHANNEL_SIZE": ("2.20", "it has no successor"),
    "NCCL_CUDA_PATH": ("2.21", "it has no successor"),
    "NCCL_MNNVL": ("2.21", "use NCCL_MNNVL_ENABLE"),
    "NCCL_WORK_FIFO_DEPTH": ("2.22", "use NCCL_WORK_FIFO_BYTES"),
    "NCCL_GIN_COUNTER_POOL_SIZE": ("2.30", "it has no successor"),
    "NCCL_GIN_EXCLUSIVE_CONTEXTS": ("2.30", "it has no successor"),
    "NCCL_GIN_NCONTEXTS": ("2.30", "it has no successor"),
    "NCCL_GIN_SIGNAL_POOL_SIZE": ("2.30", "it has no successor"),
    "NCCL_CREATE_THREAD_CONTEXT": ("2.30.7", "it has no successor"),
    "NCCL_SHM_MEMCPY_MODE": ("2.30.7", "it has no successor"),
    "NCCL_SHM_USE_CUDA_MEMCPY": ("2.30.7", "it has no successor"),
    "NCCL_MLOPART_RDMA_ENABLE": ("2.32", "it has no successor"),
    "NCCL_NET_GDR_MLOPART": ("2.32", "it has no successor"),
    "NCCL_TOPO_SCATTER_START_NET": ("2.32", "it has no successor"),
}
"""Variable -> (first NCCL that does not read it, what there is instead)."""

REPLACED: dict[str, tuple[str, str]] = {
    "NCCL_MAX_NRINGS": ("2.5", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("2.5", "NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("2.17", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("2.17", "NCCL_MIN_CTAS"),
    "NCCL_CHECK_POINTERS": ("2.29.7", "NCCL_CHECK_MODE"),
}
"""Variable -> (NCCL that prefers another one, which); the old ones still act."""

READ_BY_EVERY_RANK = frozenset(
    f"NCCL_{name}"
    for name in (
        "ALGO", "PROTO", "BUFFSIZE", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "CROSS_NIC",
        "P2P_DISABLE", "P2P_LEVEL", "SHM_DISABLE", "NVLS_ENABLE", "COLLNET_ENABLE",
    )
)  # fmt: skip
"""Variables that each rank reads at its start: not set for a rank that does not log one (graph/tuning.cc, init.cc)."""


def is_known(name: str) -> bool:
    """Return True if NCCL, a plugin, PyTorch or a build reads a variable of this name."""
    return name in REMOVED or classify(name)[0] is not VariableClass.UNKNOWN


def shown_value(name: str, value: str) -> str:
    """Return the value of a variable for the page: a hash, unless some NCCL reads it, for it may be a secret."""
    return value if name in REMOVED else masked(name, value)


def is_number(name: str) -> bool:
    """Return True if NCCL reads a variable as a number."""
    row = BY_VARIABLE.get(name)
    if name in _FURTHER or row is None:
        return name in _FURTHER
    return name not in _ALSO_WORDS and row.values is not None and all(isinstance(v, int) for v in row.values[:8])


def as_nccl_reads(text: str) -> tuple[int, bool]:
    """Return the number that NCCL gets from a text, and whether that is all the text says.

    It is strtoll with base 0 (ncclLoadParam in misc/param.cc).

    >>> as_nccl_reads("8M")
    (8, False)
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, False
    digits = match[2].lower()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] != "x"
    value = int(digits, 8) if octal else int(digits, 0)
    # NCCL drops a comment after a number, as was intended.
    is_whole = re.fullmatch(r"\s*|\s+#.*", text[match.end() :]) is not None
    return (-value if match[1] == "-" else value), is_whole and not octal

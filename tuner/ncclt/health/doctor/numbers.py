"""How NCCL turns the text of a variable into a number: strtoll with base 0 (ncclLoadParam in misc/param.cc)."""

from __future__ import annotations

import re

from ncclt.health.doctor.variables import PARAMETERS

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")

_ALSO_WORDS = frozenset({"NCCL_CTA_POLICY"})
"""Take words besides numbers (user guide)."""

_FURTHER = frozenset(
    f"NCCL_{name}"
    for name in (
        "IB_DISABLE", "IB_TIMEOUT", "IB_RETRY_CNT", "NVB_DISABLE", "MNNVL_ENABLE", "DMABUF_ENABLE", "RAS_ENABLE",
        "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "NET_GDR_C2C", "PXN_C2C", "COMM_BLOCKING", "GDRCOPY_ENABLE",
        "MULTI_RANK_GPU_ENABLE", "OOB_NET_ENABLE", "COLLNET_NODE_THRESHOLD", "LL128_C2C",
    )
)  # fmt: skip
"""Numbers that ncclt.core has no row for."""

LIMITS: dict[str, tuple[int, int]] = {
    "NCCL_MIN_CTAS": (1, 64), "NCCL_MAX_CTAS": (1, 64), "NCCL_MIN_NCHANNELS": (1, 64), "NCCL_MAX_NCHANNELS": (1, 64),
    "NCCL_NTHREADS": (64, 512), "NCCL_LL128_NTHREADS": (160, 640), "NCCL_CGA_CLUSTER_SIZE": (0, 8),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128), "NCCL_SOCKET_NTHREADS": (0, 16), "NCCL_NSOCKS_PERTHREAD": (0, 64),
}  # fmt: skip
"""Variable -> smallest and largest value; NCCL clamps or ignores others (nccl.md 4.5 and 5)."""


def is_number(name: str) -> bool:
    """Tell whether NCCL reads a variable as a number."""
    row = PARAMETERS.get(name)
    if name in _FURTHER or row is None:
        return name in _FURTHER
    return name not in _ALSO_WORDS and row.values is not None and all(isinstance(v, int) for v in row.values[:8])


def as_nccl_reads(text: str) -> tuple[int, bool]:
    """Return the number that NCCL gets from a text, and whether that is all the text says.

    >>> as_nccl_reads("8M")
    (8, False)
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, False
    digits = match[2].lower()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] != "x"
    value = int(digits, 8) if octal else int(digits, 0)
    rest = text[match.end() :]
    # A remark behind a number is dropped by NCCL, as it was meant to be.
    whole = re.fullmatch(r"\s*|\s+#.*", rest) is not None
    return (-value if match[1] == "-" else value), whole and not octal

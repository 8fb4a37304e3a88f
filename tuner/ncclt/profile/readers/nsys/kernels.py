"""What the names of NCCL's kernels show: the collective and, for reductions, the dtype. Nothing else.

RING, TREE and LL in a name are those of the entry kernel, compiled once for each collective and dtype; what runs inside
is another algorithm and protocol more often than not (NVIDIA/nccl, src/device/generate.py, best_kernel).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ncclt.core.message import Collective
from ncclt.profile.readers.nccl_log.ranks import OPERATIONS

# 2.7 to 2.18 ncclKernel_AllReduce_RING_LL_Sum_float, since 2.19 ncclDevKernel_AllReduce_Sum_f32_RING_LL, since 2.27
# ncclSymDevKernel_..., since 2.28 ncclSymkDevKernel_...
_KERNEL = re.compile(r"\bnccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)(?:_(\w+))?")
_COLLECTIVES = {**OPERATIONS, "SendRecv": Collective.SEND_RECV}
REDUCTIONS = frozenset({Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE})
"""The others move bytes: their kernels have no dtype, or the placeholder int8_t."""

_DTYPES = {
    "f16": "float16",
    "half": "float16",
    "f32": "float32",
    "float": "float32",
    "f64": "float64",
    "double": "float64",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel's name, read.

    Attributes:
        word: the operation as written, `AllReduce`, `Generic`.
        collective: None where the name is of several.
        dtype: None where the name does not say.
    """

    word: str
    collective: Collective | None
    dtype: str | None


def kernel_of(name: str) -> Kernel | None:
    """Return what a kernel's name shows, None if it is not NCCL's.

    >>> kernel_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)").dtype
    'bfloat16'
    """
    found = _KERNEL.search(name)
    if found is None:
        return None
    collective = _COLLECTIVES.get(found[1])
    dtype = None
    if collective in REDUCTIONS:
        dtype = next((_DTYPES[part] for part in (found[2] or "").split("_") if part in _DTYPES), None)
    return Kernel(word=found[1], collective=collective, dtype=dtype)


def agreed_dtypes(kernels: Iterable[Kernel]) -> dict[Collective, str]:
    """Return the dtype of every reduction whose kernels all name the same one."""
    named: dict[Collective, set[str | None]] = {}
    for kernel in kernels:
        if kernel.collective in REDUCTIONS:
            named.setdefault(kernel.collective, set()).add(kernel.dtype)
    return {c: dtype for c, dtypes in named.items() if len(dtypes) == 1 and (dtype := next(iter(dtypes))) is not None}


def shown(counts: Counter[str]) -> str:
    """Return counts as text: `AllReduce x12, SendRecv x4`."""
    return ", ".join(f"{word} x{count}" for word, count in counts.most_common(20))

"""Collectives, message sizes, and the factor between algorithm and bus bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ncclt.core.documents import Documented
from ncclt.errors import InputError


class Collective(StrEnum):
    """A communication operation, under the names that ncclt uses everywhere."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"

    @property
    def is_tunable(self) -> bool:
        """Return True if its algorithm can be chosen (send/recv and all_to_all never pass NCCL's tuner)."""
        return self not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)

    @property
    def is_reduction(self) -> bool:
        """Return True if it combines the elements of several ranks, so that their order decides the last bits."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

    @property
    def has_rank_parts(self) -> bool:
        """Return True if its buffer has one part per rank."""
        return self in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

DTYPE_SIZES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element of every dtype that a message can have."""

VECTOR_BYTES = 16
"""Bytes that a thread of NCCL copies at once if all pointers are multiples of it. Otherwise reductions copy single
elements; all_gather, broadcast, send_recv and all_to_all copy single bytes, whatever the dtype (2.30.7: reduceCopy in
device/common_kernel.h). The LL128 protocol stages such data in shared memory (device/prims_ll128.h); LL is not affected
(NVIDIA/nccl#413)."""

MOST_BYTES = 2**53
"""No call moves more; a larger number is damage (and would not survive JSON, whose numbers are doubles)."""

# Spellings seen in nccl-tests tables, torch dtypes, c10 ScalarType names and c10 "Input type" strings.
_DTYPE_ALIASES: dict[str, str] = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3",
    "c10::float8_e4m3fn": "float8_e4m3",
    "c10::float8_e5m2": "float8_e5m2",
}


def parse_dtype(name: str) -> str:
    """Return our name for any common spelling of a dtype.

    Raises:
        InputError: no such dtype is known.
    """
    spelled = name.strip().lower().removeprefix("torch.").removeprefix("nccl")
    spelled = _DTYPE_ALIASES.get(spelled, spelled)
    if spelled not in DTYPE_SIZES:
        raise InputError(f"unknown dtype {name!r}", hint=f"supported: {', '.join(DTYPE_SIZES)}")
    return spelled


def bus_factor(collective: Collective, group_size: int) -> float:
    """Return busbw / algbw of a collective in a group of `group_size` ranks.

    Source: nccl-tests doc/PERFORMANCE.md; `send_recv`, `broadcast` and `reduce` have factor 1.
    """
    if group_size <= 1:
        return 1.0
    share = (group_size - 1) / group_size
    match collective:
        case Collective.ALL_REDUCE:
            return 2 * share
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return share
        case _:
            return 1.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Message(Documented):
    """One kind of message: same collective, dtype, size and group.

    Attributes:
        collective: the operation.
        dtype: one of those that NCCL sends, such as `float32`.
        size_bytes: NCCL's tuning size, the `size` column of nccl-tests: count x dtype for all_reduce, broadcast
            and reduce; the full buffer (per-rank count x ranks x dtype) for all_gather, reduce_scatter and
            all_to_all; the bytes of one message for send_recv.
        group_size: ranks of the communicator; 0 = the whole job, whatever its size turns out to be.
        spans_nodes: whether the group reaches over more than one node (meaningless while group_size is 0).
    """

    collective: Collective
    dtype: str
    size_bytes: int
    group_size: int = 0
    spans_nodes: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_SIZES:
            raise InputError(f"unknown dtype {self.dtype!r}", hint=f"supported: {', '.join(DTYPE_SIZES)}")
        if self.size_bytes <= 0:
            raise InputError(f"a message needs a size above 0 bytes, not {self.size_bytes}")
        if self.size_bytes > MOST_BYTES:
            raise InputError(
                f"no message has {self.size_bytes} bytes", hint=f"the largest that is read has {MOST_BYTES}"
            )
        if self.group_size < 0:
            raise InputError(f"a group cannot have {self.group_size} ranks")

    @property
    def label(self) -> str:
        """Return the message as text, for example `all_reduce 27.04 MiB float32`."""
        return f"{self.collective} {format_bytes(self.size_bytes)} {self.dtype}"

    @property
    def rank_bytes(self) -> float:
        """Return the bytes of one rank's part, else of the whole message; its group size is known."""
        return self.size_bytes / self.parts

    @property
    def is_divisible(self) -> bool:
        """Return True if all parts have equally many whole elements; its group size is known.

        Otherwise nothing can send exactly this size: it was recorded on another number of ranks.
        """
        return self.size_bytes % (self.parts * DTYPE_SIZES[self.dtype]) == 0

    @property
    def is_aligned(self) -> bool:
        """Return True if the bytes per rank are a multiple of `VECTOR_BYTES`; its group size is known.

        The part of rank r begins at r times these bytes, so otherwise most parts begin unaligned. A message without
        parts begins aligned where its buffer does, and leaves the vectorised path for its last bytes only.
        """
        return self.size_bytes == self.padded_bytes

    @property
    def begins_unaligned(self) -> bool:
        """Return True if parts of equally many elements begin unaligned; its group size is known."""
        return self.collective.has_rank_parts and self.is_divisible and not self.is_aligned

    @property
    def padded_bytes(self) -> int:
        """Return the next size that is aligned."""
        unit = VECTOR_BYTES * self.parts
        return -(-self.size_bytes // unit) * unit

    @property
    def rounding_bytes(self) -> int:
        """Return the max distance to the size that nccl-tests sends, which has aligned parts; 0 without parts."""
        return VECTOR_BYTES * self.parts if self.collective.has_rank_parts else 0

    @property
    def parts(self) -> int:
        """Return the number of parts of its buffer; its group size is known."""
        return max(1, self.group_size) if self.collective.has_rank_parts else 1

    def algbw_gbps(self, time_us: float) -> float:
        """Return the algorithm bandwidth in 1e9 bytes/s, as nccl-tests prints it."""
        return self.size_bytes / time_us / 1e3

    def busbw_gbps(self, time_us: float) -> float:
        """Return the bus bandwidth in 1e9 bytes/s, as nccl-tests prints it."""
        return self.algbw_gbps(time_us) * bus_factor(self.collective, self.group_size)


def format_bytes(size_bytes: float) -> str:
    """Write a size with a binary unit, exact where it is exact: `8 B`, `25 MiB`, `27.04 MiB`.

    >>> format_bytes(26214400), format_bytes(28351488), format_bytes(8), format_bytes(3 << 39)
    ('25 MiB', '27.04 MiB', '8 B', '1.50 TiB')
    """
    value = float(size_bytes)
    for unit in _UNITS:
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the loop returns at TiB")


def format_sizes(sizes: Iterable[int]) -> dict[int, str]:
    """Return sizes as `format_bytes` writes them, those that would read alike with as many digits as tell them apart.

    >>> format_sizes([33_595_392, 33_591_296, 26_214_400])
    {33595392: '32.039 MiB', 33591296: '32.035 MiB', 26214400: '25 MiB'}
    """
    texts = {size: format_bytes(size) for size in sizes}
    for digits in range(3, 10):
        alike = Counter(map(_number_and_unit, texts.values()))
        for size, text in texts.items():
            if alike[_number_and_unit(text)] > 1:
                unit = text.split()[1]
                texts[size] = f"{size / 1024 ** _UNITS.index(unit):.{digits}f} {unit}"
    return texts


def _number_and_unit(text: str) -> tuple[float, str]:
    number, unit = text.split()
    return float(number), unit

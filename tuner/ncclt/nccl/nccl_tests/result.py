"""Result of one run of nccl-tests, in either of its two formats, and its collective and ranks where it names none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, Collective, parse_dtype
from ncclt.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestTiming:
    """One half of a row: out-of-place or in-place.

    Attributes:
        time_us: per call, µs; nan where nccl-tests printed nan.
        algbw_gbps, busbw_gbps: as printed, 1e9 bytes/s.
        wrong: elements that came out wrong; None = not checked (`N/A`, or the `error` column of older releases,
            which is a difference, not a count).
        calls_us: time of each call, µs, of the slowest process; empty where it was not taken.
    """

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None
    calls_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestRow:
    """One measured size.

    Attributes:
        size_bytes: the `size` column; 0 where alignment left nothing to send.
        count: elements; per rank for all_gather, reduce_scatter and alltoall.
        dtype: in the spelling of nccl-tests, `float`.
        redop, root: None where the table has no such column; redop is empty where it is there and blank.
        out_of_place, in_place: None where that half is missing.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: NcclTestTiming | None
    in_place: NcclTestTiming | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTest:
    """One run of one nccl-tests program.

    Attributes:
        program: `all_reduce_perf` where the output names it.
        command: the same, from the last command line before the output; None = there is none.
        version: of nccl-tests, where the output names it.
        file_version: of the file that `-J` writes; 0 = this is the printed table.
        ranks: of the group whose times are printed: the first one, where the job was split into groups. From the device
            lines, else from the form of the rows, else from the command line; 0 = not known.
        collective: by name or form; a word where ncclt has no message for it, None where several are possible.
        rows: in order; repeated where the sweep was.
        avg_busbw_gbps: as printed, 1e9 bytes/s; None where the run ended before that.
        out_of_bounds: number of failed checks; None where the run ended before that.
        hosts: that these ranks ran on; 0 = not known.
        gpu: of the first rank, as its driver names it; empty = not known.
        nccl: the NCCL version that it loaded, as it prints it: `2.28.9` or `22809`; empty = not known.
        variables: NCCL_* variables of the run, from its command line and from NCCL's lines on its environment; what is
            missing may have been set without a trace in the output.
        is_ambiguous: several command lines came before the run, and they set different variables.
        unreadable_lines: lines inside the table that are not rows, such as log lines and rows broken by them.
    """

    program: str | None
    version: str | None
    ranks: int
    rows: tuple[NcclTestRow, ...]
    avg_busbw_gbps: float | None
    out_of_bounds: int | None
    collective: Collective | str | None = None
    unreadable_lines: int = 0
    command: str | None = None
    hosts: int = 0
    gpu: str = ""
    nccl: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    is_ambiguous: bool = False
    file_version: int = 0


def count_hosts(places: Sequence[tuple[str, str]]) -> int:
    """Return the number of machines that ranks ran on; 0 = not known.

    Args:
        places: host of each, and its device by number and PCI bus; old versions print every bus as 0x00. Two ranks on
            one GPU are of machines or containers that share a name.
    """
    are_named = all(host for host, _ in places) and len(set(places)) == len(places)
    return len({host for host, _ in places}) if are_named else 0


PROGRAMS = {f"{c}_perf": c for c in Collective if c not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)} | {
    "alltoall_perf": Collective.ALL_TO_ALL,
    "sendrecv_perf": Collective.SEND_RECV,
}

ROOTED_PARTS = "gather or scatter"
"""The form of a table of parts with a root: two programs, and no message of ncclt."""

_ROUNDING = 0.005
"""Bandwidths are printed with two decimals."""


def find_collective(program: str | None, rows: Sequence[NcclTestRow], ranks: int) -> Collective | str | None:
    """Return the collective of a test: by the name of its program, else by the form of its rows.

    Args:
        program: as the output or its command line names it; None = neither does.
        rows, ranks: see `collective_of_rows`.

    Returns:
        The collective, a word where ncclt has no message for it, or None where several are possible.
    """
    if program is None:
        return collective_of_rows(rows, ranks)
    return PROGRAMS.get(program.removesuffix("_mpi"), program)  # NAME_SUFFIX of its Makefile


def collective_of_rows(rows: Sequence[NcclTestRow], ranks: int) -> Collective | str | None:
    """Return the only collective that prints such rows, `ROOTED_PARTS`, or None where there are several.

    Args:
        ranks: of the device lines; 0 = there are none.
    """
    row = next((row for row in rows if row.size_bytes and row.count and _dtype_bytes(row)), None)
    if row is None:
        return None
    parts = _parts(row)
    is_part = parts > 1 and ranks in (0, parts)
    if row.root is not None and row.root >= 0:
        if is_part:
            return ROOTED_PARTS
        return Collective.BROADCAST if row.redop in (None, "", "none") else Collective.REDUCE
    # One alone has the column and nothing in it, one has neither column; with `none` the two look alike.
    without_operation = {"": Collective.ALL_TO_ALL, None: Collective.ALL_GATHER, "none": None}
    if row.redop in without_operation:
        return without_operation[row.redop]
    if is_part:
        return Collective.REDUCE_SCATTER
    half = max(_halves(rows), key=lambda half: half.algbw_gbps, default=None)
    if half is None or half.algbw_gbps <= 0 or ranks == 2:
        return None  # between two ranks all_reduce and sendrecv have one bus bandwidth
    if half.busbw_gbps == 0:
        return Collective.ALL_REDUCE  # of one rank; sendrecv has a bandwidth there
    is_point_to_point = math.isclose(half.busbw_gbps, half.algbw_gbps, rel_tol=0.05)
    if is_point_to_point and not ranks:
        return None  # or of two ranks
    return Collective.SEND_RECV if is_point_to_point else Collective.ALL_REDUCE


def ranks_of_rows(rows: Sequence[NcclTestRow], collective: Collective | str | None) -> int:
    """Return the only number of ranks with which rows of a collective have these bandwidths; 0 = there are several."""
    parts = {_parts(row) for row in rows if row.size_bytes and row.count and _dtype_bytes(row)}
    if len(parts) == 1 and (exact := parts.pop()) > 1:
        return exact
    halves = [half for half in _halves(rows) if half.algbw_gbps > 1]
    if halves and not any(half.busbw_gbps for half in halves):
        return 1
    if collective is not Collective.ALL_REDUCE:
        return 0
    lower, upper = 1.0, math.inf  # n = 2 / (2 - busbw / algbw)
    for half in halves:
        low = max(half.busbw_gbps - _ROUNDING, 0.0) / (half.algbw_gbps + _ROUNDING)
        high = (half.busbw_gbps + _ROUNDING) / (half.algbw_gbps - _ROUNDING)
        lower = max(lower, 2 / (2 - low) if low < 2 else math.inf)
        upper = min(upper, 2 / (2 - high) if high < 2 else math.inf)
    is_exact = lower <= upper < math.inf and math.ceil(lower) == math.floor(upper)
    return math.ceil(lower) if is_exact else 0


def _parts(row: NcclTestRow) -> int:
    parts, remainder = divmod(row.size_bytes, row.count * _dtype_bytes(row))
    return 1 if remainder else parts


def _dtype_bytes(row: NcclTestRow) -> int:
    """Return the size of an element, 0 where the type is not known."""
    try:
        return DTYPE_SIZES[parse_dtype(row.dtype)]
    except InputError:
        return 0


def _halves(rows: Sequence[NcclTestRow]) -> list[NcclTestTiming]:
    halves = (half for row in rows for half in (row.out_of_place, row.in_place) if half is not None)
    return [half for half in halves if math.isfinite(half.busbw_gbps) and math.isfinite(half.algbw_gbps)]

"""Collective and number of ranks of a table of nccl-tests that does not name them.

Source: getCollPrintParams, *GetCollByteCount and *GetBw of nccl-tests 2.0 to 2.19: size is count times the ranks where
count is one rank's part, and busbw is algbw times 2(n-1)/n for all_reduce, (n-1)/n for collectives of parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncclt.core.message import DTYPE_SIZES, Collective, parse_dtype
from ncclt.errors import InputError
from ncclt.nccl.nccl_tests.result import NcclTestRow, NcclTestTiming

PROGRAMS = {f"{c}_perf": c for c in Collective if c not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)} | {
    "alltoall_perf": Collective.ALL_TO_ALL,
    "sendrecv_perf": Collective.SEND_RECV,
}

ROOTED_PARTS = "gather or scatter"
"""The form of a table of parts with a root: two programs, and no message of ncclt."""

_ROUNDING = 0.005
"""Bandwidths are printed with two decimals."""


def find_collective(program: str | None, rows: Sequence[NcclTestRow], ranks: int) -> Collective | str | None:
    """Return what a test measures: by the name of its program, else by the form of its rows.

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
        rows: of one table.
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
    if row.redop == "":
        return Collective.ALL_TO_ALL  # the only one with the column and nothing in it
    if row.redop is None:
        return Collective.ALL_GATHER  # the only one with neither column
    if row.redop == "none":
        return None  # all_gather and alltoall look alike
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
    least, most = 1.0, math.inf  # n = 2 / (2 - busbw / algbw)
    for half in halves:
        low = max(half.busbw_gbps - _ROUNDING, 0.0) / (half.algbw_gbps + _ROUNDING)
        high = (half.busbw_gbps + _ROUNDING) / (half.algbw_gbps - _ROUNDING)
        least = max(least, 2 / (2 - low) if low < 2 else math.inf)
        most = min(most, 2 / (2 - high) if high < 2 else math.inf)
    if not least <= most < math.inf or math.ceil(least) != math.floor(most):
        return 0
    return math.ceil(least)


def _parts(row: NcclTestRow) -> int:
    parts, rest = divmod(row.size_bytes, row.count * _dtype_bytes(row))
    return 1 if rest else parts


def _dtype_bytes(row: NcclTestRow) -> int:
    """Return the size of an element, 0 where the type is not known."""
    try:
        return DTYPE_SIZES[parse_dtype(row.dtype)]
    except InputError:
        return 0


def _halves(rows: Sequence[NcclTestRow]) -> list[NcclTestTiming]:
    halves = (half for row in rows for half in (row.out_of_place, row.in_place) if half is not None)
    return [half for half in halves if math.isfinite(half.busbw_gbps) and math.isfinite(half.algbw_gbps)]

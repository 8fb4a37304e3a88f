"""From the rows of a run of nccl-tests to the measurement of each message."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.core.plural import count_noun
from ncclt.core.trial import Measurement
from ncclt.errors import BenchmarkError, InputError
from ncclt.measure.benchmarks.nccl_tests.sweep import Sweep
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow, NcclTestTiming

# torch reduces and broadcasts in place, and gathers and scatters between two buffers; the half of the row that is timed
# the same way is used. nccl-tests has no in-place check for alltoall and sendrecv.
_IN_PLACE = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)


def measurement(message: Message, test: NcclTest, *, requested: int, sweep: Sweep, dtype: str) -> Measurement:
    """Return the measurement of a message in a run.

    Args:
        message: with its group size known.
        test: the run.
        requested: the size that was requested for the message, bytes.
        sweep: the sizes of the run; one that is not among them is interpolated between its neighbours.
        dtype: what was sent, in the spelling of nccl-tests.

    Raises:
        BenchmarkError: a row is missing or unusable, or the number of ranks is not the requested one.
    """
    if test.ranks and test.ranks != message.group_size:
        raise BenchmarkError(
            f"nccl-tests ran on {count_noun(test.ranks, 'rank')}, but {message.label} is sent by {message.group_size}",
            hint="start as many ranks as the job has; groups need a release that knows NCCL_TESTS_SPLIT, with MPI",
        )
    rows = [row for row in test.rows if _has_dtype(row, dtype)]
    if requested in sweep.sizes:
        return _measured(message, requested, rows, test)
    below = max(size for size in sweep.sizes if size < requested)
    above = min(size for size in sweep.sizes if size > requested)
    ends = [_measured(message, size, rows, test) for size in (below, above)]
    share = math.log(requested / below) / math.log(above / below)
    time_us = math.exp((1 - share) * math.log(ends[0].time_us) + share * math.log(ends[1].time_us))
    return Measurement(
        message=message,
        samples_us=(time_us,),
        wrong=None if None in (ends[0].wrong, ends[1].wrong) else sum(end.wrong or 0 for end in ends),
        interpolated=True,
    )


def _measured(message: Message, size: int, rows: Sequence[NcclTestRow], test: NcclTest) -> Measurement:
    found = [row for row in rows if row.size_bytes == size]
    if not found:
        unreadable = count_noun(test.unreadable_lines, "unreadable line")
        broken = f"; its table has {unreadable}" if test.unreadable_lines else ""
        raise BenchmarkError(
            f"nccl-tests printed no row for {message.label}{broken}",
            hint="it may have ended early, or a log was mixed into its table: unset NCCL_DEBUG",
        )
    # The first row of all includes late connecting and loading; if its size is repeated, its time does not count. Its
    # check does.
    cold = found[0] is test.rows[0] and len(found) > 1
    samples = tuple(sample for row in found[cold:] for sample in _samples_us(_half(row, message)))
    if not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise BenchmarkError(
            f"nccl-tests printed no usable time for {message.label}: {', '.join(f'{s:g}' for s in samples[:8])} µs",
            hint="run the same command by hand",
        )
    checks = [half.wrong for row in found for half in (row.out_of_place, row.in_place) if half]
    counts = [wrong for wrong in checks if wrong is not None]
    return Measurement(message=message, samples_us=samples, wrong=sum(counts) if counts else None)


def _half(row: NcclTestRow, message: Message) -> NcclTestTiming | None:
    wanted, other = row.out_of_place, row.in_place
    if message.collective in _IN_PLACE:
        wanted, other = other, wanted
    return wanted or other


def _samples_us(half: NcclTestTiming | None) -> tuple[float, ...]:
    if half is None:
        return (math.nan,)
    return half.calls_us or (half.time_us,)


def _has_dtype(row: NcclTestRow, dtype: str) -> bool:
    try:
        return parse_dtype(row.dtype) == parse_dtype(dtype)
    except InputError:
        return False

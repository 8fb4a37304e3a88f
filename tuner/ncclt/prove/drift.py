"""Has something changed since it was measured, by more than its noise explains?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ncclt.core.recheck import Change

DEVIATIONS = 4.0
"""Standard errors that a change must exceed.

A dozen quantities are compared, with few launches each, whose scatter is known badly: at 4 about one healthy check in a
hundred is wrong with the eight launches of a proof against four new ones.
"""

_LEAST_NOISE = 0.005
"""Scatter below which a few launches may agree by chance, as a share."""

_NORMAL_MAD = 1.4826
_MEDIAN_COST = 1.2533
"""Standard deviation over median absolute deviation, and standard error of a median over that of a mean, of a normal
distribution (any textbook of robust statistics)."""


def compare(what: str, before: Sequence[float], now: Sequence[float], *, tolerance: float) -> Change:
    """Compare the medians of two sets of positive values.

    Args:
        what: for people.
        before, now: two or more values each.
        tolerance: share by which the median may change in any case.
    """
    logs = [[math.log(value) for value in values] for values in (before, now)]
    scatter = max(_LEAST_NOISE, *(_deviation(values) for values in logs))
    error = scatter * _MEDIAN_COST * math.sqrt(1 / len(before) + 1 / len(now))
    medians = [statistics.median(values) for values in logs]
    shift = abs(medians[1] - medians[0])
    return Change(
        what=what,
        before=math.exp(medians[0]),
        now=math.exp(medians[1]),
        noise=math.expm1(DEVIATIONS * error),
        changed=shift > max(DEVIATIONS * error, math.log1p(tolerance)),
    )


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return _NORMAL_MAD * statistics.median(abs(value - middle) for value in values)

"""Axes: from values to positions, and the positions of the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)

LOG_FROM_RATIO = 10**0.5
"""Values that span half a decade or more are drawn on a logarithmic axis: one slow outlier must not hide the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One axis.

    Attributes:
        low, high: values at the two ends, low < high; above 0 where `log`.
        start, end: positions of the two ends, in units of the drawing.
        log: whether equal distances are equal ratios.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value, rounded to a tenth."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, wanted: int = 5) -> tuple[float, ...]:
        """Return round values within the axis, about `wanted` of them."""
        return _log_ticks(self.low, self.high, wanted) if self.log else _linear_ticks(self.low, self.high, wanted)


def scale_over(values: Iterable[float], *, start: float, end: float, padding: float = 0.06) -> Scale:
    """Return an axis that holds all values with some room, logarithmic where they span half a decade.

    Args:
        values: at least one, all above 0.
        start, end: positions of the ends.
        padding: room at each end, as a share of the axis.
    """
    known = list(values)
    low, high = min(known), max(known)
    if high / low >= LOG_FROM_RATIO:
        room = (high / low) ** padding
        return Scale(low=low / room, high=high * room, start=start, end=end, log=True)
    room = padding * (high - low) or 0.05 * high
    return Scale(low=max(low - room, 0.0), high=high + room, start=start, end=end)


def _linear_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    rough = (high - low) / wanted
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(s * magnitude for s in _STEPS if s * magnitude >= 0.7 * rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(i * step, 10) for i in range(first, last + 1))


def _log_ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: tuple[float, ...] = ()
    for multiples in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        finer = tuple(m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high)
        if found and len(finer) > wanted + 2:
            break
        found = finer
    return found

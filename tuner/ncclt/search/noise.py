"""Noise between the launches of one setting, and the typical time of a few of them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

USUAL_SIGMA = 0.02
"""Standard deviation of the logarithm of a time between launches, until repeats show another."""

_USUAL_WEIGHT = 1
"""Repeats that the usual value is worth: clusters differ by a factor of ten."""

_MOST_SIGMA = 0.15
"""Upper bound of noise: a larger spread of repeats is a disturbance, which `typical_us` must still recognise."""

_OUTLIER_SIGMAS = 6.0
"""A launch this much slower than the others of its setting was disturbed: it does not count."""


def typical_us(times_us: Sequence[float], sigma: float) -> float:
    """Return the typical time of some launches of one setting, µs: the geometric mean without the outliers.

    Disturbances make a launch slower and never faster, so outliers are judged from the lower median: of two launches
    that contradict each other the faster one counts.

    Args:
        times_us: one per launch, at least one.
        sigma: standard deviation of their logarithms.
    """
    if len(times_us) == 1:
        return times_us[0]
    low = math.log(statistics.median_low(times_us))
    logs = [math.log(t) for t in times_us]
    return math.exp(statistics.fmean(log for log in logs if log - low <= _OUTLIER_SIGMAS * sigma))


def launch_sigma(repeated: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of the logarithm of a time between launches of one setting.

    The usual value, averaged with what repeats show: the median of their squared differences, which a few outliers do
    not move, scaled to a variance.

    Args:
        repeated: times of one message under one setting, one per launch.
    """
    squares = [
        (math.log(later) - math.log(earlier)) ** 2 / 2
        for times in repeated
        for earlier, later in itertools.pairwise(times)
    ]
    if not squares:
        return USUAL_SIGMA
    # The median of a chi-square variable with one degree of freedom is 0.455.
    variance = min(statistics.median(squares) / 0.455, _MOST_SIGMA**2)
    weight = _USUAL_WEIGHT + len(squares)
    return math.sqrt((_USUAL_WEIGHT * USUAL_SIGMA**2 + len(squares) * variance) / weight)

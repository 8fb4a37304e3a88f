"""Bets on paired log ratios: error rates that hold at any sample size, for any stopping rule and any tails.

Pairs of launches, one of the default and one of the policy, give log ratios x1, x2, ... If neither is faster, each x
is as likely to be +d as -d. A bet that pays the factor 1 + h(x) with h odd and |h| < 1 is then fair, so a capital that
starts at 1 and is bet on every pair reaches 100 with a probability of at most 1/100, at whatever time it is looked at
(Ville's inequality; the use of such capital as evidence: Ramdas, Gruenwald, Vovk and Shafer, "Game-Theoretic Statistics
and Safe Anytime-Valid Inference", Statistical Science 38, 2023). Nothing is assumed about the tails, not even a
variance: only that a pair's noise is symmetric about its centre, as the difference of two launches of the same kind is.

A coin decides which of the two is launched first. So whatever disturbs the launches (a drift, a neighbour that comes
and goes in any rhythm, noise that remembers), as long as it does not follow the coins it adds +d or -d to a pair with
equal probability, and such a bet is fair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ncclt.prove.levels import SHARPNESS, STAKE, WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ratios = NDArray[np.float64]

_SHARPNESS, _STAKE, _WEIGHT = np.array(SHARPNESS), np.array(STAKE), np.array(WEIGHT)

_HALVINGS = 48
"""Steps of the search for an interval's end; the last one is far below any noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its interval."""

    estimate: float
    low: float
    high: float


def log_capital(log_ratios: Ratios, centre: float = 0.0) -> Ratios:
    """Return the log of the capital won by betting that ratios are above a centre.

    Args:
        log_ratios: (..., pairs) the bets are made along the last axis.
        centre: the null hypothesis, under which the bets are fair.

    Returns:
        (...) natural logarithms; above ln(1 / a) refutes, at an error rate of a, that the centre is there or higher.
    """
    odd = np.tanh(_SHARPNESS[:, None, *([None] * (log_ratios.ndim - 1))] * (log_ratios - centre))
    stakes = _STAKE.reshape((-1,) + (1,) * odd.ndim)
    won: Ratios = np.log1p(stakes * odd).sum(axis=-1)
    best = won.max(axis=(0, 1))
    capital: Ratios = best + np.log(np.tensordot(_WEIGHT, np.exp(won - best).mean(axis=1), axes=1))
    return capital


def estimate_centre(log_ratios: Ratios) -> Ratios:
    """Return the median of all means of two ratios (Hodges and Lehmann, 1963), which is robust to outliers.

    Args:
        log_ratios: (..., pairs), one or more pairs.
    """
    first, second = np.triu_indices(log_ratios.shape[-1])
    middle: Ratios = np.median((log_ratios[..., first] + log_ratios[..., second]) / 2, axis=-1)
    return middle


def estimate_interval(log_ratios: Sequence[float], *, error: float) -> Interval:
    """Return the centre of log ratios and the interval of all centres that are not refuted, as ratios.

    Args:
        error: probability with which the interval misses the truth at this or any other sample size, both ends
            together.
    """
    ratios = np.asarray(log_ratios, dtype=np.float64)
    refuted = math.log(2 / error)
    low = _lowest_unrefuted(ratios, refuted)
    high = -_lowest_unrefuted(-ratios, refuted)
    # For ratios in distant clusters the two need not agree, and readers expect an estimate inside the interval.
    estimate = min(max(float(estimate_centre(ratios)), low), high)
    return Interval(estimate=math.exp(estimate), low=_exp(low), high=_exp(high))


def _lowest_unrefuted(ratios: Ratios, refuted: float) -> float:
    """Return the lowest centre that is not refuted; minus infinity where no bet can win that much."""
    # The capital falls as the centre rises: far below all ratios every bet is won, far above all are lost.
    low, high = float(ratios.min()) - 3.0, float(ratios.max()) + 3.0
    if float(log_capital(ratios, low)) < refuted:
        return -math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(log_capital(ratios, middle)) >= refuted:
            low = middle
        else:
            high = middle
    return high


def _exp(value: float) -> float:
    return math.exp(value) if math.isfinite(value) else (0.0 if value < 0 else math.inf)

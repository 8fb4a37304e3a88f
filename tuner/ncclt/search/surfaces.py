"""How far what was measured elsewhere is believed here, and the prior that follows from it.

Two hypotheses of each source: it predicts this study up to a small residual, or it says nothing. Their evidence is that
of the search's own Gaussian process, so a source that predicts the first launches gains weight at once, and one that
mispredicts them has none left after two or three: the search is then what it would have been without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ncclt.search.gaussian_process import Array, Table
from ncclt.search.kernels import Choice, Likeness, Posteriors, choices, implausibility

_RESIDUAL = 0.2
"""What is left of the prior standard deviation where a source that can be trusted has measured: a few per cent."""

_DIGITS = 4
"""Weights are rounded to these, so that every machine searches alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a source predicts for the settings and messages of a study.

    Attributes:
        departure: of the flattened log ratio from what the cost model expects: settings x messages.
        coverage: how much of that was measured there, 0 to 1: settings x messages.
        trust: probability, before anything is measured here, that it holds here; below 1.
    """

    departure: Array
    coverage: Array
    trust: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The prior of a search once its sources are weighed.

    Attributes:
        expected: the parts of the mean, each at weight 1: parts x settings x messages.
        alike: covariances, less where a source is believed.
        weights: how much of what is known each source has told, 0 to 1.
    """

    expected: Array
    alike: Likeness
    weights: tuple[float, ...]


def beginning(expected: Array, alike: Likeness, surfaces: Sequence[Surface], table: Table | None) -> Beginning:
    """Weigh the sources by what was measured here, and return the prior that they leave.

    Args:
        expected: the parts of what the cost model expects, flattened: parts x settings x messages.
        alike: the covariances around it.
        surfaces: of the sources, the nearest first.
        table: what was measured here; None = nothing yet.
    """
    weights = tuple(_probability(expected, alike, surface, table) for surface in surfaces)
    shift, unknown = np.zeros_like(expected[0]), np.ones_like(expected[0])
    # The nearest last: where it has measured, it has the last word.
    for surface, weight in reversed(list(zip(surfaces, weights, strict=True))):
        share = weight * surface.coverage
        shift = shift + share * (surface.departure - shift)
        unknown = unknown * (1 - share)
    covered = (1 - unknown).min(axis=1)
    told = [weight * float(surface.coverage.mean()) for weight, surface in zip(weights, surfaces, strict=True)]
    damped = _damped(alike, covered)
    return Beginning(
        expected=_shifted(expected, shift), alike=damped, weights=tuple(round(share, _DIGITS) for share in told)
    )


def _probability(expected: Array, alike: Likeness, surface: Surface, table: Table | None) -> float:
    """Return the probability that a source predicts this study."""
    if table is None:
        return round(surface.trust, _DIGITS)
    informed = _shifted(expected, surface.coverage * surface.departure)
    sure = [choice for choice in choices() if choice[-2:] == (1.0, 1.0)]
    better = _evidence(table, informed, _damped(alike, surface.coverage.min(axis=1)), sure)
    better -= _evidence(table, expected, alike, choices())
    odds = surface.trust / (1 - surface.trust) * math.exp(min(max(better, -50.0), 50.0))
    return round(odds / (1 + odds), _DIGITS)


def _shifted(expected: Array, shift: Array) -> Array:
    """Return the parts of the mean with a shift in that of the pairs, which is the likeliest to keep its weight."""
    return np.concatenate([expected[:1] + shift, expected[1:]])


def _evidence(table: Table, expected: Array, alike: Likeness, among: Sequence[Choice]) -> float:
    """Return the log evidence of a prior, in the mean over its hyperparameters."""
    near = alike.among(table.rows)
    part = replace(table, rows=np.arange(len(table.rows)), expected=expected[:, table.rows])
    posteriors = Posteriors(part, near)
    logs = np.array([posteriors[choice].evidence() - implausibility(choice) for choice in among])
    priors = np.array([-implausibility(choice) for choice in among])
    return float(np.logaddexp.reduce(logs) - np.logaddexp.reduce(priors))


def _damped(alike: Likeness, covered: Array) -> Likeness:
    """Return the covariances where sources have told a share of what there is to know of each setting."""
    left = 1 - (1 - _RESIDUAL) * covered
    square = np.outer(left, left)
    return replace(
        alike, smooth=alike.smooth * square, rough=alike.rough * square, parameters=alike.parameters * square
    )

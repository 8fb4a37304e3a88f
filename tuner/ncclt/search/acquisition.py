"""Acquisition function: what a launch is expected to bring to the policy.

The policy takes for every message the best of the measured settings, and the default where none is expected to beat it
by `MIN_MESSAGE_GAIN`. A launch of a setting can bring something for many messages at once: by beating what is chosen,
by making sure of what looks better, or by showing that what is chosen was luck. For each message that is an integral
over one normal variable (the knowledge gradient with a threshold; Frazier, Powell, Dayanik: "The knowledge-gradient
policy for correlated normal beliefs", INFORMS J. Computing 21, 2009, without the correlation between settings), in the
mean over the hyperparameters that are still likely: a model that is less sure of itself has most of the surprises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ncclt.search.assemble import MIN_MESSAGE_GAIN
from ncclt.search.gaussian_process import Array

_BAR = math.log(1 - MIN_MESSAGE_GAIN)
"""Log ratio below which a setting is expected to be better than the default."""

_OWN_DOUBT = 0.3
"""Probability that NCCL does not choose what its cost model predicts; if it does, the launch repeats the default."""

Mixture = tuple[tuple[float, Array, Array], ...]
"""Posteriors under several hyperparameters: (weight, mean, variance), the weights add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """Posterior of ln(time / time of the default), settings x messages, and what else decides on a launch.

    Attributes:
        mean, variance: of the settings, without noise.
        measured: which settings were launched without fault.
        reaches: the messages at which a setting takes effect; elsewhere NCCL chooses as by default.
        own: where a setting is expected to force what NCCL chooses by itself, settings x messages.
        noise: variance that one launch of a setting adds.
        weights: share of each message in the default's time per step.
        mixture: what mean and variance are of; empty = one normal distribution.
    """

    mean: Array
    variance: Array
    measured: NDArray[np.bool_]
    reaches: NDArray[np.bool_]
    own: NDArray[np.bool_]
    noise: float
    weights: Array
    mixture: Mixture = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The best policy that the measurements support so far.

    Attributes:
        chosen: position of the setting of each message, below 0 = the default.
        value: its expected log ratio, 0 for the default.
        second: the best without it, at most 0.
    """

    chosen: NDArray[np.intp]
    value: Array
    second: Array

    def share(self, weights: Array) -> float:
        """Return the time per step under it as a share of the default's."""
        return float(weights @ np.exp(self.value))


def standing(beliefs: Beliefs) -> Standing:
    """Return the policy that the measured settings allow."""
    values = np.where(
        (beliefs.mean < _BAR) & beliefs.reaches & beliefs.measured[:, None],
        beliefs.mean,
        0.0,
    )
    padded = np.vstack([np.zeros((2, values.shape[1])), values])
    order = np.argsort(padded, axis=0, kind="stable")
    columns = np.arange(values.shape[1])
    return Standing(chosen=order[0] - 2, value=padded[order[0], columns], second=padded[order[1], columns])


def launch_gains(beliefs: Beliefs, now: Standing) -> Array:
    """Return what one more launch of each setting is expected to save, per message as a share of the default's time.

    Returns:
        settings x messages, at least 0.
    """
    if not beliefs.mixture:
        return _launch_gains(beliefs, now)
    gains = [w * _launch_gains(replace(beliefs, mean=m, variance=v), now) for w, m, v in beliefs.mixture]
    expected: Array = np.sum(gains, axis=0)
    return expected


def _launch_gains(beliefs: Beliefs, now: Standing) -> Array:
    moves = beliefs.variance / np.sqrt(beliefs.variance + beliefs.noise)
    bar = np.minimum(now.value, _BAR)
    gains = _shortfall(now.value, bar, beliefs.mean, moves)
    gains = np.where(beliefs.own & ~beliefs.measured[:, None], _OWN_DOUBT * gains, gains)
    columns = np.flatnonzero(now.chosen >= 0)
    rows = now.chosen[columns]
    gains[rows, columns] = _shortfall(
        -now.second[columns], -now.second[columns], -beliefs.mean[rows, columns], moves[rows, columns]
    )
    saved: Array = np.where(beliefs.reaches, gains, 0.0) * np.exp(now.value) * beliefs.weights
    return saved


def _shortfall(level: Array | float, bar: Array | float, mean: Array, sigma: Array) -> Array:
    """Return E[(level - x) where x < bar] of a normal x."""
    scaled = (bar - mean) / sigma
    density = np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
    result: Array = (level - mean) * ndtr(scaled) + sigma * density
    return result

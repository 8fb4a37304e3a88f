"""Acquisition function: the gain that a launch is expected to bring to the policy.

The policy takes for every message the best of the measured settings, and the default where none is expected to beat it
by `MIN_MESSAGE_GAIN`. A launch of a setting can bring something for many messages at once: by beating what is chosen,
by making sure of what looks better, or by showing that what is chosen was luck. For each message that is an integral
over one normal variable (the knowledge gradient with a threshold; Frazier, Powell, Dayanik: "The knowledge-gradient
policy for correlated normal beliefs", INFORMS J. Computing 21, 2009, without the correlation between settings), in the
mean over the hyperparameters that are still likely: a model that is less sure of itself has most of the surprises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ncclt.core.setting import Setting
from ncclt.search.assemble import MIN_GROUP_GAIN, MIN_MESSAGE_GAIN
from ncclt.search.gaussian_process import Array

_BAR = math.log(1 - MIN_MESSAGE_GAIN)
"""Log ratio below which a setting is expected to be better than the default."""

_OWN_DOUBT = 0.3
"""Probability that NCCL does not choose what its cost model predicts; if it does, the launch repeats the default."""

Mixture = tuple[tuple[float, Array, Array], ...]
"""Gaussian processes under several hyperparameters: (weight, mean, variance), the weights add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Gaussian process of ln(time / time of the default), settings x messages, and other inputs of a choice.

    Attributes:
        mean, variance: of the settings, without noise.
        measured: which settings were launched without fault.
        reaches: the messages at which a setting takes effect; elsewhere NCCL chooses as by default.
        own: True where a setting probably equals NCCL's own choice, settings x messages.
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
class Incumbent:
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


def find_incumbent(posterior: Posterior) -> Incumbent:
    """Find the best policy that the measured settings allow."""
    values = np.where(
        (posterior.mean < _BAR) & posterior.reaches & posterior.measured[:, None],
        posterior.mean,
        0.0,
    )
    padded = np.vstack([np.zeros((2, values.shape[1])), values])
    order = np.argsort(padded, axis=0, kind="stable")
    columns = np.arange(values.shape[1])
    return Incumbent(chosen=order[0] - 2, value=padded[order[0], columns], second=padded[order[1], columns])


def estimate_launch_gains(posterior: Posterior, now: Incumbent) -> Array:
    """Estimate the savings by one more launch of each setting, per message as a share of the default's time.

    Returns:
        settings x messages, at least 0.
    """
    if not posterior.mixture:
        return _estimate_launch_gains(posterior, now)
    gains = [w * _estimate_launch_gains(replace(posterior, mean=m, variance=v), now) for w, m, v in posterior.mixture]
    expected: Array = np.sum(gains, axis=0)
    return expected


def _estimate_launch_gains(posterior: Posterior, now: Incumbent) -> Array:
    moves = posterior.variance / np.sqrt(posterior.variance + posterior.noise)
    bar = np.minimum(now.value, _BAR)
    gains = _shortfall(now.value, bar, posterior.mean, moves)
    gains = np.where(posterior.own & ~posterior.measured[:, None], _OWN_DOUBT * gains, gains)
    columns = np.flatnonzero(now.chosen >= 0)
    rows = now.chosen[columns]
    gains[rows, columns] = _shortfall(
        -now.second[columns], -now.second[columns], -posterior.mean[rows, columns], moves[rows, columns]
    )
    saved: Array = np.where(posterior.reaches, gains, 0.0) * np.exp(now.value) * posterior.weights
    return saved


def _shortfall(level: Array | float, bar: Array | float, mean: Array, sigma: Array) -> Array:
    """Return E[(level - x) where x < bar] of a normal x."""
    scaled = (bar - mean) / sigma
    density = np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
    result: Array = (level - mean) * ndtr(scaled) + sigma * density
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateGains:
    """Expected gains of all candidate launches.

    Attributes:
        gains: of each setting, as a share of the default's time per step.
        by_message: the part of them within the plain group, by message: settings x messages.
        share: time per step of the best policy so far, as a share of the default's.
    """

    gains: Array
    by_message: Array
    share: float


def estimate_gains(settings: Sequence[Setting], posterior: Posterior) -> CandidateGains:
    """Estimate the gains of all settings of interest."""
    groups = [s.parameters for s in settings]
    plain = np.array([not g for g in groups], dtype=np.bool_)
    own = replace(posterior, measured=posterior.measured & plain)
    now = find_incumbent(own)
    best = now.share(posterior.weights)
    by_message = np.where(plain[:, None], estimate_launch_gains(own, now), 0.0)
    members = {g: np.array([g == neighbour for neighbour in groups]) for g in dict.fromkeys(groups) if g}
    incumbents = {g: _find_group_incumbent(posterior, inside) for g, inside in members.items()}
    shares = {g: s.share(posterior.weights) for g, s in incumbents.items()}
    overall = min([best, *(share for share in shares.values() if share < best * (1 - MIN_GROUP_GAIN))])
    gains = np.maximum(by_message.sum(axis=1) - (best - overall), 0.0)
    for group, inside in members.items():
        if math.isfinite(shares[group]):
            own = replace(posterior, measured=posterior.measured & inside)
            within = estimate_launch_gains(own, incumbents[group]).sum(axis=1) - max(shares[group] - overall, 0.0)
            gains = np.where(inside, np.maximum(within, 0.0), gains)
        gains = np.maximum(gains, _steps_towards(posterior, inside, overall))
    return CandidateGains(gains=gains, by_message=by_message, share=overall)


def _find_group_incumbent(posterior: Posterior, inside: np.ndarray) -> Incumbent:
    """Find the best policy among the measured settings of a group.

    Where no setting of a message was measured, its value is infinite and its choice means nothing.
    """
    times = np.where((inside & posterior.measured)[:, None], posterior.mean, np.inf)
    padded = np.vstack([np.full((2, times.shape[1]), np.inf), times])
    order = np.argsort(padded, axis=0, kind="stable")
    columns = np.arange(times.shape[1])
    value, second = padded[order[0], columns], padded[order[1], columns]
    return Incumbent(chosen=order[0] - 2, value=value, second=np.where(np.isfinite(second), second, value + 1.0))


def _steps_towards(posterior: Posterior, inside: np.ndarray, overall: float) -> Array:
    """Estimate the worth of each setting that a group's best policy still lacks, as a step towards it."""
    positions = np.flatnonzero(inside)
    contender = positions[posterior.mean[positions].argmin(axis=0)]
    columns = np.arange(posterior.mean.shape[1])
    expected = posterior.weights * np.exp(posterior.mean[contender, columns])
    sigma = float(expected @ np.sqrt(posterior.variance[contender, columns]))
    # E[max(0, x)] of a normal x.
    ahead = overall * (1 - MIN_GROUP_GAIN) - float(expected.sum())
    scaled = ahead / sigma
    gain = float(ahead * ndtr(scaled) + sigma * math.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi))
    missing = [index for index in dict.fromkeys(contender.tolist()) if not posterior.measured[index]]
    steps = np.zeros(len(posterior.mean))
    for index in missing:
        carried = float(posterior.weights[contender == index].sum())
        steps[index] = gain / len(missing) * (0.5 + 0.5 * carried)
    return steps

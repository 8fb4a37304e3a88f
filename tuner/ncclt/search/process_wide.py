"""Process-wide parameters: one process has one value of each, so all rules of a policy share them.

Settings with the same values of all parameters form a group, and all rules of a policy come from one group. A launch
with values other than those of the best policy so far gains nothing by itself: it is a step towards a policy of its
group, worth that policy's expected gain divided by the launches that it still takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from ncclt.core.setting import Setting
from ncclt.search.acquisition import Beliefs, Standing, launch_gains, standing
from ncclt.search.assemble import MIN_GROUP_GAIN
from ncclt.search.gaussian_process import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Expected gains of all candidate launches.

    Attributes:
        gains: of each setting, as a share of the default's time per step.
        by_message: the part of them within the plain group, by message: settings x messages.
        share: time per step of the best policy so far, as a share of the default's.
    """

    gains: Array
    by_message: Array
    share: float


def outlook(settings: Sequence[Setting], beliefs: Beliefs) -> Outlook:
    """Return the expected gains of all settings of interest."""
    groups = [s.parameters for s in settings]
    plain = np.array([not g for g in groups], dtype=np.bool_)
    own = replace(beliefs, measured=beliefs.measured & plain)
    now = standing(own)
    best = now.share(beliefs.weights)
    by_message = np.where(plain[:, None], launch_gains(own, now), 0.0)
    members = {g: np.array([g == other for other in groups]) for g in dict.fromkeys(groups) if g}
    standings = {g: _standing(beliefs, inside) for g, inside in members.items()}
    shares = {g: s.share(beliefs.weights) for g, s in standings.items()}
    overall = min([best, *(share for share in shares.values() if share < best * (1 - MIN_GROUP_GAIN))])
    gains = np.maximum(by_message.sum(axis=1) - (best - overall), 0.0)
    for group, inside in members.items():
        if math.isfinite(shares[group]):
            mine = replace(beliefs, measured=beliefs.measured & inside)
            within = launch_gains(mine, standings[group]).sum(axis=1) - max(shares[group] - overall, 0.0)
            gains = np.where(inside, np.maximum(within, 0.0), gains)
        gains = np.maximum(gains, _steps_towards(beliefs, inside, overall))
    return Outlook(gains=gains, by_message=by_message, share=overall)


def _standing(beliefs: Beliefs, inside: np.ndarray) -> Standing:
    """Return the best policy among the measured settings of a group.

    Where no setting of a message was measured, its value is infinite and its choice means nothing.
    """
    mine = np.where((inside & beliefs.measured)[:, None], beliefs.mean, np.inf)
    padded = np.vstack([np.full((2, mine.shape[1]), np.inf), mine])
    order = np.argsort(padded, axis=0, kind="stable")
    columns = np.arange(mine.shape[1])
    value, second = padded[order[0], columns], padded[order[1], columns]
    return Standing(chosen=order[0] - 2, value=value, second=np.where(np.isfinite(second), second, value + 1.0))


def _steps_towards(beliefs: Beliefs, inside: np.ndarray, overall: float) -> Array:
    """Return what each setting that a group's best policy still lacks is worth as a step towards it."""
    positions = np.flatnonzero(inside)
    contender = positions[beliefs.mean[positions].argmin(axis=0)]
    columns = np.arange(beliefs.mean.shape[1])
    expected = beliefs.weights * np.exp(beliefs.mean[contender, columns])
    sigma = float(expected @ np.sqrt(beliefs.variance[contender, columns]))
    gain = _improvement(overall * (1 - MIN_GROUP_GAIN) - float(expected.sum()), sigma)
    missing = [index for index in dict.fromkeys(contender.tolist()) if not beliefs.measured[index]]
    steps = np.zeros(len(beliefs.mean))
    for index in missing:
        carried = float(beliefs.weights[contender == index].sum())
        steps[index] = gain / len(missing) * (0.5 + 0.5 * carried)
    return steps


def _improvement(ahead: float, sigma: float) -> float:
    """Return E[max(0, x)] of a normal x."""
    scaled = ahead / sigma
    return float(ahead * ndtr(scaled) + sigma * math.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi))

"""Covariances between settings and between messages, and the hyperparameters that the Gaussian process weighs.

The constants are standard deviations of ln(time ratio) and lengths in doublings. They follow from what NCCL's
mechanisms can do, and were compared on recorded and simulated landscapes (adr/0007); the grid below adapts them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.nccl.cost_model.graph import graph_of
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.search.gaussian_process import Array, Kernels, Posterior, Table

_CONSTANT, _ALGORITHM, _PROTOCOL, _ALGO_PROTO = 0.3, 0.2, 0.3, 0.3
"""How far all forced settings, and those of one algorithm, protocol or pair, depart from the prior mean."""

_CHANNELS, _ALGO_PROTO_CHANNELS = 0.25, 0.2
"""How far channels move the time, for all pairs alike and for each in its own way."""

_CHANNEL_DOUBLINGS, _SLOPE = 2.0, 0.2
"""Channel counts this far apart are almost uncorrelated, but for a trend per doubling."""

_AUTO_LIKENESS = 0.85
"""Correlation of NCCL's own channel count with the same count forced: for small messages NCCL takes fewer."""

_ROUGH_DOUBLINGS, _OWN_SHARE, _OWN_SHARE_OF_ALGO_PROTO = 1.0, 0.4, 0.5
"""The rough part: length over channels, the share of its variance that is each setting's own, and the variance added
on top that settings of one pair and channel count share, whatever their parameters."""

_PARAMETER, _OTHER_ALGO_PROTO_PARAMETER = 0.06, 0.6
"""Size of a process-wide parameter's effect, and the correlation of that effect between two pairs."""

_OTHER_COLLECTIVE, _OTHER_GROUP = 0.6, 0.6
"""Correlation of two messages that differ in collective or group alone."""

SCALES = (1.0, 2.0)
ROUGHNESS = (0.025, 0.06, 0.15)
SIZE_DOUBLINGS = (3.0, 6.0)
PRIOR_WEIGHTS = (0.0, 0.5, 1.0)
"""The grid of hyperparameters: scale of the smooth part, standard deviation of the rough part, length over sizes, and
weights of the cost model: of what it says of pairs, and of what follows for their channels, as far as that is not sure.
One may be right where the other is wrong. A scale below 1 is left out: a few launches that agree with the cost model
would make sure of it, and hide what lies far from them."""

_LIKELY_ROUGHNESS = 0.06

_SURE = (1.0,)
"""Weight of what is sure about channels (`search.prior.channel_certainty`), the last part of the prior mean."""

Choice = tuple[float, float, float, float, float]
"""Scale, roughness, doublings of size, weights of the cost model for pairs and for channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The parts from which all covariances are made.

    Attributes:
        smooth, rough: unit parts between settings.
        parameters: effects of process-wide parameters between settings, 0 where one of the two sets none.
        size_doublings: distance of messages in doublings of size.
        kinds: likeness of messages by collective and group.
    """

    smooth: Array
    rough: Array
    parameters: Array
    size_doublings: Array
    kinds: Array

    def kernels(
        self, scale: float, roughness: float, size_doublings: float, of_pairs: float, of_channels: float
    ) -> Kernels:
        """Return the covariances of one choice of hyperparameters."""
        return Kernels(
            smooth=scale**2 * self.smooth + self.parameters,
            rough=roughness**2 * self.rough,
            sizes=_matern(self.size_doublings / size_doublings) * self.kinds,
            prior=(of_pairs, of_channels, *_SURE),
        )

    def among(self, settings: NDArray[np.intp]) -> Likeness:
        """Return the same for some of the settings alone."""
        square = np.ix_(settings, settings)
        return replace(self, smooth=self.smooth[square], rough=self.rough[square], parameters=self.parameters[square])


class Posteriors:
    """The processes of one table under many hyperparameters, which share their decompositions.

    Args:
        table: what was measured.
        alike: of all settings of interest.
    """

    def __init__(self, table: Table, alike: Likeness) -> None:
        self._table, self._alike = table, alike
        self._known: dict[tuple[float, ...], Posterior] = {}

    def __getitem__(self, choice: Choice) -> Posterior:
        """Return the process under one choice."""
        of_settings, covariance, prior = choice[:2], choice[:3], choice[3:]
        if covariance not in self._known:
            kernels, similar = self._alike.kernels(*choice), self._known.get(of_settings)
            found = Posterior(self._table, kernels) if similar is None else similar.resized(kernels)
            self._known[of_settings] = self._known[covariance] = found
        return self._known[covariance].reweighted((*prior, *_SURE))


@cache
def choices() -> tuple[Choice, ...]:
    """Return all hyperparameters to choose among, the most plausible first."""
    grid = itertools.product(SCALES, ROUGHNESS, SIZE_DOUBLINGS, PRIOR_WEIGHTS, PRIOR_WEIGHTS)
    return tuple(sorted(grid, key=implausibility))


@cache
def implausibility(choice: Choice) -> float:
    """Return minus the log prior of hyperparameters.

    NCCL's model is likely to be right about pairs; what is made of it for channels is our own.
    """
    scale, roughness, _, of_pairs, _ = choice
    return 0.5 * (math.log2(scale) ** 2 + math.log2(roughness / _LIKELY_ROUGHNESS) ** 2) + (1 - of_pairs)


def likeness(settings: Sequence[Setting], messages: Sequence[Message], cluster: Cluster) -> Likeness:
    """Compare all settings of interest, and all messages.

    Args:
        settings: of interest; the default is none of them.
        messages: of the workload, placed.
        cluster: sized.
    """
    algorithm = _same([s.algorithm for s in settings])
    protocol = _same([s.protocol for s in settings])
    algo_proto = algorithm * protocol
    own = math.log2(max(1, graph_of(cluster).channels))
    likely_own = {s: _own_doublings(s, messages, cluster, own) for s in settings if s.channels is None}
    doublings = np.array([likely_own[s] if s.channels is None else math.log2(s.channels) for s in settings])
    auto = np.array([s.channels is None for s in settings])
    likely = np.where(auto[:, None] == auto[None, :], 1.0, _AUTO_LIKENESS)
    distance = np.abs(doublings[:, None] - doublings[None, :])
    trend = _SLOPE**2 * np.outer(doublings - own, doublings - own)
    channels = (_matern(distance / _CHANNEL_DOUBLINGS) + trend) * likely
    smooth = (
        _CONSTANT**2
        + _ALGORITHM**2 * algorithm
        + _PROTOCOL**2 * protocol
        + _ALGO_PROTO**2 * algo_proto
        + _CHANNELS**2 * channels
        + _ALGO_PROTO_CHANNELS**2 * algo_proto * channels
    )
    effects = _parameter_effects(settings)
    same = (distance == 0) & (auto[:, None] == auto[None, :])
    own_group = _same([s.parameters for s in settings])
    rough = (
        algo_proto * own_group * ((1 - _OWN_SHARE) * _matern(distance / _ROUGH_DOUBLINGS) * likely + _OWN_SHARE * same)
    )
    return Likeness(
        smooth=smooth,
        rough=rough + _OWN_SHARE_OF_ALGO_PROTO * algo_proto * same,
        parameters=_PARAMETER**2 * effects * np.where(algo_proto > 0, 1.0, _OTHER_ALGO_PROTO_PARAMETER),
        size_doublings=_size_distance(messages),
        kinds=_kinds(messages),
    )


def _own_doublings(setting: Setting, messages: Sequence[Message], cluster: Cluster, most: float) -> float:
    """Return log2 of the channels that NCCL would take by itself under a setting, in the mean over the messages."""
    found = []
    for message in messages:
        choice = nccl_choice(
            message.collective,
            message.size_bytes,
            cluster,
            message.group_size,
            message.spans_nodes,
            algorithm=setting.algorithm,
            protocol=setting.protocol,
        )
        found.append(most if choice is None else math.log2(choice.channels))
    return statistics.fmean(found)


def _same(values: Sequence[object]) -> Array:
    order = {value: number for number, value in enumerate(dict.fromkeys(values))}
    codes = np.array([order[value] for value in values])
    same: Array = (codes[:, None] == codes[None, :]).astype(np.float64)
    return same


def _matern(distance: Array) -> Array:
    """Return the Matern covariance of smoothness 3/2 at a scaled distance."""
    scaled = math.sqrt(3) * distance
    result: Array = (1 + scaled) * np.exp(-scaled)
    return result


def _parameter_effects(settings: Sequence[Setting]) -> Array:
    """Return the covariance of the parameters' effects; a setting that leaves a parameter alone has none."""
    effects = np.zeros((len(settings), len(settings)))
    for name in sorted({name for s in settings for name, _ in s.parameters}):
        values = [dict(s.parameters).get(name) for s in settings]
        position = np.array([0.0 if v is None else math.log2(1 + max(0, v)) for v in values])
        there = np.array([v is not None for v in values], dtype=np.float64)
        effects += np.outer(there, there) * _matern(np.abs(position[:, None] - position[None, :]) / 2)
    return effects


def _size_distance(messages: Sequence[Message]) -> Array:
    doublings = np.array([math.log2(m.size_bytes) for m in messages])
    distance: Array = np.abs(doublings[:, None] - doublings[None, :])
    return distance


def _kinds(messages: Sequence[Message]) -> Array:
    collective = _same([m.collective for m in messages])
    group = _same([(m.group_size, m.spans_nodes) for m in messages])
    kinds: Array = np.where(collective > 0, 1.0, _OTHER_COLLECTIVE) * np.where(group > 0, 1.0, _OTHER_GROUP)
    return kinds

"""Fit the Gaussian process to the observations, and predict every setting."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.search.acquisition import Mixture, Posterior
from ncclt.search.assemble import Times
from ncclt.search.gaussian_process import Array, Covariance, GaussianProcess, Table, one_blas_thread, prior_mean
from ncclt.search.observations import Observations, compress_losses, expand_losses
from ncclt.search.prior import channel_certainty, expected_log_ratios, match_expected_default

_CONSTANT, _ALGORITHM, _PROTOCOL, _ALGO_PROTO = 0.3, 0.2, 0.3, 0.3
"""Prior deviations from the mean: of all forced settings, and of those of one algorithm, protocol or pair."""

_CHANNELS, _ALGO_PROTO_CHANNELS = 0.25, 0.2
"""Prior deviations by channels: common to all pairs, and of each pair."""

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

_USUAL_ROUGHNESS = 0.06

_SURE = (1.0,)
"""Weight of what is sure about channels (`search.prior.channel_certainty`), the last part of the prior mean."""

Hyperparameters = tuple[float, float, float, float, float]
"""Scale, roughness, doublings of size, weights of the cost model for pairs and for channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Kernel over settings and messages: the parts from which all covariances are made.

    Attributes:
        smooth, rough: unit parts between settings.
        parameters: effects of process-wide parameters between settings, 0 where one of the two sets none.
        size_doublings: distance of messages in doublings of size.
        kinds: kernel of messages by collective and group.
    """

    smooth: Array
    rough: Array
    parameters: Array
    size_doublings: Array
    kinds: Array

    def covariance(
        self, scale: float, roughness: float, size_doublings: float, of_pairs: float, of_channels: float
    ) -> Covariance:
        """Return the covariances of one choice of hyperparameters."""
        return Covariance(
            smooth=scale**2 * self.smooth + self.parameters,
            rough=roughness**2 * self.rough,
            sizes=_matern(self.size_doublings / size_doublings) * self.kinds,
            prior=(of_pairs, of_channels, *_SURE),
        )

    def among(self, settings: NDArray[np.intp]) -> Kernel:
        """Return the same for some of the settings alone."""
        square = np.ix_(settings, settings)
        return replace(self, smooth=self.smooth[square], rough=self.rough[square], parameters=self.parameters[square])


class GaussianProcesses:
    """Gaussian processes of one table under many hyperparameters, which share their decompositions."""

    def __init__(self, table: Table, kernel: Kernel) -> None:
        self._table, self._kernel = table, kernel
        self._known: dict[tuple[float, ...], GaussianProcess] = {}

    def __getitem__(self, choice: Hyperparameters) -> GaussianProcess:
        """Return the process under one choice."""
        key_of_settings, key, prior_weights = choice[:2], choice[:3], choice[3:]
        if key not in self._known:
            covariance, similar = self._kernel.covariance(*choice), self._known.get(key_of_settings)
            process = GaussianProcess(self._table, covariance) if similar is None else similar.resized(covariance)
            self._known[key_of_settings] = self._known[key] = process
        return self._known[key].reweighted((*prior_weights, *_SURE))


@cache
def hyperparameter_grid() -> tuple[Hyperparameters, ...]:
    """Return all hyperparameters to choose among, the most plausible first."""
    grid = itertools.product(SCALES, ROUGHNESS, SIZE_DOUBLINGS, PRIOR_WEIGHTS, PRIOR_WEIGHTS)
    return tuple(sorted(grid, key=neg_log_prior))


@cache
def neg_log_prior(choice: Hyperparameters) -> float:
    """Return the negative log prior of hyperparameters.

    NCCL's model is likely to be right about pairs; what is made of it for channels is our own.
    """
    scale, roughness, _, of_pairs, _ = choice
    return 0.5 * (math.log2(scale) ** 2 + math.log2(roughness / _USUAL_ROUGHNESS) ** 2) + (1 - of_pairs)


def build_kernel(settings: Sequence[Setting], messages: Sequence[Message], cluster: Cluster) -> Kernel:
    """Build the kernel of all settings of interest and all messages.

    Args:
        settings: of interest; the default is none of them.
        messages: of the workload, placed.
        cluster: sized.
    """
    algorithm = _build_indicator([s.algorithm for s in settings])
    protocol = _build_indicator([s.protocol for s in settings])
    algo_proto = algorithm * protocol
    own = math.log2(max(1, build_topology(cluster).channels))
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
    message_doublings = np.array([math.log2(m.size_bytes) for m in messages])
    is_same = (distance == 0) & (auto[:, None] == auto[None, :])
    own_group = _build_indicator([s.parameters for s in settings])
    rough = (
        algo_proto
        * own_group
        * ((1 - _OWN_SHARE) * _matern(distance / _ROUGH_DOUBLINGS) * likely + _OWN_SHARE * is_same)
    )
    return Kernel(
        smooth=smooth,
        rough=rough + _OWN_SHARE_OF_ALGO_PROTO * algo_proto * is_same,
        parameters=_PARAMETER**2 * effects * np.where(algo_proto > 0, 1.0, _OTHER_ALGO_PROTO_PARAMETER),
        size_doublings=np.abs(message_doublings[:, None] - message_doublings[None, :]),
        kinds=np.where(_build_indicator([m.collective for m in messages]) > 0, 1.0, _OTHER_COLLECTIVE)
        * np.where(_build_indicator([(m.group_size, m.spans_nodes) for m in messages]) > 0, 1.0, _OTHER_GROUP),
    )


def _own_doublings(setting: Setting, messages: Sequence[Message], cluster: Cluster, limit: float) -> float:
    """Return log2 of the channels that NCCL would take by itself under a setting, in the mean over the messages."""
    doublings = []
    for message in messages:
        choice = nccl_choice(
            message.collective,
            message.size_bytes,
            build_topology(cluster, message.group_size, message.spans_nodes),
            algorithm=setting.algorithm,
            protocol=setting.protocol,
        )
        doublings.append(limit if choice is None else math.log2(choice.channels))
    return statistics.fmean(doublings)


def _build_indicator(values: Sequence[object]) -> Array:
    order = {value: number for number, value in enumerate(dict.fromkeys(values))}
    codes = np.array([order[value] for value in values])
    is_same: Array = (codes[:, None] == codes[None, :]).astype(np.float64)
    return is_same


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
        is_set = np.array([v is not None for v in values], dtype=np.float64)
        effects += np.outer(is_set, is_set) * _matern(np.abs(position[:, None] - position[None, :]) / 2)
    return effects


_FITTED_ROWS = 48
"""Most settings on which the hyperparameters are weighted; of more, evenly spread ones are taken."""

_CHOICES, _LEAST_WEIGHT = 16, 0.02
"""Most choices of hyperparameters that are averaged, and the least weight of one relative to the best.
A few launches do not show how good the cost model is; the best choice alone would be overconfident."""

_AVERAGED_ROWS, _FEW_CHOICES, _FEW_ROWS = 24, 3, 128
"""With more settings measured a few choices are averaged, with still more the best one is used alone: much is known by
then, and each choice costs time."""

_EVIDENCE_DIGITS, _WEIGHT_DIGITS, _POSTERIOR_DIGITS = 6, 6, 8
"""Evidence, weights and posterior are rounded to these digits before a comparison: every machine chooses the same."""

_LEAST_VARIANCE = 1e-12


class Model:
    """The Gaussian process over some settings of interest and the messages of a workload.

    Args:
        settings: of interest, without the default.
        workload: placed.
        cluster: sized.
        printed_costs: NCCL's own tables, where a log held them.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        workload: Workload,
        cluster: Cluster,
        printed_costs: PrintedCosts | None = None,
    ) -> None:
        self.settings = tuple(settings)
        self._messages = [calls.message for calls in workload.messages]
        self._calls = np.array([calls.calls_per_step for calls in workload.messages])
        self._at = {setting: index for index, setting in enumerate(self.settings)}
        where = (self._messages, cluster, printed_costs)
        losses = compress_losses(expected_log_ratios(self.settings, *where))
        of_pairs = compress_losses(expected_log_ratios([replace(s, channels=None) for s in self.settings], *where))
        of_channels = losses - of_pairs
        sure = channel_certainty(*where) * of_channels
        self._expected = np.array([of_pairs, of_channels - sure, sure])
        self._own = match_expected_default(self.settings, *where)
        self._kernel = build_kernel(self.settings, self._messages, cluster)
        pairs = [replace(s, channels=None, parameters=()) for s in self.settings]
        order = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}
        reaches = [[pair.reaches(m.collective, version=cluster.version) for m in self._messages] for pair in order]
        self._reaches = np.array(reaches, dtype=np.bool_)[[order[pair] for pair in pairs]]

    @one_blas_thread()
    def compute_posterior(self, observations: Observations, running: Collection[Setting]) -> Posterior:
        """Compute the posterior of every setting of interest.

        A running launch counts as one with the expected result, so that the next proposal looks elsewhere.
        """
        rows = np.array([self._at[s] for s in observations.ratios], dtype=np.intp)
        launches = np.zeros(len(self.settings))
        launches[rows] = [observations.launches[s] for s in observations.ratios]
        measured = launches > 0
        noise = observations.sigma**2
        if len(rows):
            table = Table(
                rows=rows,
                values=np.array([compress_losses(y) for y in observations.ratios.values()]),
                noise=noise / launches[rows],
                expected=self._expected,
            )
            likely = self._likely_choices(table)
            mixture = self._mixture(table, likely)
        else:
            table, likely = None, [(1.0, hyperparameter_grid()[0])]
            covariance = self._kernel.covariance(*hyperparameter_grid()[0])
            variance = np.outer(np.diag(covariance.smooth), np.diag(covariance.sizes))
            variance = variance + np.diag(covariance.rough)[:, None]
            mixture = ((1.0, prior_mean(covariance.prior, self._expected), variance),)
        pending = np.array(sorted(self._at[s] for s in running if s in self._at), dtype=np.intp)
        if len(pending):
            table = _extend_table(table, pending, _average_mixture(mixture)[0], noise, self._expected)
            mixture = self._mixture(table, likely)
        mixture = tuple((weight, *_round_moments(mean, variance)) for weight, mean, variance in mixture)
        mean, variance = _round_moments(*_average_mixture(mixture))
        cost = self._calls * observations.default_us
        return Posterior(
            mean=mean,
            variance=variance,
            measured=measured,
            reaches=self._reaches,
            own=self._own,
            noise=noise,
            weights=cost / cost.sum(),
            mixture=mixture,
        )

    def _mixture(self, table: Table, likely: Sequence[tuple[float, Hyperparameters]]) -> Mixture:
        """Return the posteriors of some hyperparameters: settings x messages."""
        everything = np.arange(len(self.settings))
        posteriors = GaussianProcesses(table, self._kernel)
        return tuple((weight, *posteriors[choice].predict(everything)) for weight, choice in likely)

    def _likely_choices(self, table: Table) -> list[tuple[float, Hyperparameters]]:
        """Return the likeliest hyperparameters; their weights add up to 1."""
        rows_used = np.arange(len(table.rows))
        if len(rows_used) > _FITTED_ROWS:
            rows_used = np.linspace(0, len(rows_used) - 1, _FITTED_ROWS).round().astype(np.intp)
        kernel = self._kernel.among(table.rows[rows_used])
        part = Table(
            rows=np.arange(len(rows_used)),
            values=table.values[rows_used],
            noise=table.noise[rows_used],
            expected=table.expected[:, table.rows[rows_used]],
        )

        posteriors = GaussianProcesses(part, kernel)
        scores = [posteriors[choice].evidence() - neg_log_prior(choice) for choice in hyperparameter_grid()]
        final = np.round(scores, _EVIDENCE_DIGITS)
        rows = len(table.rows)
        choices = _CHOICES if rows <= _AVERAGED_ROWS else _FEW_CHOICES if rows <= _FEW_ROWS else 1
        best = np.argsort(-final, kind="stable")[:choices]  # a stable order: ties go to the most plausible ones
        weights = np.round(np.exp(final[best] - final[best[0]]), _WEIGHT_DIGITS)
        likely_enough = weights >= _LEAST_WEIGHT
        best, weights = best[likely_enough], weights[likely_enough]
        shares = weights / weights.sum()
        return [(float(w), hyperparameter_grid()[i]) for w, i in zip(shares, best, strict=True)]


def _average_mixture(mixture: Mixture) -> tuple[Array, Array]:
    """Return mean and variance of a mixture."""
    mean: Array = np.sum([weight * component for weight, component, _ in mixture], axis=0)
    square: Array = np.sum([weight * (variance + component**2) for weight, component, variance in mixture], axis=0)
    return mean, square - mean**2


def _round_moments(mean: Array, variance: Array) -> tuple[Array, Array]:
    return np.round(mean, _POSTERIOR_DIGITS), np.maximum(np.round(variance, 2 * _POSTERIOR_DIGITS), _LEAST_VARIANCE)


def _extend_table(table: Table | None, pending: np.ndarray, mean: Array, noise: float, expected: Array) -> Table:
    extra = [index for index in pending if table is None or index not in table.rows]
    rows = np.array(extra, dtype=np.intp)
    if table is None:
        return Table(rows=rows, values=mean[rows], noise=np.full(len(rows), noise), expected=expected)
    return Table(
        rows=np.concatenate([table.rows, rows]),
        values=np.concatenate([table.values, mean[rows]]),
        noise=np.concatenate([table.noise, np.full(len(rows), noise)]),
        expected=expected,
    )


def posterior_mean(
    times: Times, workload: Workload, cluster: Cluster, printed_costs: PrintedCosts | None = None
) -> Times:
    """Return the posterior means of the times: one lucky launch is drawn towards similar settings.

    Args:
        times: measured; the default among them, for every message of the workload.
        workload: placed.
        cluster: sized.
        printed_costs: NCCL's own tables, where a log held them.
    """
    messages = [calls.message for calls in workload.messages]
    complete = {s: times_us for s, times_us in times.by_setting.items() if all(m in times_us for m in messages)}
    default_us = np.array([times.default[message] for message in messages])
    ratios = {
        s: np.log(np.array([times_us[message] for message in messages]) / default_us)
        for s, times_us in complete.items()
        if not s.is_default
    }
    if not ratios:
        return times
    observations = Observations(
        default_us=default_us,
        ratios=ratios,
        launches={setting: times.fewest(setting) for setting in complete},
        failures={},
        sigma=times.sigma,
    )
    posterior = Model(tuple(ratios), workload, cluster, printed_costs).compute_posterior(observations, ())
    known_ratios = np.array(list(ratios.values()))
    # Launches of policies told more about some messages than the rows of the model hold.
    extra = np.array([[times.launches[s][m] - times.fewest(s) for m in messages] for s in ratios]) / posterior.noise
    precision = 1 / posterior.variance
    mean = (precision * posterior.mean + extra * compress_losses(known_ratios)) / (precision + extra)
    expected = default_us * np.exp(expand_losses(mean))
    rows = {s: dict(zip(messages, row.tolist(), strict=True)) for s, row in zip(ratios, expected, strict=True)}
    return replace(times, by_setting={s: {**times_us, **rows.get(s, {})} for s, times_us in times.by_setting.items()})

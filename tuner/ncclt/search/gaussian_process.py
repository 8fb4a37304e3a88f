"""Gaussian process of ln(time / time of the default) over all settings, one per message.

All messages share the covariance of settings; the mean is NCCL's cost model. Constants are standard deviations of log
ratios, tuned with `bench/search.py` on recorded clusters (adr/0007).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.search.assemble import Times
from ncclt.search.prior import expected_log_ratios

Array = NDArray[np.float64]

_DEVIATION, _CHANNEL_DOUBLINGS = 0.3, 2.0
"""Deviation of a pair from the cost model, and length scale of channel counts in doublings.

Terms common to all pairs, or to all channels of a pair, had no effect (adr/0007).
"""

_OWN = 0.06
"""Independent deviation of each setting, and effect of a process-wide parameter.

Without it the regret after 12 launches is 0.78 instead of 0.67 % (`bench/search.py --without own`).
"""

_HOPELESS = 0.5
"""Log ratio above which losses are compressed: the model must be accurate near the gains (adr/0007)."""


class GaussianProcess:
    """Gaussian process of a workload's messages under some settings.

    Args:
        settings: settings to model, without the default.
        workload: workload placed on the cluster.
        cluster: cluster sized to the job.
        printed_costs: cost tables from NCCL's log; None = estimate them.
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
        self.expected = expected_log_ratios(self.settings, self._messages, cluster, printed_costs)
        self._covariance = build_covariance(self.settings, channels=build_topology(cluster).channels)

    def predict(self, times: Times, running: Collection[Setting] = ()) -> tuple[Array, Array]:
        """Return mean and variance of the compressed log ratios, settings x messages, without noise.

        Running launches count with their expected result, so that the next proposal explores elsewhere.

        Args:
            times: measured times, the default included.
            running: settings of running launches.
        """
        columns = []
        for message, prior in zip(self._messages, compress_losses(self.expected).T, strict=True):
            measured = [i for i, s in enumerate(self.settings) if message in times.by_setting.get(s, ())]
            launched = [self.settings[i] for i in measured]
            ratios = np.array([times.by_setting[s][message] for s in launched]) / times.default[message]
            noise = [times.sigma**2 / times.count(s, message) for s in launched]
            column = self._condition(prior, measured, compress_losses(np.log(ratios)), noise)
            pending = [i for i, s in enumerate(self.settings) if s in running and i not in measured]
            if pending:
                values = np.concatenate([compress_losses(np.log(ratios)), column[0][pending]])
                noise += [times.sigma**2] * len(pending)
                column = self._condition(prior, measured + pending, values, noise)
            columns.append(column)
        mean, variance = np.array(columns).transpose(1, 2, 0)
        return mean, variance

    def _condition(
        self, prior: Array, rows: Sequence[int], values: Array, noise: Sequence[float]
    ) -> tuple[Array, Array]:
        """Condition one message on the values of some rows, and return mean and variance."""
        among = self._covariance[np.ix_(rows, rows)] + np.diag(noise)
        gain = np.linalg.solve(among, self._covariance[rows]).T
        variance = np.diag(self._covariance) - (gain * self._covariance[:, rows]).sum(axis=1)
        return prior + gain @ (values - prior[rows]), np.maximum(variance, 0.0)


def build_covariance(settings: Sequence[Setting], *, channels: int) -> Array:
    """Return the covariance of settings.

    Args:
        settings: settings without the default.
        channels: channels of the communicator, NCCL's maximum by default.
    """
    same_pair = _build_indicator([(s.algorithm, s.protocol) for s in settings])
    channel_covariance = _matern(_distances([math.log2(s.channels or channels) for s in settings]) / _CHANNEL_DOUBLINGS)
    effects = np.zeros_like(channel_covariance)
    for name in sorted({name for s in settings for name, _ in s.parameters}):
        values = [dict(s.parameters).get(name) for s in settings]
        is_set = np.array([value is not None for value in values], dtype=np.float64)
        # log2(1 + value), since a parameter can be 0.
        distances = _distances([math.log2(1 + max(0, value or 0)) for value in values])
        effects += np.outer(is_set, is_set) * _matern(distances / 2)
    same_apart_from_parameters = _build_indicator([replace(s, parameters=()) for s in settings])
    same_parameters = _build_indicator([s.parameters for s in settings])
    covariance: Array = (
        _DEVIATION**2 * same_pair * channel_covariance
        + _OWN**2 * same_apart_from_parameters * (1 + same_parameters) / 2
        + _OWN**2 * effects * (1 + same_pair) / 2
    )
    return covariance


def _build_indicator(values: Sequence[object]) -> Array:
    order = {value: number for number, value in enumerate(dict.fromkeys(values))}
    codes = np.array([order[value] for value in values])
    is_same: Array = (codes[:, None] == codes[None, :]).astype(np.float64)
    return is_same


def _distances(positions: Sequence[float]) -> Array:
    distances: Array = np.abs(np.subtract.outer(positions, positions))
    return distances


def _matern(distance: Array) -> Array:
    """Return the Matern covariance of smoothness 3/2 at a scaled distance."""
    scaled = math.sqrt(3) * distance
    covariance: Array = (1 + scaled) * np.exp(-scaled)
    return covariance


def compress_losses(ratios: Array) -> Array:
    """Return log ratios with losses compressed and gains unchanged.

    Hopeless settings are up to 100 times as slow, while the best ones differ by a few percent. Without compression the
    model would not resolve the latter.
    """
    return np.where(ratios > 0, _HOPELESS * np.log1p(np.maximum(ratios, 0.0) / _HOPELESS), ratios)


def expand_losses(values: Array) -> Array:
    """Invert `compress_losses`."""
    return np.where(values > 0, _HOPELESS * np.expm1(np.maximum(values, 0.0) / _HOPELESS), values)


def posterior_mean(
    times: Times, workload: Workload, cluster: Cluster, printed_costs: PrintedCosts | None = None
) -> Times:
    """Return the posterior means of the times, which shrink lucky launches towards similar settings.

    Args:
        times: measured times, with the default for every message of the workload.
        workload: workload placed on the cluster.
        cluster: cluster sized to the job.
        printed_costs: cost tables from NCCL's log; None = estimate them.
    """
    settings = [setting for setting in times.by_setting if not setting.is_default]
    if not settings:
        return times
    mean, _ = GaussianProcess(settings, workload, cluster, printed_costs).predict(times)
    expected = np.exp(expand_losses(mean))
    by_setting = {setting: dict(measured) for setting, measured in times.by_setting.items()}
    for setting, row in zip(settings, expected.tolist(), strict=True):
        for calls, ratio in zip(workload.messages, row, strict=True):
            if calls.message in by_setting[setting]:
                by_setting[setting][calls.message] = times.default[calls.message] * ratio
    return replace(times, by_setting=by_setting)

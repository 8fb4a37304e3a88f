"""Fit the Gaussian process to the observations, and predict every setting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ncclt.core.algorithms import is_legal
from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.search.acquisition import Beliefs, Mixture
from ncclt.search.assemble import Times
from ncclt.search.gaussian_process import Array, Kernels, Table, one_blas_thread, weighted
from ncclt.search.kernels import Choice, Posteriors, choices, implausibility, likeness
from ncclt.search.observations import Observations, flattened, unflattened
from ncclt.search.prior import channel_certainty, expected_log_ratios, expected_own

_FITTED_ROWS = 48
"""Most settings on which the hyperparameters are weighed; of more, evenly spread ones are taken."""

_CHOICES, _LEAST_WEIGHT = 16, 0.02
"""Most choices of hyperparameters that are averaged, and the least weight of one relative to the best.
A few launches do not show how good the cost model is; the best choice alone would be overconfident."""

_AVERAGED_ROWS, _FEW_CHOICES, _FEW_ROWS = 24, 3, 128
"""With more settings measured a few choices are averaged, with still more the best one is used alone: much is known by
then, and each choice costs time."""

_EVIDENCE_DIGITS, _WEIGHT_DIGITS, _BELIEF_DIGITS = 6, 6, 8
"""Evidence, weights and beliefs are rounded to these before they are compared, so that every machine chooses alike."""

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
        whole = flattened(expected_log_ratios(self.settings, *where))
        of_pairs = flattened(expected_log_ratios([replace(s, channels=None) for s in self.settings], *where))
        of_channels = whole - of_pairs
        sure = channel_certainty(*where) * of_channels
        self._expected = np.array([of_pairs, of_channels - sure, sure])
        self._own = expected_own(self.settings, *where)
        self._alike = likeness(self.settings, self._messages, cluster)
        algo_protos = [(s.algorithm, s.protocol) for s in self.settings]
        order = {algo_proto: index for index, algo_proto in enumerate(dict.fromkeys(algo_protos))}
        reaches = [
            [is_legal(m.collective, *algo_proto, version=cluster.version) for m in self._messages]
            for algo_proto in order
        ]
        self._reaches = np.array(reaches, dtype=np.bool_)[[order[algo_proto] for algo_proto in algo_protos]]

    @one_blas_thread()
    def believe(self, observations: Observations, running: Collection[Setting]) -> Beliefs:
        """Return what is known about every setting of interest.

        A running launch counts as one with the expected result, so that the next proposal looks elsewhere.

        Args:
            observations: so far.
            running: settings that are being launched.
        """
        rows = np.array([self._at[s] for s in observations.ratios], dtype=np.intp)
        launches = np.zeros(len(self.settings))
        launches[rows] = [observations.launches[s] for s in observations.ratios]
        measured = launches > 0
        noise = observations.sigma**2
        if len(rows):
            table = Table(
                rows=rows,
                values=np.array([flattened(y) for y in observations.ratios.values()]),
                noise=noise / launches[rows],
                expected=self._expected,
            )
            weighed = self._likely_choices(table)
            mixture = self._mixture(table, weighed)
        else:
            table, weighed = None, [(1.0, choices()[0])]
            mixture = ((1.0, *_before_all(self._expected, self._alike.kernels(*choices()[0]))),)
        pending = np.array(sorted(self._at[s] for s in running if s in self._at), dtype=np.intp)
        if len(pending):
            table = _extended(table, pending, _averaged(mixture)[0], noise, self._expected)
            mixture = self._mixture(table, weighed)
        mixture = tuple((weight, *_rounded(mean, variance)) for weight, mean, variance in mixture)
        mean, variance = _rounded(*_averaged(mixture))
        cost = self._calls * observations.default_us
        return Beliefs(
            mean=mean,
            variance=variance,
            measured=measured,
            reaches=self._reaches,
            own=self._own,
            noise=noise,
            weights=cost / cost.sum(),
            mixture=mixture,
        )

    def _mixture(self, table: Table, weighed: Sequence[tuple[float, Choice]]) -> Mixture:
        """Return the posteriors of some hyperparameters: settings x messages."""
        everything = np.arange(len(self.settings))
        posteriors = Posteriors(table, self._alike)
        return tuple((weight, *posteriors[choice].predict(everything)) for weight, choice in weighed)

    def _likely_choices(self, table: Table) -> list[tuple[float, Choice]]:
        """Return the likeliest hyperparameters; their weights add up to 1."""
        kept = np.arange(len(table.rows))
        if len(kept) > _FITTED_ROWS:
            kept = np.linspace(0, len(kept) - 1, _FITTED_ROWS).round().astype(np.intp)
        alike = self._alike.among(table.rows[kept])
        part = Table(
            rows=np.arange(len(kept)),
            values=table.values[kept],
            noise=table.noise[kept],
            expected=table.expected[:, table.rows[kept]],
        )

        posteriors = Posteriors(part, alike)
        scores = [posteriors[choice].evidence() - implausibility(choice) for choice in choices()]
        final = np.round(scores, _EVIDENCE_DIGITS)
        rows = len(table.rows)
        most = _CHOICES if rows <= _AVERAGED_ROWS else _FEW_CHOICES if rows <= _FEW_ROWS else 1
        best = np.argsort(-final, kind="stable")[:most]  # a stable order: ties go to the most plausible ones
        weights = np.round(np.exp(final[best] - final[best[0]]), _WEIGHT_DIGITS)
        likely_enough = weights >= _LEAST_WEIGHT
        best, weights = best[likely_enough], weights[likely_enough]
        shares = weights / weights.sum()
        return [(float(w), choices()[i]) for w, i in zip(shares, best, strict=True)]


def _averaged(mixture: Mixture) -> tuple[Array, Array]:
    """Return mean and variance of a mixture."""
    mean: Array = np.sum([weight * mine for weight, mine, _ in mixture], axis=0)
    square: Array = np.sum([weight * (variance + mine**2) for weight, mine, variance in mixture], axis=0)
    return mean, square - mean**2


def _rounded(mean: Array, variance: Array) -> tuple[Array, Array]:
    return np.round(mean, _BELIEF_DIGITS), np.maximum(np.round(variance, 2 * _BELIEF_DIGITS), _LEAST_VARIANCE)


def _before_all(expected: Array, kernels: Kernels) -> tuple[Array, Array]:
    variance = np.outer(np.diag(kernels.smooth), np.diag(kernels.sizes)) + np.diag(kernels.rough)[:, None]
    return weighted(kernels.prior, expected), variance


def _extended(table: Table | None, pending: np.ndarray, mean: Array, noise: float, expected: Array) -> Table:
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


def believed(times: Times, workload: Workload, cluster: Cluster, printed_costs: PrintedCosts | None = None) -> Times:
    """Return the times as the model believes them: what one lucky launch showed is drawn towards its likes.

    Args:
        times: measured; the default among them, for every message of the workload.
        workload: placed.
        cluster: sized.
        printed_costs: NCCL's own tables, where a log held them.
    """
    messages = [calls.message for calls in workload.messages]
    whole = {s: known for s, known in times.by_setting.items() if all(m in known for m in messages)}
    default_us = np.array([times.default[message] for message in messages])
    ratios = {
        s: np.log(np.array([known[message] for message in messages]) / default_us)
        for s, known in whole.items()
        if not s.is_default
    }
    if not ratios:
        return times
    observations = Observations(
        default_us=default_us,
        ratios=ratios,
        launches={setting: times.fewest(setting) for setting in whole},
        failures={},
        sigma=times.sigma,
    )
    beliefs = Model(tuple(ratios), workload, cluster, printed_costs).believe(observations, ())
    known_ratios = np.array(list(ratios.values()))
    # Launches of policies told more about some messages than the rows of the model hold.
    more = np.array([[times.launches[s][m] - times.fewest(s) for m in messages] for s in ratios]) / beliefs.noise
    precision = 1 / beliefs.variance
    mean = (precision * beliefs.mean + more * flattened(known_ratios)) / (precision + more)
    expected = default_us * np.exp(unflattened(mean))
    rows = {s: dict(zip(messages, row.tolist(), strict=True)) for s, row in zip(ratios, expected, strict=True)}
    return replace(times, by_setting={s: {**known, **rows.get(s, {})} for s, known in times.by_setting.items()})

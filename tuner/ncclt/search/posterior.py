"""Fit the Gaussian process to the observations, and predict every setting."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ncclt.core.algorithms import is_legal
from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.search.acquisition import Beliefs
from ncclt.search.gaussian_process import Array, Kernels, Posterior, Table
from ncclt.search.kernels import Choice, choices, implausibility, likeness
from ncclt.search.observations import Observations, flattened
from ncclt.search.prior import expected_log_ratios, expected_own

_FITTED_ROWS = 48
"""Most settings on which the hyperparameters are weighed; of more, evenly spread ones are taken."""

_CHOICES, _LEAST_WEIGHT = 3, 0.15
"""Most choices of hyperparameters that are averaged, and the least weight of one relative to the best.
A few launches do not show how good the cost model is; the best choice alone would be overconfident."""

_AVERAGED_ROWS = 128
"""With more settings measured the best choice is used alone: much is known by then, and each choice costs time."""

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
        self._expected = flattened(expected_log_ratios(self.settings, *where))
        self._own = expected_own(self.settings, *where)
        self._alike = likeness(self.settings, self._messages, cluster)
        algo_protos = [(s.algorithm, s.protocol) for s in self.settings]
        order = {algo_proto: index for index, algo_proto in enumerate(dict.fromkeys(algo_protos))}
        self._algo_proto = np.array([order[algo_proto] for algo_proto in algo_protos])
        reaches = [
            [is_legal(m.collective, *algo_proto, version=cluster.version) for m in self._messages]
            for algo_proto in order
        ]
        self._reaches = np.array(reaches, dtype=np.bool_)[self._algo_proto]

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
            weighed = self._weighed(table)
            mean, variance = self._averaged(table, weighed)
        else:
            table, weighed = None, [(1.0, choices()[0])]
            mean, variance = _before_all(self._expected, self._alike.kernels(*choices()[0]))
        pending = np.array(sorted(self._at[s] for s in running if s in self._at), dtype=np.intp)
        if len(pending):
            table = _extended(table, pending, mean, noise, self._expected)
            mean, variance = self._averaged(table, weighed)
        cost = self._calls * observations.default_us
        tried = np.isin(self._algo_proto, self._algo_proto[[*rows, *pending]]) if len(rows) or len(pending) else False
        return Beliefs(
            mean=np.round(mean, _BELIEF_DIGITS),
            variance=np.maximum(np.round(variance, 2 * _BELIEF_DIGITS), _LEAST_VARIANCE),
            measured=measured,
            reaches=self._reaches,
            untried=np.broadcast_to(~np.asarray(tried), launches.shape),
            own=self._own,
            noise=noise,
            default_launches=observations.launches_of_default,
            weights=cost / cost.sum(),
        )

    def _averaged(self, table: Table, weighed: Sequence[tuple[float, Choice]]) -> tuple[Array, Array]:
        """Return mean and variance of the mixture of the posteriors of some hyperparameters: settings x messages."""
        everything = np.arange(len(self.settings))
        mean = np.zeros_like(self._expected)
        square = np.zeros_like(self._expected)
        for weight, choice in weighed:
            mine, variance = Posterior(table, self._alike.kernels(*choice)).predict(everything)
            mean += weight * mine
            square += weight * (variance + mine**2)
        return mean, np.maximum(square - mean**2, 0.0)

    def _weighed(self, table: Table) -> list[tuple[float, Choice]]:
        """Return the hyperparameters with the highest posterior probability and their weights, which add up to 1."""
        kept = np.arange(len(table.rows))
        if len(kept) > _FITTED_ROWS:
            kept = np.linspace(0, len(kept) - 1, _FITTED_ROWS).round().astype(np.intp)
        part = Table(
            rows=np.arange(len(kept)),
            values=table.values[kept],
            noise=table.noise[kept],
            expected=table.expected[table.rows[kept]],
        )
        alike = self._alike.among(table.rows[kept])
        scores = np.array(
            [
                round(Posterior(part, alike.kernels(*choice)).evidence() - implausibility(choice), _EVIDENCE_DIGITS)
                for choice in choices()
            ]
        )
        # A stable order: ties go to the most plausible ones.
        best = np.argsort(-scores, kind="stable")
        best = best[: _CHOICES if len(table.rows) <= _AVERAGED_ROWS else 1]
        weights = np.round(np.exp(scores[best] - scores[best[0]]), _WEIGHT_DIGITS)
        best, weights = best[weights >= _LEAST_WEIGHT], weights[weights >= _LEAST_WEIGHT]
        return [(float(w), choices()[index]) for w, index in zip(weights / weights.sum(), best, strict=True)]


def _before_all(expected: Array, kernels: Kernels) -> tuple[Array, Array]:
    variance = np.outer(np.diag(kernels.smooth), np.diag(kernels.sizes)) + np.diag(kernels.rough)[:, None]
    return kernels.prior * expected, variance


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

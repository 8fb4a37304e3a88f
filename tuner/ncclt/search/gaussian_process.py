"""The model behind the search: one exact Gaussian process over all settings and all messages.

Every launch measures all messages, so the data are a full table (settings x messages) of y = ln(time / time of the
default). The covariance is a sum of two Kronecker products, a smooth part that messages of similar size share and a
rough part that is each message's own:

    cov(y[s, m], y[t, n]) = Ks[s, t] * S[m, n] + Kr[s, t] * (m == n)

With the noise (which differs between settings by their launches) added to Kr, two eigendecompositions give posterior
and evidence exactly: of the whitened Ks (settings) and of S (messages). The cost is that of one Gaussian process over
settings, not over settings times messages (the trick of Rakitsch et al., "It is all in the noise", NIPS 2013).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Covariances of one choice of hyperparameters.

    Attributes:
        smooth: Ks between all settings of interest.
        rough: Kr between them.
        sizes: S between messages.
        prior: weight of each part of the cost model in the mean, 0 = none.
    """

    smooth: Array
    rough: Array
    sizes: Array
    prior: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured, one row for each setting that was launched.

    Attributes:
        rows: positions of the measured settings among all settings of interest.
        values: y, measured settings x messages.
        noise: variance of each row's values.
        expected: parts of the prior mean of y for all settings of interest x messages, each at weight 1.
    """

    rows: NDArray[np.intp]
    values: Array
    noise: Array
    expected: Array


class Posterior:
    """The process given the table.

    Args:
        table: what was measured.
        kernels: the hyperparameters' covariances.
    """

    def __init__(self, table: Table, kernels: Kernels) -> None:
        self._table, self._kernels = table, kernels
        rows = table.rows
        self._chol = np.linalg.cholesky(kernels.rough[np.ix_(rows, rows)] + np.diag(table.noise))
        half = _solve(self._chol, kernels.smooth[np.ix_(rows, rows)])
        whitened = _solve(self._chol, half.T)
        self._settings, self._turn = np.linalg.eigh((whitened + whitened.T) / 2)
        self._sizes, self._basis = np.linalg.eigh(kernels.sizes)
        self._spread = np.outer(np.maximum(self._settings, 0.0), np.maximum(self._sizes, 0.0)) + 1.0
        self._values = self._decorrelated(table.values)
        self._expected = np.array([self._decorrelated(part[rows]) for part in table.expected])
        self._residual = self._values - weighted(kernels.prior, self._expected)

    def _decorrelated(self, values: Array) -> Array:
        turned: Array = self._turn.T @ _solve(self._chol, values) @ self._basis
        return turned

    def reweighted(self, prior: tuple[float, ...]) -> Posterior:
        """Return the same with other weights of the cost model, without another decomposition."""
        other = copy(self)
        other._kernels = replace(self._kernels, prior=prior)
        other._residual = self._values - weighted(prior, self._expected)
        return other

    def evidence(self) -> float:
        """Return the log marginal likelihood up to a constant."""
        messages = len(self._sizes)
        logdet = np.log(self._spread).sum() + 2 * messages * np.log(np.diag(self._chol)).sum()
        return float(-0.5 * (np.sum(self._residual**2 / self._spread) + logdet))

    def predict(self, settings: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return posterior mean and variance of y without noise: settings x messages.

        Args:
            settings: positions among all settings of interest.
        """
        rows, kernels = self._table.rows, self._kernels
        smooth = self._turn.T @ _solve(self._chol, kernels.smooth[np.ix_(rows, settings)])
        rough = self._turn.T @ _solve(self._chol, kernels.rough[np.ix_(rows, settings)])
        scaled = self._residual / self._spread
        mean = ((smooth.T @ scaled) * self._sizes + rough.T @ scaled) @ self._basis.T
        explained = np.empty((len(settings), len(self._sizes)))
        for index, size in enumerate(self._sizes):
            explained[:, index] = ((smooth * max(size, 0.0) + rough) ** 2 / self._spread[:, index, None]).sum(axis=0)
        prior = (
            np.outer(np.diag(kernels.smooth)[settings], np.diag(kernels.sizes)) + np.diag(kernels.rough)[settings, None]
        )
        variance: Array = np.maximum(prior - explained @ (self._basis**2).T, 0.0)
        return mean + weighted(kernels.prior, self._table.expected[:, settings]), variance

    def left_out(self) -> tuple[Array, Array]:
        """Return what every row's values would be taken for without that row, and the variance with the row's noise.

        In closed form, a whole row at once (Rasmussen, Williams: Gaussian Processes for Machine Learning, 5.4.2).
        """
        whole = solve_triangular(self._chol, self._turn, lower=True, trans="T", check_finite=False)
        own = 1 / ((whole**2) @ (1 / self._spread))
        residual = (whole @ (self._residual / self._spread)) * own @ self._basis.T
        return self._table.values - residual, own @ (self._basis**2).T


def weighted(prior: tuple[float, ...], expected: Array) -> Array:
    """Return the prior mean: the weighted sum of its parts."""
    mean: Array = np.tensordot(prior, expected, axes=1)
    return mean


def _solve(lower: NDArray[Any], right: NDArray[Any]) -> Array:
    """Return lower^-1 right."""
    solved: Array = solve_triangular(lower, right, lower=True, check_finite=False)
    return solved

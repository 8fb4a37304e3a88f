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

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS compute with one thread meanwhile.

    Several gain nothing on matrices of this size and stand in each other's way on a busy node; one also adds up in the
    same order on every machine, so that a seed gives the same study everywhere.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Covariance under one choice of hyperparameters.

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
    """Measurements, one row for each setting that was launched.

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


class GaussianProcess:
    """The process given the table."""

    def __init__(self, table: Table, covariance: Covariance) -> None:
        self._table = table
        square = np.ix_(table.rows, table.rows)
        self._chol = np.linalg.cholesky(covariance.rough[square] + np.diag(table.noise))
        half = _solve(self._chol, covariance.smooth[square])
        whitened = _solve(self._chol, half.T)
        self._settings, self._turn = np.linalg.eigh((whitened + whitened.T) / 2)
        self._logdet = np.log(np.diag(self._chol)).sum()
        self._turned = self._turn.T @ _solve(self._chol, table.values)
        self._turned_parts = [self._turn.T @ _solve(self._chol, part[table.rows]) for part in table.expected]
        self._decorrelate(covariance)

    def _decorrelate(self, covariance: Covariance) -> None:
        """Do what depends on the covariance of messages."""
        self._covariance, self._prior = covariance, covariance.prior
        self._sizes, self._basis = np.linalg.eigh(covariance.sizes)
        self._spread = np.outer(np.maximum(self._settings, 0.0), np.maximum(self._sizes, 0.0)) + 1.0
        self._spread_logdet = np.log(self._spread).sum()
        self._values = self._turned @ self._basis
        self._expected = np.array([part @ self._basis for part in self._turned_parts])
        self._residual = self._values - prior_mean(covariance.prior, self._expected)
        self._predicted: dict[bytes, tuple[Array, Array, Array]] = {}

    def resized(self, covariance: Covariance) -> GaussianProcess:
        """Return the same with another covariance of messages, without another decomposition of the settings' one.

        Args:
            covariance: with the same `smooth` and `rough`.
        """
        resized = copy(self)
        resized._decorrelate(covariance)
        return resized

    def reweighted(self, prior: tuple[float, ...]) -> GaussianProcess:
        """Return the same with other weights of the cost model, without another decomposition."""
        reweighted = copy(self)
        reweighted._prior = prior
        reweighted._residual = self._values - prior_mean(prior, self._expected)
        return reweighted

    def evidence(self) -> float:
        """Return the log marginal likelihood up to a constant."""
        logdet = self._spread_logdet + 2 * len(self._sizes) * self._logdet
        return float(-0.5 * (np.sum(self._residual**2 / self._spread) + logdet))

    def predict(self, settings: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return posterior mean and variance of y without noise: settings x messages.

        Args:
            settings: positions among all settings of interest.
        """
        smooth, rough, variance = self._predict_without_mean(settings)
        scaled = self._residual / self._spread
        mean = ((smooth.T @ scaled) * self._sizes + rough.T @ scaled) @ self._basis.T
        return mean + prior_mean(self._prior, self._table.expected[:, settings]), variance.copy()

    def _predict_without_mean(self, settings: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return the parts of a prediction without the cost model: both covariances turned, and the variance."""
        if (predicted := self._predicted.get(settings.tobytes())) is not None:
            return predicted
        rows, covariance = self._table.rows, self._covariance
        smooth = self._turn.T @ _solve(self._chol, covariance.smooth[np.ix_(rows, settings)])
        rough = self._turn.T @ _solve(self._chol, covariance.rough[np.ix_(rows, settings)])
        explained = np.empty((len(settings), len(self._sizes)))
        for index, size in enumerate(self._sizes):
            explained[:, index] = ((smooth * max(size, 0.0) + rough) ** 2 / self._spread[:, index, None]).sum(axis=0)
        prior = (
            np.outer(np.diag(covariance.smooth)[settings], np.diag(covariance.sizes))
            + np.diag(covariance.rough)[settings, None]
        )
        variance: Array = np.maximum(prior - explained @ (self._basis**2).T, 0.0)
        self._predicted[settings.tobytes()] = smooth, rough, variance
        return smooth, rough, variance


def prior_mean(prior: tuple[float, ...], expected: Array) -> Array:
    """Return the prior mean: the weighted sum of its parts."""
    mean: Array = prior[0] * expected[0]
    for weight, part in zip(prior[1:], expected[1:], strict=True):
        mean = mean + weight * part
    return mean


def _solve(lower: NDArray[Any], right: NDArray[Any], *, transposed: bool = False) -> Array:
    """Return lower^-1 right, or that of the transposed one.

    As `scipy.linalg.solve_triangular` does it, whose checks take ten times as long as matrices of this size.
    """
    if lower.flags.f_contiguous:
        solved, singular = dtrtrs(lower, right, lower=True, trans=transposed)
    else:  # LAPACK reads column by column
        solved, singular = dtrtrs(lower.T, right, lower=False, trans=not transposed)
    if singular:
        raise np.linalg.LinAlgError("the covariance is singular")
    result: Array = solved
    return result

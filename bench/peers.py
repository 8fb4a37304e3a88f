"""Who searches in `bench/search.py`: ncclt, and the peers that it is compared with.

A peer sees one number per launch, the time per step of one setting forced for everything, as tuners of environment
variables do. What is recommended is put together per message from the launches of each method alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol as Port

import numpy as np
import optuna
from scipy.special import ndtr

from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.workload import Workload
from ncclt.search.gaussian_process import GaussianProcess, Table
from ncclt.search.optuna_study import FAILURE_PENALTY, OptunaStudy
from ncclt.search.posterior import build_kernel, hyperparameter_grid, neg_log_prior
from ncclt.search.prior import expected_log_ratios
from ncclt.search.space import SearchSpace
from ncclt.testing.samples import sample_study

METHODS = ("ours", "plain-gp", "tpe", "random")
STARTUP_TRIALS = 4
"""Random launches before TPE begins: with its ten little of a small budget would be left."""

_PLAIN_SIGMA = 0.02
"""Noise that the plain Gaussian process assumes: the bench's own, which favours it."""

_PLAIN_CHOICES = [(0.5, *rest) for scale, *rest in hyperparameter_grid() if scale == 1.0 and rest[-1] == rest[-2]] + [
    choice for choice in hyperparameter_grid() if choice[-1] == choice[-2]
]
"""Its hyperparameters: the cost model counts as a whole, and may be trusted more than ours does."""


class Method(Port):
    """Chooses settings. Contract: what it chooses depends on the trials and its seed alone."""

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        """Return what to launch after these trials, the default's first; None = nothing more."""
        ...

    def tell(self, trial: Trial) -> None:
        """Receive what the launch of the choice gave."""
        ...


class Ours:
    """The optuna_study of `ncclt tune`."""

    def __init__(self, optuna_study: OptunaStudy) -> None:
        self._optuna_study = optuna_study

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        if len(trials) == 1:
            self._optuna_study.resume(trials[0], trials)
        proposal = self._optuna_study.propose(trials)
        if proposal is None:
            return None
        self._claim = Claim(number=len(trials), setting=proposal.setting, repeat=0, phase=Phase.SEARCH)
        self._optuna_study.start(self._claim, proposal)
        return proposal.setting

    def tell(self, trial: Trial) -> None:
        self._optuna_study.tell(self._claim, trial)


class OfOptuna:
    """One of Optuna's samplers, which minimises the log of time per step over that of the default."""

    def __init__(self, space: SearchSpace, sampler: optuna.samplers.BaseSampler) -> None:
        self._space = space
        self._study = optuna.create_study(sampler=sampler)

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        assert trials[0].score_us is not None
        self._default_us = trials[0].score_us
        self._asked = self._study.ask(dict(self._space.distributions))
        return self._space.setting(self._asked.params)

    def tell(self, trial: Trial) -> None:
        value = math.log(trial.score_us / self._default_us) if trial.score_us else FAILURE_PENALTY
        self._study.tell(self._asked, value)


class PlainGp:
    """A Gaussian process of the time per step alone, with ncclt's kernel and cost model, and expected improvement."""

    def __init__(self, space: SearchSpace, workload: Workload, cluster: Cluster) -> None:
        self._settings = [s for s in space.distinct if not s.is_default]
        self._workload = workload
        messages = [calls.message for calls in workload.messages]
        self._ratios = expected_log_ratios(self._settings, messages, cluster)
        self._kernel = build_kernel(self._settings, messages[:1], cluster)

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        default_us = {m.message: m.time_us for m in trials[0].result.measurements}
        shares = np.array([c.calls_per_step * default_us[c.message] for c in self._workload.messages])
        expected = np.log(np.exp(self._ratios) @ (shares / shares.sum()))[:, None]
        launched: dict[Setting, list[float]] = {}
        for trial in trials[1:]:
            launched.setdefault(trial.setting, []).append(math.log((trial.score_us or math.inf) / shares.sum()))
        if not launched:
            return self._settings[int(expected.argmin())]
        table = Table(
            rows=np.array([self._settings.index(s) for s in launched]),
            values=np.array([[min(np.mean(times), FAILURE_PENALTY)] for times in launched.values()]),
            noise=np.array([_PLAIN_SIGMA**2 / len(times) for times in launched.values()]),
            expected=np.array([expected, np.zeros_like(expected), np.zeros_like(expected)]),
        )
        fits = [(GaussianProcess(table, self._kernel.covariance(*c)), neg_log_prior(c)) for c in _PLAIN_CHOICES]
        best, _ = max(fits, key=lambda fit: fit[0].evidence() - fit[1])
        mean, variance = (column[:, 0] for column in best.predict(np.arange(len(self._settings))))
        sigma = np.sqrt(np.maximum(variance, 1e-12))
        ahead = min(0.0, float(mean[table.rows].min())) - mean
        gain = ahead * ndtr(ahead / sigma) + sigma * np.exp(-0.5 * (ahead / sigma) ** 2) / math.sqrt(2 * math.pi)
        return self._settings[int(gain.argmax())]

    def tell(self, trial: Trial) -> None:
        """Take note of a launch, which is among the trials at the next question."""


def make(method: str, space: SearchSpace, workload: Workload, cluster: Cluster, *, seed: int) -> Method:
    """Return one of `METHODS`."""
    match method:
        case "tpe":
            return OfOptuna(space, optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS))
        case "plain-gp":
            return PlainGp(space, workload, cluster)
        case "ours":
            study = replace(sample_study("bench", id="bench"), cluster=cluster, workload=workload, seed=seed)
            study = replace(study, launcher="replay", simulated=False, process_wide=())
            return Ours(OptunaStudy(space, study))
        case _:
            return OfOptuna(space, optuna.samplers.RandomSampler(seed=seed))

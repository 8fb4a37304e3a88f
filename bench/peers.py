"""Who searches in `bench/search.py`: ncclt, and the peers that it is compared with.

A peer sees one number per launch, the time per step of one setting forced for everything, as tuners of environment
variables do. Racing and halving have a use for the time of every message, and see it: what is fast for one message
stays in the race. What is recommended is put together per message from the launches of each method alike.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol as Port

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.special import ndtr

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import MAX_CHANNELS, Setting
from ncclt.core.study import Claim, Phase, Study, StudyState, Trial
from ncclt.core.workload import Workload
from ncclt.search.gaussian_process import GaussianProcess, Table
from ncclt.search.optuna_study import FAILURE_PENALTY, OptunaStudy
from ncclt.search.posterior import build_kernel, hyperparameter_grid, neg_log_prior
from ncclt.search.prior import expected_log_ratios
from ncclt.search.space import SearchSpace

METHODS = (
    "ours",
    "plain-gp",
    "thompson",
    "gp",
    "gp-picks",
    "tpe",
    "tpe-picks",
    "random",
    "grid",
    "coordinate",
    "racing",
    "halving",
)
STARTUP_TRIALS = 4
"""Random launches before TPE and Optuna's Gaussian process begin: with their ten little of a small budget would be
left. With `-picks` these are the fastest settings of as many pairs by ncclt's cost model instead."""

ANCHORS = (48, 24, 8, 1)
"""Channels of the races, the most first, as published tools do: few channels are slow under every pair."""

PRUNED_BEHIND = 0.15
HALVED = 8
"""Random settings that halving begins with."""

MOST_DRAWS = 32
"""Draws among which top-two Thompson sampling looks for a second best setting."""

_PLAIN_SIGMA = 0.02
"""Noise that the plain Gaussian process assumes: the bench's own, which favours it."""

_PLAIN_CHOICES = [(0.5, *rest) for scale, *rest in hyperparameter_grid() if scale == 1.0 and rest[-1] == rest[-2]] + [
    choice for choice in hyperparameter_grid() if choice[-1] == choice[-2]
]
"""Its hyperparameters: the cost model counts as a whole, and may be trusted more than ours does."""

Times = dict[Setting, NDArray[np.float64]]
Pair = tuple[Algorithm | None, Protocol | None, tuple[tuple[str, int], ...]]


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

    def __init__(self, space: SearchSpace, sampler: optuna.samplers.BaseSampler, picks: Sequence[Setting] = ()) -> None:
        self._space = space
        self._study = optuna.create_study(sampler=sampler)
        for setting in picks:
            self._study.enqueue_trial(dict(space.params(setting) or {}))

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        assert trials[0].score_us is not None
        self._default_us = trials[0].score_us
        self._asked = self._study.ask(dict(self._space.distributions))
        return self._space.setting(self._asked.params)

    def tell(self, trial: Trial) -> None:
        value = math.log(trial.score_us / self._default_us) if trial.score_us else FAILURE_PENALTY
        self._study.tell(self._asked, value)


class PlainGp:
    """A Gaussian process of the time per step alone, with ncclt's kernel and cost model, and expected improvement.

    With a seed it draws instead of improving: the best setting of one draw from the posterior, or with even odds that
    of the first draw with another best one (top-two Thompson sampling; Russo, "Simple Bayesian algorithms for best arm
    identification", COLT 2016).
    """

    def __init__(self, space: SearchSpace, workload: Workload, cluster: Cluster, seed: int | None = None) -> None:
        self._draws = None if seed is None else np.random.default_rng(seed)
        self._settings = [s for s in space.distinct if not s.is_default]
        self._workload = workload
        messages = [calls.message for calls in workload.messages]
        self._ratios = expected_log_ratios(self._settings, messages, cluster)
        self._kernel = build_kernel(self._settings, messages[:1], cluster)

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        default_us = {m.message: m.time_us for m in trials[0].result.measurements}
        shares = np.array([c.calls_per_step * default_us[c.message] for c in self._workload.messages])
        expected = np.log(np.exp(self._ratios) @ (shares / shares.sum()))[:, None]
        seen: dict[Setting, list[float]] = {}
        for trial in trials[1:]:
            seen.setdefault(trial.setting, []).append(math.log((trial.score_us or math.inf) / shares.sum()))
        if not seen:
            return self._settings[int(expected.argmin())]
        table = Table(
            rows=np.array([self._settings.index(s) for s in seen]),
            values=np.array([[min(np.mean(found), FAILURE_PENALTY)] for found in seen.values()]),
            noise=np.array([_PLAIN_SIGMA**2 / len(found) for found in seen.values()]),
            expected=np.array([expected, np.zeros_like(expected), np.zeros_like(expected)]),
        )
        fits = [(GaussianProcess(table, self._kernel.covariance(*c)), neg_log_prior(c)) for c in _PLAIN_CHOICES]
        best, _ = max(fits, key=lambda fit: fit[0].evidence() - fit[1])
        if self._draws is not None:
            return self._settings[self._draw(best, table)]
        mean, variance = (column[:, 0] for column in best.predict(np.arange(len(self._settings))))
        sigma = np.sqrt(np.maximum(variance, 1e-12))
        ahead = min(0.0, float(mean[table.rows].min())) - mean
        gain = ahead * ndtr(ahead / sigma) + sigma * np.exp(-0.5 * (ahead / sigma) ** 2) / math.sqrt(2 * math.pi)
        return self._settings[int(gain.argmax())]

    def _draw(self, posterior: GaussianProcess, table: Table) -> int:
        assert self._draws is not None
        mean = posterior.predict(np.arange(len(self._settings)))[0][:, 0]
        covariance = posterior._covariance
        prior = covariance.smooth * covariance.sizes[0, 0] + covariance.rough
        seen = prior[table.rows]
        covariance = prior - seen.T @ np.linalg.solve(seen[:, table.rows] + np.diag(table.noise), seen)
        draws = self._draws.multivariate_normal(mean, covariance, size=MOST_DRAWS, method="eigh").argmin(axis=1)
        first = int(draws[0])
        others = [int(one) for one in draws[1:] if one != first]
        return others[0] if others and self._draws.random() < 0.5 else first

    def tell(self, trial: Trial) -> None:
        """Take note of a launch, which is among the trials at the next question."""


class Walk:
    """A search that is a walk: its steps see the mean times of the settings that it asked for.

    Args:
        steps: yields settings; given times per step of each message, by setting, which grow with the launches.
        workload: placed.
    """

    def __init__(self, steps: Callable[[Times], Iterator[Setting]], workload: Workload) -> None:
        self._launches: dict[Setting, list[NDArray[np.float64]]] = {}
        self._times: Times = {}
        self._steps = steps(self._times)
        self._workload = workload

    def ask(self, _trials: Sequence[Trial]) -> Setting | None:
        return next(self._steps, None)

    def tell(self, trial: Trial) -> None:
        us = {m.message: m.time_us for m in trial.result.measurements}
        row = np.array([c.calls_per_step * us.get(c.message, math.inf) for c in self._workload.messages])
        mine = self._launches.setdefault(trial.setting, [])
        mine.append(row if trial.score_us is not None else np.full_like(row, math.inf))
        self._times[trial.setting] = np.mean(mine, axis=0)


def make(
    method: str,
    space: SearchSpace,
    workload: Workload,
    cluster: Cluster,
    *,
    seed: int,
    printed_costs: PrintedCosts | None = None,
) -> Method:
    """Return one of `METHODS`; NCCL's own tables, where a log held them, are of use to ours alone."""
    settings = [s for s in space.distinct if not s.is_default]
    ladders = _ladders(settings)
    match method:
        case "grid":
            return Walk(lambda _times: (s for ladder in ladders.values() for s in ladder), workload)
        case "coordinate":
            return Walk(lambda times: coordinate_descent(ladders, times), workload)
        case "racing":
            return Walk(lambda times: channel_racing(ladders, times), workload)
        case "halving":
            chosen = random.Random(seed).sample(settings, min(HALVED, len(settings)))
            return Walk(lambda times: successive_halving(chosen, times), workload)
        case "plain-gp":
            return PlainGp(space, workload, cluster)
        case "thompson":
            return PlainGp(space, workload, cluster, seed)
        case "ours":
            study = Study(
                id="bench",
                name="bench",
                cluster=cluster,
                workload=workload,
                launcher="replay",
                simulated=False,
                process_wide=(),
                seed=seed,
                state=StudyState.RUNNING,
                printed_costs=printed_costs,
            )
            return Ours(OptunaStudy(space, study))
        case _:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                name, _, picks = method.partition("-")
                chosen = pick_by_cost(space, workload, cluster) if picks else []
                return OfOptuna(space, _optuna_sampler(name, seed), chosen)


def pick_by_cost(space: SearchSpace, workload: Workload, cluster: Cluster) -> list[Setting]:
    """Return the settings that the cost model expects to be fastest per byte sent, each of another pair."""
    settings = [s for s in space.distinct if not s.is_default]
    ratios = expected_log_ratios(settings, [calls.message for calls in workload.messages], cluster)
    bytes_sent = np.array([calls.bytes_per_step for calls in workload.messages])
    order = np.argsort(np.exp(ratios) @ (bytes_sent / bytes_sent.sum()), kind="stable")
    fastest: dict[Pair, Setting] = {}
    for setting in (settings[index] for index in order):
        fastest.setdefault((setting.algorithm, setting.protocol, setting.parameters), setting)
    return list(fastest.values())[:STARTUP_TRIALS]


def _optuna_sampler(method: str, seed: int) -> optuna.samplers.BaseSampler:
    match method:
        case "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        case _:
            return optuna.samplers.RandomSampler(seed=seed)


def _ladders(settings: Sequence[Setting]) -> dict[Pair, list[Setting]]:
    """Return the settings of each pair, ascending in channels; NCCL's own channels stand last."""
    found: dict[Pair, list[Setting]] = {}
    for setting in settings:
        found.setdefault((setting.algorithm, setting.protocol, setting.parameters), []).append(setting)
    return {pair: sorted(mine, key=lambda s: s.channels or MAX_CHANNELS + 1) for pair, mine in found.items()}


def coordinate_descent(ladders: dict[Pair, list[Setting]], times: Times) -> Iterator[Setting]:
    """Walk along the channels of each pair for as long as they get faster, from the middle (AutoCCL, NSDI 2025)."""
    for ladder in ladders.values():
        at = len(ladder) // 2
        yield ladder[at]
        for step in (1, -1):
            moved = False
            while 0 <= at + step < len(ladder):
                if ladder[at + step] not in times:
                    yield ladder[at + step]
                if times[ladder[at + step]].sum() >= times[ladder[at]].sum():
                    break
                at, moved = at + step, True
            if moved:
                break


def channel_racing(ladders: dict[Pair, list[Setting]], times: Times) -> Iterator[Setting]:
    """Try a few channel counts of all pairs, drop pairs that fall behind, then fill in the rest of the others.

    A pair falls behind that is slower than the best one by more than `PRUNED_BEHIND` on every message.
    """
    racing = dict(ladders)
    for anchor in ANCHORS:
        for ladder in racing.values():
            setting = min(ladder, key=lambda s: abs((s.channels or MAX_CHANNELS) - anchor))
            if setting not in times:
                yield setting
        best = {pair: np.min([times[s] for s in ladder if s in times], axis=0) for pair, ladder in racing.items()}
        fastest = np.min(list(best.values()), axis=0)
        racing = {p: racing[p] for p in racing if (best[p] <= fastest * (1 + PRUNED_BEHIND)).any()}
    for ladder in sorted(racing.values(), key=lambda mine: min(times[s].sum() for s in mine if s in times)):
        yield from (s for s in ladder if s not in times)


def successive_halving(settings: Sequence[Setting], times: Times) -> Iterator[Setting]:
    """Launch all, keep the better half, launch these again ... (Jamieson, Talwalkar, AISTATS 2016).

    Better is what comes first for a message or, after these, in time per step.
    """
    racing = list(settings)
    while len(racing) > 1:
        yield from racing
        first = {racing[i]: None for i in np.argmin([times[s] for s in racing], axis=0)}
        ranked = [*first, *(s for s in sorted(racing, key=lambda s: times[s].sum()) if s not in first)]
        racing = ranked[: len(racing) // 2]
    yield from racing

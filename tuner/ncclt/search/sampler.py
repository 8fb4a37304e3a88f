"""ncclt's sampler: first launches by NCCL's cost model, the others by expected improvement of the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial, TrialState
from scipy.special import ndtr

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Trial
from ncclt.core.workload import Workload
from ncclt.search.assemble import MIN_GAIN, Times, collect_times
from ncclt.search.gaussian_process import Array, GaussianProcess
from ncclt.search.prior import match_expected_default
from ncclt.search.space import SearchSpace

TRIALS = "ncclt_trials"
"""User attribute of the sampler's study: all trials of the search, with the times of each message."""

PROPOSAL = "ncclt:proposal"
"""System attribute of a proposed trial: expected gain and reason."""

_FEWEST_CHANNELS = 2
"""Number of best predicted pairs to launch early with the fewest channels.

Without these launches the regret on broadcasts after 8 launches is 3.9 instead of 1.3 % (`bench/search.py --without
few-channels`).
"""

_DEFAULT_DOUBT = 0.3
"""Probability that NCCL does not choose the predicted default; otherwise a launch repeats it (adr/0007)."""

_BASES = 6
"""Number of base settings for a step along a parameter: the default and the best ones."""

_DIGITS = 9
"""Digits of gains in comparisons, so that rounding errors of linear algebra do not decide."""

_FAILURES_IN_A_ROW = 3
"""Consecutive failures after which the sampler chooses a pair that has run before."""

_PSEUDO_COUNT = 0.3
"""Prior successes per pair."""

_BAR = math.log(1 - MIN_GAIN)
"""Max log ratio of a setting that counts as better than the default."""


class ExhaustedError(Exception):
    """No further launch could add information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposal of the next launch.

    Attributes:
        setting: setting to launch.
        expected_gain: expected improvement of the policy by the launch, as a share of the default's time per step;
            infinite = unknown.
        reason: reason as text.
    """

    setting: Setting
    expected_gain: float = math.inf
    reason: str


class GaussianProcessSampler(BaseSampler):
    """Sampler for studies in which every trial measures all messages of a workload.

    It has no state but a cache: the same launches give the same choice.

    Args:
        workload: workload placed on the cluster.
        cluster: cluster sized to the job.
        seed: breaks ties between settings of equal expected gain.
        printed_costs: cost tables from NCCL's log; None = estimate them.
    """

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        cluster: Cluster,
        *,
        seed: int = 0,
        printed_costs: PrintedCosts | None = None,
    ) -> None:
        self._space, self._workload, self._cluster = space, workload, cluster
        self._seed, self._printed_costs = seed, printed_costs
        self._settings = dict.fromkeys(space.distinct)
        self._process: GaussianProcess | None = None

    def infer_relative_search_space(self, study: OptunaStudy, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """Return all parameters, since the sampler chooses them together."""
        return dict(self._space.distributions)

    def sample_relative(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the point of the proposal, and store its expected gain and reason with the trial.

        Args:
            study: study with all trials in its attribute `TRIALS`, and with its running trials.

        Raises:
            ExhaustedError: no proposal is left.
        """
        storage = study._storage
        trials = storage.get_study_user_attrs(study._study_id)[TRIALS]
        others = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        running = [self._space.setting(other.params) for other in others if other.number != trial.number]
        proposal = self.propose(collect_times(trials), trials, running=running)
        if proposal is None:
            raise ExhaustedError
        attributes: dict[str, Any] = {"expected_gain": proposal.expected_gain, "reason": proposal.reason}
        storage.set_trial_system_attr(trial._trial_id, PROPOSAL, attributes)
        point = self._space.params(proposal.setting)
        assert point is not None, "a proposal is a point of the space"
        return point

    def sample_independent(
        self, study: OptunaStudy, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse to choose a single parameter."""
        raise NotImplementedError

    def propose(
        self, times: Times, trials: Sequence[Trial] = (), *, running: Collection[Setting] = ()
    ) -> Proposal | None:
        """Propose a new setting to launch, or None if no setting is left.

        Args:
            times: times of the settings that run reliably, the default included.
            trials: trials of the search so far, failures included.
            running: settings of running launches.
        """
        tried = dict.fromkeys([*times.by_setting, *(trial.setting for trial in trials), *running])
        settings = candidate_settings(self._settings, times, tried)
        free = [i for i, setting in enumerate(settings) if setting not in tried]
        if trials and all(trial.score_us is None for trial in trials[-_FAILURES_IN_A_ROW:]):
            # Find out whether the settings or the cluster are to blame.
            sound = {_algo_proto(setting) for setting in times.by_setting}
            free = [i for i in free if _algo_proto(settings[i]) in sound] or free
        if not free:
            return None
        messages = [calls.message for calls in self._workload.messages]
        if self._process is None or self._process.settings != settings:
            self._process = GaussianProcess(settings, self._workload, self._cluster, self._printed_costs)
            self._is_default = match_expected_default(settings, messages, self._cluster, self._printed_costs)
        weights = np.array([c.calls_per_step * times.default[c.message] for c in self._workload.messages])
        weights = weights / weights.sum()
        gains, by_message = self._estimate_gains(times, running, weights)
        chances = _estimate_run_chances(settings, trials)
        gains = np.round(gains * chances, _DIGITS)
        best_of_pairs, fewest = self._first_picks(weights)
        picks = [*best_of_pairs, *(i for i in fewest if gains[i] >= MIN_GAIN)]
        is_beginning = len(tried) <= len(best_of_pairs) + len(fewest)
        # Skip pairs that have failed.
        pick = next((i for i in picks if is_beginning and i in free and chances[i] == 1), None)
        ties = [sha256(f"{self._seed}:{setting.digest()}".encode()).hexdigest() for setting in settings]
        best = max(free, key=lambda i: (gains[i], ties[i])) if pick is None else pick
        reason = "new, as a step towards other process-wide parameters"
        if pick is not None:
            reason = "new, among the best by NCCL's cost model"
        elif by_message[best].any():
            reason = f"new, most for {messages[int(by_message[best].argmax())].label}"
        return Proposal(setting=settings[best], expected_gain=float(gains[best]), reason=reason)

    def _first_picks(self, weights: Array) -> tuple[list[int], list[int]]:
        """Return the best setting of every pair by NCCL's cost model, and the fewest channels of the best pairs.

        Its model ignores channels, but small broadcasts are fastest over one. Excludes settings equal to the default.
        """
        assert self._process is not None
        settings = self._process.settings
        expected = np.round(np.exp(self._process.expected) @ weights, _DIGITS)
        promising = [i for i, s in enumerate(settings) if not (s.parameters or self._is_default[i].all())]
        pairs: dict[object, list[int]] = {}
        # Among equal settings, prefer NCCL's number of channels, then the largest.
        for i in sorted(promising, key=lambda i: (expected[i], -(settings[i].channels or math.inf))):
            pairs.setdefault(_algo_proto(settings[i]), []).append(i)
        ranked = list(pairs.values())
        fewest = [min(members, key=lambda i: settings[i].channels or math.inf) for members in ranked]
        return [members[0] for members in ranked], fewest[:_FEWEST_CHANNELS]

    def _estimate_gains(self, times: Times, running: Collection[Setting], weights: Array) -> tuple[Array, Array]:
        """Estimate the expected improvement of the policy by each setting, as a share of the default's time per step.

        All rules of a policy share their process-wide parameters. So a setting must improve on the best group of
        settings with the same parameters, not just on its own group.

        Returns:
            Gain of each setting, and gain by message within the group without parameters.
        """
        assert self._process is not None
        settings, version = self._process.settings, self._cluster.version
        messages = [calls.message for calls in self._workload.messages]
        mean, variance = self._process.predict(times, running)
        measured = np.array([[m in times.by_setting.get(s, ()) for m in messages] for s in settings], dtype=np.bool_)
        pairs = [replace(s, parameters=(), channels=None) for s in settings]
        reaching = {p: [p.reaches(m.collective, version=version) for m in messages] for p in set(pairs)}
        is_plain, reaches = np.array([not s.parameters for s in settings]), np.array([reaching[p] for p in pairs])
        plain = reaches & is_plain[:, None]
        best = np.where(measured & plain & (mean < _BAR), mean, 0.0).min(axis=0, initial=0.0)
        doubt = np.where(self._is_default, _DEFAULT_DOUBT, 1.0)
        improvement = doubt * _expected_improvement(best, np.minimum(best, _BAR), mean, np.sqrt(variance))
        by_message = np.where(plain, improvement * np.exp(best) * weights, 0.0)
        share = ahead = float(weights @ np.exp(best))
        groups = {p: np.array([s.parameters == p for s in settings]) for p in {s.parameters for s in settings} if p}
        for inside in groups.values():
            known = np.where(measured & inside[:, None], mean, np.inf).min(axis=0)
            if (of_group := float(weights @ np.exp(known))) < share * (1 - MIN_GAIN):
                ahead = min(ahead, of_group)
        gains: Array = np.maximum(by_message.sum(axis=1) - (share - ahead), 0.0)
        for inside in groups.values():
            level = ahead * (1 - MIN_GAIN)
            gains = np.maximum(gains, _steps_towards(mean, variance, weights, inside, measured, level))
        return gains, by_message


def _steps_towards(
    mean: Array, variance: Array, weights: Array, inside: NDArray[np.bool_], measured: NDArray[np.bool_], level: float
) -> Array:
    """Split the expected gain of a group's best policy among its unmeasured settings."""
    positions, columns = np.flatnonzero(inside), np.arange(mean.shape[1])
    contenders = positions[mean[positions].argmin(axis=0)]
    expected = weights * np.exp(mean[contenders, columns])
    sigma = float(expected @ np.sqrt(variance[contenders, columns]))
    gain = float(_expected_improvement(level, level, expected.sum(), sigma))
    missing = [i for i in dict.fromkeys(contenders.tolist()) if not measured[i].all()]
    steps = np.zeros(len(mean))
    steps[missing] = gain / max(1, len(missing))
    return steps


def _expected_improvement(level: Array | float, bar: Array | float, mean: Array, sigma: Array | float) -> Array:
    """Return E[(level - x) · 1(x < bar)] for a normal x."""
    sigma = np.maximum(sigma, 1e-6)
    scaled = (bar - mean) / sigma
    density = np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
    improvement: Array = (level - mean) * ndtr(scaled) + sigma * density
    return improvement


def _estimate_run_chances(settings: Sequence[Setting], trials: Sequence[Trial]) -> Array:
    """Estimate the success probability of each setting, from launches of its pair and of its protocol."""
    chances = np.ones(len(settings))
    for kind in (_algo_proto, attrgetter("protocol")):
        launched = Counter[object](kind(trial.setting) for trial in trials)
        failed = Counter[object](kind(trial.setting) for trial in trials if trial.score_us is None)
        chances *= [1 - failed[kind(s)] / (launched[kind(s)] + _PSEUDO_COUNT) for s in settings]
    return chances


def _algo_proto(setting: Setting) -> object:
    return setting.algorithm, setting.protocol


def candidate_settings(space: Collection[Setting], times: Times, tried: Collection[Setting]) -> tuple[Setting, ...]:
    """Return the candidate settings in a fixed order: those without parameters, and single steps along a parameter.

    A space with several process-wide parameters has tens of thousands of points. So a step changes one parameter of a
    measured group (values of all parameters).

    Args:
        space: all settings of the search, each once, in a fixed order.
        tried: settings of finished and running launches.
    """
    plain = [s for s in space if not s.parameters and not s.is_default]
    launched = [s for s in tried if not s.is_default]
    groups = list(dict.fromkeys(s.parameters for s in space if s.parameters))
    if groups and not plain:
        return tuple(dict.fromkeys([*launched, *(s for s in space if not s.is_default)]))
    gained = {s: min(us / times.default[m] for m, us in measured.items()) for s, measured in times.by_setting.items()}
    ranked = sorted((s for s in gained if not s.is_default), key=lambda s: (gained[s], s.digest()))[:_BASES]
    bases = [DEFAULT, *ranked][:_BASES]
    known = {DEFAULT.parameters, *(s.parameters for s in ranked)}
    # Groups that differ in at most one parameter.
    near = [g for g in groups if any(len({name for name, _ in {*g} ^ {*k}}) <= 1 for k in known)]
    steps = [replace(base, parameters=parameters) for parameters in near for base in bases]
    return tuple(dict.fromkeys([*plain, *launched, *(s for s in steps if s in space)]))

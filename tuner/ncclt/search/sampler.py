"""ncclt's own sampler: NCCL's cost model chooses the first launches, expected improvement of the policy the others."""

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
"""User attribute of the study that a sampler is asked in: all trials of the search, with the times of each message."""

PROPOSAL = "ncclt:proposal"
"""System attribute of a trial that this sampler proposed: expected gain and reason."""

_FEWEST_CHANNELS = 2
"""Best predicted pairs of which the fewest channels are among the first launches.

Without them the regret on broadcasts after 8 launches is 3.9 instead of 1.3 % (`bench/search.py --without
few-channels`).
"""

_DEFAULT_DOUBT = 0.3
"""Probability that NCCL does not choose what its cost model predicts; else a launch repeats the default (adr/0007)."""

_BASES = 6
"""Pairs and channels with which a step along a parameter is tried: the default's and the best ones."""

_DIGITS = 9
"""Gains are rounded to this before they are compared, so that the last bits of linear algebra propose nothing."""

_FAILURES_IN_A_ROW = 3
"""Failures after which a pair that has run before is tried."""

_PSEUDO_COUNT = 0.3
"""Successful launches that every pair is credited with."""

_BAR = math.log(1 - MIN_GAIN)
"""Log ratio below which a setting is expected to be better than the default."""


class ExhaustedError(Exception):
    """No further launch could add information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposal of the next launch.

    Attributes:
        setting: to launch.
        expected_gain: share of the default's time per step that the launch is expected to bring to the policy;
            infinite where nothing is known of it.
        reason: as text.
    """

    setting: Setting
    expected_gain: float = math.inf
    reason: str


class GaussianProcessSampler(BaseSampler):
    """Sampler for studies in which every trial measures all messages of a workload.

    It has no state but a cache: the same launches give the same choice.

    Args:
        workload: placed.
        cluster: sized.
        seed: breaks ties between settings of equal expected gain.
        printed_costs: NCCL's own tables, where a log held them.
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
        """Return all parameters: they are chosen together."""
        return dict(self._space.distributions)

    def sample_relative(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the point of the proposal, and note its expected gain and its reason.

        Args:
            study: with the trials so far as its attribute `TRIALS`, and its running trials.

        Raises:
            ExhaustedError: there is no proposal.
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
        assert point is not None, "what is proposed is in the space"
        return point

    def sample_independent(
        self, study: OptunaStudy, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: no parameter is chosen alone."""
        raise NotImplementedError

    def propose(
        self, times: Times, trials: Sequence[Trial] = (), *, running: Collection[Setting] = ()
    ) -> Proposal | None:
        """Propose the next launch, None if every setting was launched.

        Args:
            times: of the settings that can be trusted to run, the default among them.
            trials: of the search so far, for their failures; settings that they launched are not chosen.
            running: settings that are being launched now; they are not chosen.
        """
        tried = dict.fromkeys([*times.by_setting, *(trial.setting for trial in trials), *running])
        settings = candidate_settings(self._settings, times, tried)
        free = [i for i, setting in enumerate(settings) if setting not in tried]
        if trials and all(trial.score_us is None for trial in trials[-_FAILURES_IN_A_ROW:]):
            # It must become clear whether the settings are to blame or the cluster.
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
        # A pair that failed is no longer among the best.
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

        Its model has no channels, and small broadcasts are fastest over one. What the default does anyway is left out.
        """
        assert self._process is not None
        settings = self._process.settings
        expected = np.round(np.exp(self._process.expected) @ weights, _DIGITS)
        promising = [i for i, s in enumerate(settings) if not (s.parameters or self._is_default[i].all())]
        pairs: dict[object, list[int]] = {}
        # Of equal ones, NCCL's own number of channels and then the most.
        for i in sorted(promising, key=lambda i: (expected[i], -(settings[i].channels or math.inf))):
            pairs.setdefault(_algo_proto(settings[i]), []).append(i)
        ranked = list(pairs.values())
        fewest = [min(members, key=lambda i: settings[i].channels or math.inf) for members in ranked]
        return [members[0] for members in ranked], fewest[:_FEWEST_CHANNELS]

    def _estimate_gains(self, times: Times, running: Collection[Setting], weights: Array) -> tuple[Array, Array]:
        """Estimate the expected improvement of the policy by each setting, as a share of the default's time per step.

        All rules of a policy share their process-wide parameters: the group of settings with the same ones that is
        best counts, and another one has to make up for what it is behind.

        Returns:
            Gain of each setting, and by message that within the group without parameters.
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
    """Estimate the worth of each setting that a group's best policy still lacks, as a step towards it."""
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
    """Return E[(level - x) where x < bar] of a normal x."""
    sigma = np.maximum(sigma, 1e-6)
    scaled = (bar - mean) / sigma
    density = np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
    improvement: Array = (level - mean) * ndtr(scaled) + sigma * density
    return improvement


def _estimate_run_chances(settings: Sequence[Setting], trials: Sequence[Trial]) -> Array:
    """Estimate the chance of each setting to run without failure, from launches of its pair and its protocol."""
    chances = np.ones(len(settings))
    for kind in (_algo_proto, attrgetter("protocol")):
        launched = Counter[object](kind(trial.setting) for trial in trials)
        failed = Counter[object](kind(trial.setting) for trial in trials if trial.score_us is None)
        chances *= [1 - failed[kind(s)] / (launched[kind(s)] + _PSEUDO_COUNT) for s in settings]
    return chances


def _algo_proto(setting: Setting) -> object:
    return setting.algorithm, setting.protocol


def candidate_settings(space: Collection[Setting], times: Times, tried: Collection[Setting]) -> tuple[Setting, ...]:
    """Return the candidate settings in a fixed order: the plain ones, and next steps of those with parameters.

    A space with several process-wide parameters has tens of thousands of points. Parameters are climbed one at a time:
    from the groups (values of all parameters) that were measured, one parameter is changed.

    Args:
        space: all settings that may be proposed, each once, in a fixed order.
        tried: settings that were launched, or are being launched.
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
    # The values of at most one parameter differ.
    near = [g for g in groups if any(len({name for name, _ in {*g} ^ {*k}}) <= 1 for k in known)]
    steps = [replace(base, parameters=parameters) for parameters in near for base in bases]
    return tuple(dict.fromkeys([*plain, *launched, *(s for s in steps if s in space)]))

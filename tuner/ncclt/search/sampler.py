"""ncclt's own sampler: chooses the launch with the largest expected gain of the policy, over all messages at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import Workload
from ncclt.search.acquisition import estimate_gains
from ncclt.search.gaussian_process import Array
from ncclt.search.observations import Launch, Observations, observe
from ncclt.search.posterior import Model
from ncclt.search.space import SearchSpace

_MOST_PLAIN = 400
"""Most candidate settings without parameters; of more, every second or third ... is taken."""

_BASES = 6
"""Pairs and channels with which a step along a parameter is tried: the default's and the best ones."""

_DIGITS = 9
"""Gains are rounded to this before they are compared, so that the last bits of linear algebra propose nothing."""

_MIN_GAIN = 1e-5
"""Share of time per step below which a repeat is not worth proposing."""

_FAILURES_IN_A_ROW = 3
"""Failures after which a pair that has run before is tried."""

_PSEUDO_COUNT = 0.3
"""Successful launches that every pair is credited with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposal of the next launch.

    Attributes:
        setting: to launch; one that was launched before means a repeat.
        expected_gain: share of the default's time per step that the launch is expected to bring to the policy;
            infinite where nothing is known of it.
        reason: as text.
    """

    setting: Setting
    expected_gain: float = math.inf
    reason: str


class Sampler:
    """Sampler for studies in which every trial measures all messages of a workload.

    It has no state but caches: the same launches give the same choice.

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
        self._workload, self._cluster, self._seed = workload, cluster, seed
        self._printed_costs = printed_costs
        self._settings = dict.fromkeys(space.distinct)
        self._model: Model | None = None

    def propose(self, launches: Sequence[Launch], *, running: Collection[Setting] = ()) -> Proposal | None:
        """Propose the next launch, None if no launch could add information.

        Args:
            launches: so far, one of the default without fault among them.
            running: settings that are being launched now; they are not chosen.
        """
        observations = observe(launches)
        settings = candidate_settings(self._settings, observations, running)
        if not settings:
            return None
        if self._model is None or self._model.settings != settings:
            self._model = Model(settings, self._workload, self._cluster, self._printed_costs)
        posterior = self._model.compute_posterior(observations, running)
        candidates = estimate_gains(settings, posterior)
        gains = np.round(candidates.gains * _estimate_run_chance(settings, observations), _DIGITS)
        out = {s for s in observations.failures if s not in observations.ratios}
        barred = np.array([s in running or s in out for s in settings])
        if all(launch.times_us is None for launch in launches[-_FAILURES_IN_A_ROW:]):
            barred = _bar_unproven_pairs(barred, settings, observations)
        best = max(
            (index for index in range(len(settings)) if not barred[index]),
            key=lambda i: (
                gains[i],
                not posterior.measured[i],
                sha256(f"{self._seed}:{settings[i].digest()}".encode()).hexdigest(),
            ),
            default=None,
        )
        if best is None and running and DEFAULT not in running:
            return Proposal(setting=DEFAULT, reason="the default again: every other setting is being launched")
        if best is None or (gains[best] < _MIN_GAIN and posterior.measured[best]):
            return None
        reason = self._reason(candidates.by_message[best], repeat=bool(posterior.measured[best]))
        return Proposal(setting=settings[best], expected_gain=float(gains[best]), reason=reason)

    def _reason(self, by_message: Array, *, repeat: bool) -> str:
        """Name the message for which the launch is made."""
        kind = "repeat to confirm" if repeat else "new"
        if not by_message.any():
            return f"{kind}, as a step towards other process-wide parameters"
        message = self._workload.messages[int(by_message.argmax())].message
        return f"{kind}, most for {message.label}"


def _bar_unproven_pairs(
    barred: NDArray[np.bool_], settings: Sequence[Setting], observations: Observations
) -> NDArray[np.bool_]:
    """Bar all pairs that never ran here as well, where that leaves anything.

    After failures in a row it must become clear whether the settings are to blame or the cluster.
    """
    sound = {_algo_proto(s) for s in observations.ratios}
    stricter = barred | np.array([_algo_proto(s) not in sound for s in settings])
    return barred if stricter.all() else stricter


def _estimate_run_chance(settings: Sequence[Setting], observations: Observations) -> Array:
    """Estimate the chance of each setting to run without failure, from launches of its pair and its protocol."""
    chance = np.ones(len(settings))
    for kind in (_algo_proto, attrgetter("protocol")):
        failed, ran = Counter[object](), Counter[object]()
        for setting, count in observations.failures.items():
            failed[kind(setting)] += count
        for setting in observations.ratios:
            ran[kind(setting)] += observations.launches[setting]
        chance *= [1 - failed[kind(s)] / (failed[kind(s)] + ran[kind(s)] + _PSEUDO_COUNT) for s in settings]
    return chance


def _algo_proto(setting: Setting) -> object:
    return setting.algorithm, setting.protocol


def candidate_settings(
    space: Collection[Setting], observed: Observations, running: Collection[Setting]
) -> tuple[Setting, ...]:
    """Return the candidate settings in a fixed order: the plain ones, and next steps of those with parameters.

    A space with several process-wide parameters has tens of thousands of points. Parameters are climbed one at a time:
    from the groups (values of all parameters) that were measured, one parameter is changed.

    Args:
        space: all settings that may be proposed, each once, in a fixed order.
    """
    tried = [s for s in dict.fromkeys([*observed.ratios, *observed.failures, *running]) if not s.is_default]
    plain = [s for s in space if not s.parameters and not s.is_default]
    thinned = plain[:: -(-len(plain) // _MOST_PLAIN)] if plain else []
    allowed = space if isinstance(space, dict) else dict.fromkeys(space)
    steps = [s for s in _steps(allowed, observed) if s in allowed]
    return tuple(dict.fromkeys([*thinned, *tried, *steps]))


def _steps(space: Collection[Setting], observed: Observations) -> Iterator[Setting]:
    groups = list(dict.fromkeys(s.parameters for s in space if s.parameters))
    if not groups:
        return
    ranked = sorted(observed.ratios, key=lambda s: (float(observed.ratios[s].min()), s.digest()))
    bases = [DEFAULT, *ranked][:_BASES]
    measured = {DEFAULT.parameters, *(s.parameters for s in ranked[:_BASES])}
    # The values of at most one parameter differ.
    near = [g for g in groups if any(len({name for name, _ in {*g} ^ {*m}}) <= 1 for m in measured)]
    for parameters in near:
        for base in bases:
            yield replace(base, parameters=parameters)
    if not any(not s.parameters and not s.is_default for s in space):
        # Nothing can be chosen but parameters; then all of them are looked at from the start.
        yield from (s for s in space if not s.is_default)

"""Sampler that repeats values of the best trial so far."""

import random
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState


class NearBest(BaseSampler):
    """Draws each parameter from the best trial with a probability of `share`, and at random otherwise."""

    def __init__(self, *, share: float = 0.5, seed: int | None = None) -> None:
        self._share, self._coin, self._random = share, random.Random(seed), RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return no parameter to draw together with others."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return no values."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of one parameter."""
        if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) and self._coin.random() < self._share:
            best = study.best_trial.params
            if param_name in best:
                return best[param_name]
        return self._random.sample_independent(study, trial, param_name, param_distribution)

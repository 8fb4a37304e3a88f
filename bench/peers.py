"""Who searches in `bench/search.py`: ncclt, and the peers that it is compared with.

A peer sees one number per launch, the time per step of one setting forced for everything, as tuners of environment
variables do. What is recommended is put together per message from the launches of each method alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol as Port

import optuna

from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.workload import Workload
from ncclt.search.optuna_study import FAILURE_PENALTY, OptunaStudy
from ncclt.search.space import SearchSpace
from ncclt.testing.samples import sample_study

METHODS = ("ours", "tpe", "random")
STARTUP_TRIALS = 4
"""Random launches before TPE starts; its default of ten would use up a small budget."""


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


def make(method: str, space: SearchSpace, workload: Workload, cluster: Cluster, *, seed: int) -> Method:
    """Return one of `METHODS`."""
    match method:
        case "tpe":
            return OfOptuna(space, optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS))
        case "ours":
            study = replace(sample_study("bench", id="bench"), cluster=cluster, workload=workload, seed=seed)
            study = replace(study, launcher="replay", simulated=False, process_wide=())
            return Ours(OptunaStudy(space, study))
        case _:
            return OfOptuna(space, optuna.samplers.RandomSampler(seed=seed))

"""Who chooses the next launch: ours, or one of Optuna's samplers that sees one number per launch."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol as Port

import optuna

from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import Setting
from ncclt.core.study import Trial
from ncclt.core.workload import Workload
from ncclt.errors import MissingDependencyError, UsageError
from ncclt.search.proposer import FAILURE_PENALTY, Proposer
from ncclt.search.space import SearchSpace

SAMPLERS = ("ours", "tpe", "random", "gp")
"""Words that `--sampler` takes."""

_STARTUP_TRIALS = 4
"""Random launches before the Gaussian process begins: with Optuna's ten little of a small budget would be left."""


class Sampler(Port):
    """Chooses settings. Contract: what it chooses depends on the trials and its seed alone."""

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        """Return what to launch after these trials, the default's first; None = nothing more."""
        ...

    def tell(self, trial: Trial) -> None:
        """Hear what the launch of the choice gave."""
        ...


class OurSampler:
    """The proposer of `ncclt tune`."""

    def __init__(
        self, space: SearchSpace, workload: Workload, cluster: Cluster, *, seed: int, printed_costs: PrintedCosts | None
    ) -> None:
        self._proposer = Proposer(
            space, workload, cluster, name="replay", seed=seed, printed_costs=printed_costs
        )  # fmt: skip

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        """Return the proposal of the greatest expected gain."""
        if len(trials) == 1:
            self._proposer.resume(trials[0], trials)
        proposal = self._proposer.propose(len(trials), trials)
        return None if proposal is None else proposal.setting

    def tell(self, trial: Trial) -> None:
        """Tell the proposer."""
        self._proposer.tell(trial)


class OptunaSampler:
    """One of Optuna's samplers, which minimises the log of time per step over that of the default."""

    def __init__(self, space: SearchSpace, sampler: optuna.samplers.BaseSampler) -> None:
        self._space = space
        # Without a storage URL Optuna keeps its study in memory.
        self._study = optuna.create_study(sampler=sampler)
        self._asked: optuna.trial.Trial | None = None
        self._default_us = math.nan

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        """Return the setting at the point that the sampler asks for, launched before or not."""
        assert trials[0].score_us is not None
        self._default_us = trials[0].score_us
        self._asked = self._study.ask(dict(self._space.distributions))
        return self._space.setting(self._asked.params)

    def tell(self, trial: Trial) -> None:
        """Tell the sampler its one number."""
        assert self._asked is not None
        value = math.log(trial.score_us / self._default_us) if trial.score_us else FAILURE_PENALTY
        self._study.tell(self._asked, value)


def sampler_named(
    name: str,
    space: SearchSpace,
    workload: Workload,
    cluster: Cluster,
    *,
    seed: int,
    printed_costs: PrintedCosts | None = None,
) -> Sampler:
    """Return a sampler by its word.

    Args:
        name: one of `SAMPLERS`.
        space: what may be launched.
        workload: placed.
        cluster: sized.
        seed: the same seed chooses the same.
        printed_costs: NCCL's own tables, where a log held them; Optuna's samplers have no use for them.

    Raises:
        UsageError: no such sampler.
        MissingDependencyError: Optuna's Gaussian process needs PyTorch.
    """
    if name == "ours":
        return OurSampler(space, workload, cluster, seed=seed, printed_costs=printed_costs)
    if name == "gp" and importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("Optuna's Gaussian process needs PyTorch", hint="pip install torch")
    makers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=_STARTUP_TRIALS),
    }
    if name not in makers:
        raise UsageError(f"unknown sampler {name!r}", hint=f"one of {', '.join(SAMPLERS)}")
    with warnings.catch_warnings():
        # "Experimental": nothing that a user of ours can act upon.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return OptunaSampler(space, makers[name]())

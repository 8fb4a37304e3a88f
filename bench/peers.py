"""Who searches in `bench/search.py` and `bench/replay.py`: ncclt, and the peers that they compare it with.

A peer sees one number per launch, the time per step of one setting forced for everything, as tuners of environment
variables do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol as Port

import optuna

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.setting import MAX_CHANNELS, Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.workload import Workload
from ncclt.search.proposer import FAILURE_PENALTY, Proposer
from ncclt.search.space import SearchSpace

METHODS = ("ours", "gp", "tpe", "random", "grid", "coordinate", "racing")
STARTUP_TRIALS = 4
"""Random launches before the Gaussian process begins: with Optuna's ten little of a small budget would be left."""

ANCHORS = (1, 8, 24, 48)
PRUNED_BEHIND = 0.15

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
    """The proposer of `ncclt tune`."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def ask(self, trials: Sequence[Trial]) -> Setting | None:
        if len(trials) == 1:
            self._proposer.resume(trials[0], trials)
        proposal = self._proposer.propose(trials)
        if proposal is None:
            return None
        self._claim = Claim(number=len(trials), setting=proposal.setting, repeat=0, phase=Phase.SEARCH)
        self._proposer.start(self._claim, proposal)
        return proposal.setting

    def tell(self, trial: Trial) -> None:
        self._proposer.tell(self._claim, trial)


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


class Walk:
    """A search that is a walk: its steps see the scores of the settings that it asked for."""

    def __init__(self, steps: Callable[[dict[Setting, float]], Iterator[Setting]]) -> None:
        self._scores: dict[Setting, float] = {}
        self._steps = steps(self._scores)

    def ask(self, _trials: Sequence[Trial]) -> Setting | None:
        return next(self._steps, None)

    def tell(self, trial: Trial) -> None:
        self._scores[trial.setting] = math.inf if trial.score_us is None else trial.score_us


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
    ladders = _ladders([s for s in space.distinct if not s.is_default])
    match method:
        case "grid":
            return Walk(lambda _scores: (s for ladder in ladders.values() for s in ladder))
        case "coordinate":
            return Walk(lambda scores: coordinate_descent(ladders, scores))
        case "racing":
            return Walk(lambda scores: channel_racing(ladders, scores))
        case "ours":
            return Ours(Proposer(space, workload, cluster, name="bench", seed=seed, printed_costs=printed_costs))
        case _:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return OfOptuna(space, _optuna_sampler(method, seed))


def _optuna_sampler(method: str, seed: int) -> optuna.samplers.BaseSampler:
    match method:
        case "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed)
        case _:
            return optuna.samplers.RandomSampler(seed=seed)


def _ladders(settings: Sequence[Setting]) -> dict[Pair, list[Setting]]:
    """Return the settings of each pair, ascending in channels; NCCL's own channels stand last."""
    found: dict[Pair, list[Setting]] = {}
    for setting in settings:
        found.setdefault((setting.algorithm, setting.protocol, setting.parameters), []).append(setting)
    return {pair: sorted(mine, key=lambda s: s.channels or MAX_CHANNELS + 1) for pair, mine in found.items()}


def coordinate_descent(ladders: dict[Pair, list[Setting]], scores: dict[Setting, float]) -> Iterator[Setting]:
    """Walk along the channels of each pair for as long as they get faster, from the middle (AutoCCL, NSDI 2025)."""
    for ladder in ladders.values():
        at = len(ladder) // 2
        yield ladder[at]
        for step in (1, -1):
            moved = False
            while 0 <= at + step < len(ladder):
                if ladder[at + step] not in scores:
                    yield ladder[at + step]
                if scores[ladder[at + step]] >= scores[ladder[at]]:
                    break
                at, moved = at + step, True
            if moved:
                break


def channel_racing(ladders: dict[Pair, list[Setting]], scores: dict[Setting, float]) -> Iterator[Setting]:
    """Try a few channel counts of all pairs, drop pairs that fall behind, then fill in the rest of the others."""
    racing = dict(ladders)
    for anchor in ANCHORS:
        for ladder in racing.values():
            setting = min(ladder, key=lambda s: abs((s.channels or MAX_CHANNELS) - anchor))
            if setting not in scores:
                yield setting
        if anchor != ANCHORS[0]:
            # One channel tells nothing about a pair yet; from the second anchor on its best so far does.
            best = {pair: min(scores.get(s, math.inf) for s in ladder) for pair, ladder in racing.items()}
            racing = {p: racing[p] for p in racing if best[p] <= min(best.values()) * (1 + PRUNED_BEHIND)}
    for ladder in sorted(racing.values(), key=lambda mine: min(scores.get(s, math.inf) for s in mine)):
        yield from (s for s in ladder if s not in scores)

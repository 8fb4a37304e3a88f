"""How else one could search: the peers that `bench/search.py` compares with.

Each sees one number per launch, the time per step of one setting forced for everything, as tuners of environment
variables do. Optuna's samplers come from `ncclt.search.samplers`, which `ncclt studies replay` uses too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.setting import MAX_CHANNELS, Setting
from ncclt.core.study import Trial
from ncclt.core.workload import Workload
from ncclt.search.samplers import Sampler, sampler_named
from ncclt.search.space import SearchSpace

METHODS = ("ours", "gp", "tpe", "random", "grid", "coordinate", "racing")
ANCHORS = (1, 8, 24, 48)
PRUNED_BEHIND = 0.15

Pair = tuple[Algorithm | None, Protocol | None, tuple[tuple[str, int], ...]]


class Walk:
    """A search that is a walk: its steps see the scores of the settings that it asked for."""

    def __init__(self, steps: Callable[[dict[Setting, float]], Iterator[Setting]]) -> None:
        self._scores: dict[Setting, float] = {}
        self._steps = steps(self._scores)

    def ask(self, _trials: Sequence[Trial]) -> Setting | None:
        return next(self._steps, None)

    def tell(self, trial: Trial) -> None:
        self._scores[trial.setting] = math.inf if trial.score_us is None else trial.score_us


def make(method: str, space: SearchSpace, workload: Workload, cluster: Cluster, *, seed: int) -> Sampler:
    """Return a method by its word."""
    ladders = _ladders([s for s in space.distinct if not s.is_default])
    match method:
        case "grid":
            return Walk(lambda _scores: (s for ladder in ladders.values() for s in ladder))
        case "coordinate":
            return Walk(lambda scores: coordinate_descent(ladders, scores))
        case "racing":
            return Walk(lambda scores: channel_racing(ladders, scores))
        case _:
            return sampler_named(method, space, workload, cluster, seed=seed)


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

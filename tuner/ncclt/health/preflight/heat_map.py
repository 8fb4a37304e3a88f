"""The heat map of a preflight: what each pair of nodes, or of GPUs of one node, reaches of what pairs usually reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclt.core.preflight import Preflight
from ncclt.health.preflight.bisect import Pair, usual_level

MOST = 16
"""Rows of a printed map; the worst are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """One map.

    Attributes:
        title: what its rows are.
        names: of rows and columns, in order.
        shares: of each pair that was measured, by names; 0 = its launches failed.
        left_out: names that were measured and are not shown.
    """

    title: str
    names: tuple[str, ...]
    shares: Mapping[Pair, float]
    left_out: int

    def share(self, first: str, second: str) -> float | None:
        """Return the share that a pair reaches; None = it was not measured."""
        return self.shares.get((first, second), self.shares.get((second, first)))


def heat_maps(preflight: Preflight) -> tuple[HeatMap, ...]:
    """Return the map of nodes and those of the GPUs of each node that was looked into, where pairs were measured."""
    maps = [_map("pairs of nodes", preflight.pairs(), preflight.hosts)]
    gpus = tuple(str(gpu) for gpu in range(preflight.gpus_per_node))
    # With one pair there is nothing to compare it with.
    for host in preflight.hosts:
        maps.append(_map(f"pairs of GPUs of node {host}", preflight.pairs(host), gpus))
    return tuple(one for one in maps if one is not None)


def _map(title: str, gbps: Mapping[Pair, float], order: tuple[str, ...]) -> HeatMap | None:
    if len(gbps) < 2:
        return None
    level = usual_level(gbps) or max(gbps.values())
    if not level:
        return None
    shares = {pair: value / level for pair, value in gbps.items()}
    met = [name for name in order if any(name in pair for pair in shares)]
    worst = sorted(met, key=lambda name: min(share for pair, share in shares.items() if name in pair))[:MOST]
    names = tuple(name for name in met if name in worst)
    kept = {pair: share for pair, share in shares.items() if pair[0] in worst and pair[1] in worst}
    return HeatMap(title=title, names=names, shares=kept, left_out=len(met) - len(names))

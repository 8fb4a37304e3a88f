"""The figures of the pages over many studies: the map of the home page, and the NCCL releases on a cluster."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ncclt.core.cluster import NO_GPU
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.trial import TimesOrigin
from ncclt.store.recommendations import Pair
from ncclt_api.pages.results import Result, build_result

MOST_ROWS, MOST_COLUMNS = 40, 24
"""Largest map on one page; a filter shows the rest."""

_SHADES = (1.02, 1.05, 1.1, 1.2)
"""Speed-ups at which the colour of a cell gets stronger."""

REGRESSION = 0.03
"""Share by which the default's own time may grow from one NCCL to the next before it is marked: above the noise of two
studies on different days (an estimate)."""

_HEAT = (0.5, 0.8, 0.95)
"""Shares of the usual bandwidth of a pair at which the colour of the matrix changes."""

ORIGIN_ORDER = {origin: position for position, origin in enumerate(TimesOrigin)}
"""Origin -> its rank: measured times first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The map in numbers.

    Attributes:
        tuned, kept, undecided: pairs whose result is served, by its verdict.
        other_version: pairs tuned for another NCCL version than the cluster's; not in `tuned`.
        stale: pairs whose result is no longer served.
        running: studies.
        changed: pairs whose result is another one than at the earlier time; 0 without one.
        demonstrations: tuned ones on recorded or simulated times.
        median: speed-up of the tuned ones, of the measured ones where there are any; None where there is none.
    """

    tuned: int
    kept: int
    undecided: int
    other_version: int
    stale: int
    running: int
    changed: int
    demonstrations: int
    median: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeMap:
    """Newest result of each workload on each cluster.

    Attributes:
        models: the columns.
        clusters: the rows: measured ones first, then recorded, then simulated; of each those with most workloads.
        rows: the pairs of each cluster, by the columns; None where there is nothing.
        changes: cluster -> workload -> earlier result as text, of the pairs that changed since the earlier time; None
            without one.
        other_version: cluster and workload of the pairs tuned for another NCCL version than the cluster's.
        counts: of all pairs, on the page or not.
        clusters_left, models_left: that did not fit.
    """

    models: tuple[str, ...]
    clusters: tuple[str, ...]
    rows: tuple[tuple[Pair | None, ...], ...]
    changes: Mapping[str, Mapping[str, str]] | None
    other_version: tuple[tuple[str, str], ...]
    counts: Counts
    clusters_left: int
    models_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentGain:
    """Measured verdicts of a period.

    Attributes:
        days: its length, until now.
        verdicts: number of those published in it.
        tuned: number of validated gains that are not stale.
        stale: number of pairs on the map whose measured result became stale in it, and still is.
        median: median speed-up of the tuned ones; None = no gain.
    """

    days: int
    verdicts: int
    tuned: int
    stale: int
    median: float | None


def sum_up(found: Collection[Recommendation], *, stale: int, days: int) -> RecentGain:
    """Summarize recent measured revisions, and the number that became stale.

    Those without evidence, and those of gloo instead of NCCL, do not count.
    """
    results = [build_result(one) for one in found if not one.is_untried and one.fingerprint.gpu != NO_GPU]
    speedups = [result.verdict.speedup for result in results if result.is_tuned]
    middle = statistics.median(speedups) if speedups else None
    return RecentGain(days=days, verdicts=len(results), tuned=len(speedups), stale=stale, median=middle)


def build_map(
    pairs: Collection[Pair],
    *,
    nccl_versions: Mapping[str, str],
    before: Mapping[tuple[str, str], Recommendation] | None = None,
) -> HomeMap:
    """Return the map of some pairs.

    Args:
        pairs: in any order.
        nccl_versions: cluster -> its NCCL version, where that is known.
        before: what was published at an earlier time, by names; None = no comparison.
    """
    placed: dict[str, dict[str, Pair]] = {}
    used: dict[str, int] = {}
    for pair in pairs:
        placed.setdefault(pair.cluster, {})[pair.model] = pair
        used[pair.model] = used.get(pair.model, 0) + 1
    models = sorted(sorted(used), key=lambda name: -used[name])
    clusters = sorted(placed, key=lambda name: (_rank(placed[name].values()), -len(placed[name]), name))
    changes = None if before is None else _find_changes(pairs, before)
    other_version = tuple(
        (pair.cluster, pair.model)
        for pair in pairs
        if pair.recommendation and is_for_other_version(pair.recommendation, nccl_versions.get(pair.cluster, ""))
    )
    return HomeMap(
        models=tuple(models[:MOST_COLUMNS]),
        clusters=tuple(clusters[:MOST_ROWS]),
        rows=tuple(tuple(placed[name].get(model) for model in models[:MOST_COLUMNS]) for name in clusters[:MOST_ROWS]),
        changes=changes,
        other_version=other_version,
        counts=_count(pairs, other_version, changed=sum(map(len, changes.values())) if changes else 0),
        clusters_left=max(0, len(clusters) - MOST_ROWS),
        models_left=max(0, len(models) - MOST_COLUMNS),
    )


def list_cells(shown: HomeMap, rolling: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a map for JSON: its cells as one list, with ids in place of policies.

    Args:
        shown: the map.
        rolling: id and share of each open roll-out, by names.
    """
    cells = []
    for pair in (pair for row in shown.rows for pair in row if pair):
        cell = {"cluster": pair.cluster, "model": pair.model, "shapes": pair.shapes, "running": pair.running}
        place = (pair.cluster, pair.model)
        if (found := pair.recommendation) is not None:
            result = build_result(found)
            cell |= {
                "recommendation": found.id,
                "revision": found.revision,
                "study": found.study,
                "created": found.created,
                "origin": found.origin,
                "nodes": found.fingerprint.nodes,
                "gpus_per_node": found.fingerprint.gpus_per_node,
                "nccl_version": found.fingerprint.nccl_version,
                "for_other_version": place in shown.other_version,
                "stale": found.stale,
                "needs_table": result.needs_table,
                "verdict": result.verdict,
                "change": (shown.changes or {}).get(pair.cluster, {}).get(pair.model),
            }
        cells.append(cell | {"roll_out": rolling.get(place)})
    return {
        "cells": cells,
        "counts": shown.counts,
        "clusters_left": shown.clusters_left,
        "models_left": shown.models_left,
    }


def is_for_other_version(found: Recommendation, nccl_version: str) -> bool:
    """Return True for a gain that was tuned for another NCCL version than the cluster's; empty = not known."""
    return bool(nccl_version) and build_result(found).is_tuned and found.fingerprint.nccl_version != nccl_version


def shade(result: Result) -> int:
    """Return the strength of the colour of a result on the map, 0 to 4."""
    return sum(result.speedup >= least for least in _SHADES) if result.is_tuned and result.speedup else 0


def _rank(pairs: Iterable[Pair]) -> int:
    """Return the group of a cluster: with a measured result, only recorded ones, only simulated ones, none."""
    found = (pair.recommendation for pair in pairs)
    return min((ORIGIN_ORDER[one.origin] for one in found if one), default=len(ORIGIN_ORDER))


def _find_changes(pairs: Iterable[Pair], before: Mapping[tuple[str, str], Recommendation]) -> dict[str, dict[str, str]]:
    changes: dict[str, dict[str, str]] = {}
    for pair in pairs:
        if pair.recommendation is None:
            continue
        earlier = before.get((pair.cluster, pair.model))
        was = build_result(earlier) if earlier else None
        if was is None:
            changes.setdefault(pair.cluster, {})[pair.model] = "new"
        elif _differs(was, build_result(pair.recommendation)):
            changes.setdefault(pair.cluster, {})[pair.model] = f"was {was.former}"
    return changes


def _differs(was: Result, now: Result) -> bool:
    """Compare two results: another verdict, a disjoint interval, or a stale one is a change."""
    if was.verdict.decision is not now.verdict.decision or now.status == "stale":
        return True
    if was.interval is None or now.interval is None:
        return False
    return now.is_tuned and (now.interval[0] > was.interval[1] or now.interval[1] < was.interval[0])


def _count(pairs: Iterable[Pair], other_version: Collection[tuple[str, str]], *, changed: int) -> Counts:
    pairs = list(pairs)
    results = [build_result(pair.recommendation) for pair in pairs if pair.recommendation]
    served = [result for result in results if result.status != "stale"]
    decisions = [result.verdict.decision for result in served]
    tuned = [
        result
        for result in served
        if result.is_tuned and (result.recommendation.cluster, result.recommendation.model) not in other_version
    ]
    measured = [result for result in tuned if result.recommendation.origin is TimesOrigin.MEASURED]
    speedups = [result.speedup for result in measured or tuned if result.speedup]
    return Counts(
        tuned=len(tuned),
        kept=decisions.count(Decision.KEEP_DEFAULT),
        undecided=decisions.count(Decision.UNDECIDED),
        other_version=len(other_version),
        stale=len(results) - len(served),
        running=sum(pair.running for pair in pairs),
        changed=changed,
        demonstrations=len(tuned) - len(measured),
        median=statistics.median(speedups) if speedups else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One workload under one NCCL version.

    Attributes:
        result: of the newest revision under it.
        slowdown: of the NCCL default against the version before, as a share; None = it is the first with a time, or
            the workload changed.
        is_changed: the workload changed since the version before.
    """

    result: Result
    slowdown: float | None
    is_changed: bool

    @property
    def tone(self) -> str:
        """Return `loss`, `gain`, or nothing within the noise."""
        if self.slowdown is None or abs(self.slowdown) < REGRESSION:
            return ""
        return "loss" if self.slowdown > 0 else "gain"


def compare_releases(
    newest: Iterable[Recommendation],
) -> tuple[tuple[str, ...], dict[str, tuple[Release | None, ...]]]:
    """Return the NCCL versions, oldest first, and each workload over them; None where it was not tuned.

    Times of different jobs cannot be compared: of each workload the shape with most versions is taken, and a change of
    the workload ends the comparison.
    """
    by_model: dict[str, dict[str, dict[str, Recommendation]]] = {}
    for one in newest:
        place = one.fingerprint
        shape = f"{place.nodes}x{place.gpus_per_node} {place.gpu} {place.fabric} {one.origin.value}"
        by_model.setdefault(one.model, {}).setdefault(shape, {}).setdefault(place.nccl_version, one)
    chosen = {model: max(shapes.values(), key=len) for model, shapes in sorted(by_model.items())}
    versions = sorted({version for found in chosen.values() for version in found}, key=NcclVersion.parse)
    rows: dict[str, tuple[Release | None, ...]] = {}
    for model, found in chosen.items():
        releases: list[Release | None] = []
        before_us: float | None = None
        digest = ""
        for version in versions:
            if version not in found:
                releases.append(None)
                continue
            result = build_result(found[version])
            is_changed = digest not in ("", found[version].workload_digest)
            if is_changed:
                before_us = None
            slowdown = result.default_us / before_us - 1 if before_us and result.default_us else None
            releases.append(Release(result=result, slowdown=slowdown, is_changed=is_changed))
            before_us, digest = result.default_us or before_us, found[version].workload_digest
        rows[model] = tuple(releases)
    return tuple(versions), rows


def heat(share: float) -> int:
    """Return the colour of a pair in the matrix, 0 (red) to 3."""
    return sum(share >= least for least in _HEAT)

"""The figures of the page of a cluster: its workloads by NCCL version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import Recommendation
from ncclt_api.pages.results import Result, build_result

REGRESSION = 0.03
"""Share by which the default's own time may grow from one NCCL to the next before it is marked: above the noise of two
studies on different days (an estimate)."""

_HEAT = (0.5, 0.8, 0.95)
"""Shares of the usual bandwidth of a pair at which the colour of the matrix changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One workload under one NCCL version.

    Attributes:
        result: of the newest revision under it.
        slowdown: of the NCCL default against the version before, as a share; None = it is the first with a time.
    """

    result: Result
    slowdown: float | None

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

    Times of different jobs cannot be compared: of each workload the shape with most versions is taken.
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
        for version in versions:
            if version not in found:
                releases.append(None)
                continue
            result = build_result(found[version])
            slowdown = result.default_us / before_us - 1 if before_us and result.default_us else None
            releases.append(Release(result=result, slowdown=slowdown))
            before_us = result.default_us or before_us
        rows[model] = tuple(releases)
    return tuple(versions), rows


def heat(share: float) -> int:
    """Return the colour of a pair in the matrix, 0 (red) to 3."""
    return sum(share >= least for least in _HEAT)

"""Records of a recheck: a few messages of a recommendation measured again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape


class Freshness(StrEnum):
    """Verdict of a recheck."""

    FRESH = "fresh"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Documented):
    """One quantity, before and now.

    Attributes:
        what: its name in messages.
        before, now: medians, in the quantity's own unit.
        noise: by how much the ratio may differ from 1 by chance, as a share.
        changed: the difference exceeds both the noise and the tolerance.
    """

    what: str
    before: float
    now: float
    noise: float
    changed: bool

    @property
    def ratio(self) -> float:
        """Return now over before."""
        return self.now / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck(Documented):
    """Recheck of a recommendation.

    Attributes:
        id: identifies it.
        recommendation: id of what was checked.
        cluster, model: names of its cluster and workload.
        freshness: the newest recheck of a recommendation decides whether it is served.
        reasons: why it is stale, or why this recheck is too weak to clear an earlier one; empty when fresh.
        changes: everything that was compared.
        launches: number of launches.
        launcher: where they ran; empty when nothing had to be launched.
        created: ISO time.
        driver: NVIDIA's on the nodes, with commas where they differ; empty where it is not known or the
            recheck is older than this field.
    """

    SHAPE: ClassVar = Shape(hint="measure again with `ncclt recheck`", schema=1)

    id: str
    recommendation: str
    cluster: str
    model: str
    freshness: Freshness
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]
    launches: int
    launcher: str
    created: str
    driver: str = ""

    @property
    def staleness(self) -> str:
        """Return one sentence that says since when and why the recommendation is stale; empty when it is fresh."""
        if self.freshness is Freshness.FRESH:
            return ""
        when = self.created[:16].replace("T", " ")
        return f"the recheck of {when} found: {'; '.join(self.reasons)}"

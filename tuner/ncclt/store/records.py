"""What the store hands out beside the core's own dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry(Generic[Item]):
    """A workload or cluster that can be named.

    Attributes:
        item: the workload or cluster.
        shipped: it came with ncclt and cannot be replaced.
    """

    item: Item
    shipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """A study at a glance.

    Attributes:
        study: the study itself.
        trials: trials of all phases and outcomes.
        best_us: lowest communication time per step over the settings that were searched, each by its median, µs;
            None before the first good trial. What is proven stands in the recommendation.
        default_us: median communication time per step of NCCL's own choice in the search, µs.
        recommendation: the newest one that the study gave.
    """

    study: Study
    trials: int
    best_us: float | None
    default_us: float | None
    recommendation: Recommendation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPage:
    """Some studies, newest first.

    Attributes:
        items: the studies.
        next_cursor: give it back to get the next page; None on the last.
    """

    items: tuple[StudySummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """How far the tables are.

    Attributes:
        current: revision of the tables, empty where there are none yet.
        head: revision that this ncclt works with.
    """

    current: str
    head: str

    @property
    def is_current(self) -> bool:
        """Tell whether the tables are what this ncclt works with."""
        return self.current == self.head

"""Studies at a glance, without SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass

from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEntry:
    """A study at a glance.

    Attributes:
        study: the study itself.
        trials: trials of all phases and outcomes.
        best_us: lowest communication time per step over the settings that were searched, each by its median, µs;
            None before the first good trial. What is proven is in the recommendation.
        default_us: median communication time per step of the NCCL default in the search, µs.
        recommendation: the newest one of the study.
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
        next_cursor: of the next page; None on the last.
    """

    items: tuple[StudyEntry, ...]
    next_cursor: str | None

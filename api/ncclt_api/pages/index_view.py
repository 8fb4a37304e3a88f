"""What the list of studies shows, worked out before any HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.study import Study, StudyState
from ncclt.store import StudySummary
from ncclt_api.pages.charts import interval_chart, interval_reach
from ncclt_api.pages.wording import format_age

_STATE_WORDS = {
    StudyState.RUNNING: "searching",
    StudyState.INTERRUPTED: "interrupted",
    StudyState.DONE: "no verdict",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One study in the list.

    Attributes:
        mood, word: the badge: `tuned`, `keep-default` or `open`, and what it says.
        verdict: of the whole policy; None before there is one.
        picture: its speed-up with the interval.
        default_us, policy_us: communication time per step, µs: proven where there is a verdict, else found so far.
        age: since the study was last changed.
    """

    study: Study
    mood: str
    word: str
    verdict: Verdict | None
    picture: Markup | None
    default_us: float | None
    policy_us: float | None
    trials: int
    age: str


def study_rows(summaries: Iterable[StudySummary], *, now: datetime) -> tuple[StudyRow, ...]:
    """Work out the rows of one page."""
    shown = list(summaries)
    # One axis for all rows, so that the pictures can be compared.
    reach = interval_reach(verdict.interval for verdict in map(_verdict, shown) if verdict)
    return tuple(_row(summary, position, now=now, reach=reach) for position, summary in enumerate(shown))


def _verdict(summary: StudySummary) -> Verdict | None:
    return summary.recommendation.table.verdict if summary.recommendation else None


def _row(summary: StudySummary, position: int, *, now: datetime, reach: float) -> StudyRow:
    study = summary.study
    verdict = _verdict(summary)
    # Without blocks the verdict says that nothing was worth proving, and its times are none.
    proven = verdict if verdict and verdict.blocks else None
    picture = None
    mood, word = "open", _STATE_WORDS[study.state]
    if verdict:
        mood = verdict.decision.value
        word = "tuned" if verdict.decision is Decision.TUNED else "keep default"
        picture = interval_chart(verdict.speedup, verdict.interval, id=f"interval-{position}", reach=reach)
    return StudyRow(
        study=study,
        mood=mood,
        word=word,
        verdict=verdict,
        picture=picture,
        default_us=proven.default_us if proven else summary.default_us,
        policy_us=proven.policy_us if proven else summary.best_us,
        trials=summary.trials,
        age=format_age(study.updated or study.created, now),
    )

"""The content of the list of studies, computed before any HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from ncclt.core.attestation import Effect
from ncclt.core.recommendation import Verdict
from ncclt.core.study import Study, StudyState
from ncclt.deliver.use import use_of
from ncclt.store import StudySummary
from ncclt_api.pages.charts import interval_chart, interval_reach
from ncclt_api.pages.jobs import EFFECT_WORDS
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
        mood, word: the badge: `tuned`, `keep-default`, `undecided`, `failed` (stale) or `open`, and what it says.
        verdict: of the form in which the result is used; None before there is one.
        picture: its speed-up with the interval.
        default_us, policy_us: communication time per step, µs: proven where there is a verdict, else found so far.
        age: since the study was last changed.
        effect: what the newest attestation says; empty = none.
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
    effect: str


def study_rows(
    summaries: Iterable[StudySummary], *, now: datetime, effects: Mapping[str, str] | None = None
) -> tuple[StudyRow, ...]:
    """Return the rows of one page.

    Args:
        summaries: studies.
        now: for their ages.
        effects: the outcome of the newest attestation, by id of the recommendation.
    """
    shown = list(summaries)
    # One axis for all rows, so that the pictures can be compared.
    reach = interval_reach(verdict.interval for verdict in map(_verdict, shown) if verdict)
    known = effects or {}
    return tuple(_row(one, place, now=now, reach=reach, effects=known) for place, one in enumerate(shown))


def _verdict(summary: StudySummary) -> Verdict | None:
    return use_of(summary.recommendation).proven.verdict if summary.recommendation else None


def _row(summary: StudySummary, position: int, *, now: datetime, reach: float, effects: Mapping[str, str]) -> StudyRow:
    study = summary.study
    verdict = _verdict(summary)
    # A verdict without blocks says that nothing was worth proving, and has no times.
    proven = verdict if verdict and verdict.blocks else None
    picture = None
    mood, word = "open", _STATE_WORDS[study.state]
    if verdict:
        mood = verdict.decision.value
        word = verdict.decision.value.replace("-", " ")
        picture = interval_chart(verdict.speedup, verdict.interval, id=f"interval-{position}", reach=reach)
    if summary.recommendation and summary.recommendation.stale:
        mood, word = "failed", "stale"
    effect = effects.get(summary.recommendation.id, "") if summary.recommendation else ""
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
        effect=EFFECT_WORDS[Effect(effect)][1] if effect else "",
    )

"""The content of a list of studies, computed before any HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ncclt.core.attestation import Effect
from ncclt.core.study import StudyState
from ncclt.store import StudyEntry
from ncclt_api.pages.home_view import ShownGain, gain_of
from ncclt_api.pages.jobs import EFFECT_WORDS
from ncclt_api.pages.wording import format_age

_STATE_WORDS = {
    StudyState.RUNNING: "searching",
    StudyState.INTERRUPTED: "interrupted",
    StudyState.DONE: "no verdict",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One study in a list.

    Attributes:
        id, name, cluster, model, label: of the study.
        shape, nccl_version: of its job.
        state: its progress; `running` ones are live.
        mood, word: the badge: `tuned`, `keep-default`, `undecided`, `failed` (stale) or `open`, and what it says.
        gain: of its newest revision; None before there is one.
        default_us: communication time per step of the NCCL default, µs; None where it was not measured.
        policy_us: what the proof measured of the policy, µs; None where it measured none.
        best_us: the best setting of the search so far, µs, which nothing has proven; None once there is a verdict.
        trials: how many.
        age: since the study was last changed.
        effect: what the newest attestation says; empty = none.
    """

    id: str
    name: str
    cluster: str
    model: str
    label: str
    shape: str
    nccl_version: str
    state: str
    mood: str
    word: str
    gain: ShownGain | None
    default_us: float | None
    policy_us: float | None
    best_us: float | None
    trials: int
    age: str
    effect: str


def study_rows(
    summaries: Iterable[StudyEntry], *, now: datetime, effects: Mapping[str, str] | None = None
) -> tuple[StudyRow, ...]:
    """Return the rows of one list.

    Args:
        summaries: studies.
        now: for their ages.
        effects: the outcome of the newest attestation, by id of the recommendation.
    """
    return tuple(_row(one, now=now, effects=effects or {}) for one in summaries)


def _row(summary: StudyEntry, *, now: datetime, effects: Mapping[str, str]) -> StudyRow:
    study, published = summary.study, summary.recommendation
    gain = gain_of(published, now=now) if published else None
    effect = effects.get(published.id, "") if published else ""
    cluster = study.cluster
    return StudyRow(
        id=study.id,
        name=study.name,
        cluster=cluster.name,
        model=study.workload.name,
        label=study.label,
        shape=f"{cluster.nodes} × {cluster.gpus_per_node} {cluster.gpu}",
        nccl_version=cluster.nccl_version,
        state=study.state.value,
        mood=gain.mood if gain else "open",
        word=gain.word if gain else _STATE_WORDS[study.state],
        gain=gain,
        default_us=(gain.default_us if gain else None) or summary.default_us,
        policy_us=gain.policy_us if gain else None,
        best_us=None if gain else summary.best_us,
        trials=summary.trials,
        age=format_age(study.updated or study.created, now),
        effect=EFFECT_WORDS[Effect(effect)][1] if effect else "",
    )

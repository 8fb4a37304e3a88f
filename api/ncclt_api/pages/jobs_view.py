"""The content of the page of tuning jobs: the queue, and how far the running ones are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ncclt.core.tuning_job import JobState, JobStatus
from ncclt_api.pages.index_view import StudyRow
from ncclt_api.pages.wording import format_age

_MOODS = {
    JobState.QUEUED: "open",
    JobState.RUNNING: "running",
    JobState.DONE: "tuned",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "open",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job in the list.

    Attributes:
        status: the job and where it stands.
        mood, word: the badge.
        trials: launches so far; None while there is no study.
        most: launches of the search at most; those of the proof come on top.
        study: id of its study; empty = there is none yet.
        label: the mark of times that were not measured on the cluster; empty = they were, or there are none.
        told: how it ended, or what it waits for.
        age: since it was queued.
        can_cancel, can_retry: what may be done now.
    """

    status: JobStatus
    mood: str
    word: str
    trials: int | None
    most: int
    study: str
    label: str
    told: str
    age: str
    can_cancel: bool
    can_retry: bool


def job_rows(jobs: Sequence[JobStatus], running: Sequence[StudyRow], *, now: datetime) -> tuple[JobRow, ...]:
    """Return the rows of the list.

    Args:
        jobs: newest first.
        running: the studies that are running.
        now: for ages.
    """
    studies = {row.name: row for row in running}
    return tuple(_row(one, studies, now) for one in jobs)


def _row(one: JobStatus, studies: Mapping[str, StudyRow], now: datetime) -> JobRow:
    result, live = one.result, studies.get(one.job.study) if one.state is JobState.RUNNING else None
    label = ""
    if result:
        label = "SIMULATED" if result.simulated else result.recorded
    elif live:
        label = live.label
    return JobRow(
        status=one,
        mood=_MOODS[one.state],
        word="cancelling" if one.cancelling else one.state.value,
        trials=result.trials if result else live.trials if live else None,
        most=one.job.trials,
        study=result.study if result else live.id if live else "",
        label=label,
        told=_told(one),
        age=format_age(one.job.created, now),
        can_cancel=not one.state.ended and not one.cancelling,
        can_retry=one.state.ended,
    )


def _told(one: JobStatus) -> str:
    if one.result:
        return ": ".join(filter(None, (one.result.decision.replace("-", " "), one.result.reason)))
    if one.state is JobState.QUEUED:
        return f"waits for a worker: `ncclt admin worker --cluster {shlex.quote(one.job.cluster)}`"
    if one.cancelling:
        return "ends after its trial"
    return f"on {one.worker}" if one.worker else ""

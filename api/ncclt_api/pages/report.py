"""A study as one file to send around: the page of the study with everything in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ncclt.core.study import Study
from ncclt.store.store import Store
from ncclt_api.pages.environment import render_page
from ncclt_api.pages.self_contained import self_contained
from ncclt_api.pages.study import StudyPages
from ncclt_api.pages.trials import TrialChoice


def study_report(store: Store, study: Study, *, now: datetime | None = None) -> str:
    """Return the report of a study: HTML that loads nothing.

    Args:
        store: where the study is.
        study: the study.
        now: time of the report; None = the current one.
    """
    now = now or datetime.now(UTC)
    values: dict[str, Any] = StudyPages(lambda: store)(study, server="", choice=TrialChoice(sort="time"), now=now)
    made = now.strftime("%Y-%m-%d %H:%M UTC")
    return self_contained(
        render_page("study.html", frame="report.html", in_report=True, made=made, **{**values, "is_live": False})
    )

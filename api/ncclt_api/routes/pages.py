"""The web pages; what they show is also in the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse

from ncclt_api import dashboard
from ncclt_api.dependencies import CurrentStore, PermittedStudy, StrictQuery
from ncclt_api.documents import LAST_SHOWN
from ncclt_api.pages.environment import render_page
from ncclt_api.pages.index_view import study_rows
from ncclt_api.pages.jobs import NO_JOBS, jobs_of
from ncclt_api.pages.study_view import study_view
from ncclt_api.pages.wording import format_age

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

STUDIES_PER_PAGE = 25


class IndexQuery(StrictQuery):
    """Which studies; empty values come from a form and mean all."""

    cluster: str = ""
    model: str = ""
    cursor: str = ""


class StudyQuery(StrictQuery):
    """Which part of the trials."""

    page: int = Field(1, ge=1)


@router.get("/")
def show_index(query: Annotated[IndexQuery, Query()], store: CurrentStore, request: Request) -> HTMLResponse:
    """List the studies, newest first."""
    chosen = {"cluster": query.cluster, "model": query.model}
    page = store.studies(
        limit=STUDIES_PER_PAGE,
        cursor=query.cursor or None,
        cluster=query.cluster or None,
        model=query.model or None,
    )
    older = "/?" + urlencode({**chosen, "cursor": page.next_cursor}) if page.next_cursor else ""
    return _page(
        request,
        "index.html",
        rows=study_rows(
            page.items,
            now=datetime.now(UTC),
            effects=store.effects([item.recommendation.id for item in page.items if item.recommendation]),
        ),
        clusters=_with_chosen([entry.item.name for entry in store.clusters()], query.cluster),
        models=_with_chosen([entry.item.name for entry in store.workloads()], query.model),
        chosen=chosen,
        filtered=bool(query.cluster or query.model),
        first=not query.cursor,
        newest="/?" + urlencode(chosen),
        older=older,
    )


@router.get("/studies/{id}")
def show_study(
    study: PermittedStudy, query: Annotated[StudyQuery, Query()], store: CurrentStore, request: Request
) -> HTMLResponse:
    """Show one study with its evidence."""
    published = store.recommendations(study=study.id)
    now = datetime.now(UTC)
    jobs = NO_JOBS
    if published:
        verifications = store.verifications(recommendation=published[0].id, limit=LAST_SHOWN)
        jobs = jobs_of(verifications, store.attestations([published[0].id], limit=LAST_SHOWN), now=now)
    view = study_view(
        study,
        store.trials(study.id),
        published[0] if published else None,
        server=str(request.base_url).rstrip("/"),
        page=query.page,
        jobs=jobs,
    )
    return _page(request, "study.html", view=view, age=format_age(study.updated or study.created, now))


def _page(request: Request, template: str, **values: Any) -> HTMLResponse:
    has_dashboard = request.app.state.dashboard and dashboard.is_installed()
    page = render_page(template, has_dashboard=has_dashboard, **values)
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


def _with_chosen(names: list[str], chosen: str) -> list[str]:
    # A study may belong to a cluster or workload that has since left the catalogue.
    return sorted({*names, chosen} - {""})

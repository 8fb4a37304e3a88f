"""The page of tuning jobs, and the forms that start, cancel and retry one."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Form, Query, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.study import StudyEntry
from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, USUAL_PRIORITY, JobState, JobStatus
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore
from ncclt_api.json_models import NewJob
from ncclt_api.pages.response import CurrentPage, PageQuery, json_response, page_router
from ncclt_api.routes.jobs import CurrentJob, CurrentQueue, cancel_job, current_queue, retry_job, submit_job
from ncclt_api.sign_in import OwnForm

router = page_router(prefix="/jobs")

JOBS_PER_PAGE = 50
_MOST_TRIALS = 10**6
_USUAL_TRIALS: int = NewJob.model_fields["trials"].default


class JobsPageQuery(PageQuery):
    """Filter of the queue."""

    cluster: str = ""
    state: JobState | Literal[""] = ""
    page: int = Field(1, ge=1, le=1000)


@router.get("", dependencies=needs(Role.READ))
def show_jobs(
    query: Annotated[JobsPageQuery, Query()], store: CurrentStore, request: Request, page: CurrentPage
) -> Response:
    """Show the queue, newest first, with the form of a new job."""
    has_queue = is_installed()
    jobs: Sequence[JobStatus] = ()
    running: dict[str, StudyEntry] = {}
    if has_queue:
        jobs = current_queue(request).statuses(
            cluster=query.cluster or None,
            state=query.state or None,
            limit=JOBS_PER_PAGE + 1,
            offset=(query.page - 1) * JOBS_PER_PAGE,
        )
        running = {entry.study.name: entry for entry in store.studies.running(cluster=query.cluster or None)}
    rows, has_more = jobs[:JOBS_PER_PAGE], len(jobs) > JOBS_PER_PAGE
    if query.format == "json":
        return json_response({"has_queue": has_queue, "jobs": rows, "more": has_more})
    return page.write_html(
        "_queue.html" if request.headers.get("hx-request") else "jobs.html",
        query=query,
        rows=rows,
        running=running,
        live=any(not row.state.ended for row in rows),
        newer=query.address("/jobs", query.page - 1) if query.page > 1 else "",
        older=query.address("/jobs", query.page + 1) if has_more else "",
        has_queue=has_queue,
        states=[state.value for state in JobState],
        usual={"trials": _USUAL_TRIALS, "priority": USUAL_PRIORITY, "first": FIRST_PRIORITY, "last": LAST_PRIORITY},
    )


@router.post("", dependencies=[*needs(Role.TUNE), OwnForm])
async def start_job(
    cluster: Annotated[str, Form(min_length=1, max_length=200)],
    model: Annotated[str, Form(min_length=1, max_length=200)],
    store: CurrentStore,
    queue: CurrentQueue,
    request: Request,
    trials: Annotated[int, Form(ge=1, le=_MOST_TRIALS)] = _USUAL_TRIALS,
    nodes: Annotated[int | None, Form(ge=1, le=_MOST_TRIALS)] = None,
    priority: Annotated[int, Form(ge=FIRST_PRIORITY, le=LAST_PRIORITY)] = USUAL_PRIORITY,
) -> Response:
    """Queue a job, and show the queue."""
    fields = {"cluster": cluster, "model": model, "trials": trials, "nodes": nodes, "priority": priority}
    await submit_job(NewJob.model_validate(fields), store, queue, request, Response())
    return RedirectResponse("/jobs", 303)


@router.post("/{id}/cancel", dependencies=[*needs(Role.TUNE), OwnForm])
def cancel(job: CurrentJob, queue: CurrentQueue) -> Response:
    """Cancel a job, and show the queue."""
    cancel_job(job, queue)
    return RedirectResponse("/jobs", 303)


@router.post("/{id}/retry", dependencies=[*needs(Role.TUNE), OwnForm])
def retry(job: CurrentJob, queue: CurrentQueue, request: Request) -> Response:
    """Queue a job again, and show the queue."""
    retry_job(job, queue, request, Response())
    return RedirectResponse("/jobs", 303)


def is_installed() -> bool:
    """Check for the library of the queue without importing it."""
    return importlib.util.find_spec("dbos") is not None

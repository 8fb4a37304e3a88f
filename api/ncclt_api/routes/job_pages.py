"""The page of tuning jobs, and the forms that start, cancel and retry one."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.study import StudyEntry
from ncclt.core.tuning_job import FIRST_PRIORITY, LAST_PRIORITY, USUAL_PRIORITY, JobState, JobStatus
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore, StrictQuery
from ncclt_api.routes.jobs import CurrentJob, CurrentQueue, cancel_job, current_queue, retry_job, submit_job
from ncclt_api.routes.pages import build_address, json_response, page_response
from ncclt_api.schemas import NewJob
from ncclt_api.sign_in import OwnForm

router = APIRouter(prefix="/jobs", include_in_schema=False, default_response_class=HTMLResponse)

JOBS_PER_PAGE = 50
_MOST_TRIALS = 10**6
_USUAL_TRIALS: int = NewJob.model_fields["trials"].default


class JobsPageQuery(StrictQuery):
    """Filter of the queue; empty values come from a form and mean all."""

    cluster: str = ""
    state: JobState | Literal[""] = ""
    page: int = Field(1, ge=1, le=1000)
    format: Literal["html", "json"] = "html"


@router.get("", dependencies=needs(Role.READ))
def show_jobs(query: Annotated[JobsPageQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show the queue, newest first, with the form of a new job."""
    has_queue = is_installed()
    found: Sequence[JobStatus] = ()
    running: dict[str, StudyEntry] = {}
    if has_queue:
        found = current_queue(request).statuses(
            cluster=query.cluster or None,
            state=query.state or None,
            limit=JOBS_PER_PAGE + 1,
            offset=(query.page - 1) * JOBS_PER_PAGE,
        )
        running = {one.study.name: one for one in store.studies.running(cluster=query.cluster or None)}
    rows, more = found[:JOBS_PER_PAGE], len(found) > JOBS_PER_PAGE
    if query.format == "json":
        return json_response({"has_queue": has_queue, "jobs": rows, "more": more})
    chosen = {"cluster": query.cluster, "state": query.state}
    values = {
        "rows": rows,
        "running": running,
        "chosen": chosen,
        "live": any(not row.state.ended for row in rows),
        "address": build_address("/jobs", chosen, query.page),
        "newer": build_address("/jobs", chosen, query.page - 1) if query.page > 1 else "",
        "older": build_address("/jobs", chosen, query.page + 1) if more else "",
    }
    if request.headers.get("hx-request"):
        return page_response(request, "_queue.html", **values)
    return page_response(
        request,
        "jobs.html",
        has_queue=has_queue,
        states=[state.value for state in JobState],
        clusters=sorted(cluster.name for cluster, _ in store.clusters.entries()),
        models=sorted(workload.name for workload, _ in store.workloads.entries()),
        usual={"trials": _USUAL_TRIALS, "priority": USUAL_PRIORITY, "first": FIRST_PRIORITY, "last": LAST_PRIORITY},
        **values,
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
    body = NewJob.model_validate(
        {"cluster": cluster, "model": model, "trials": trials, "nodes": nodes, "priority": priority}
    )
    await submit_job(body, store, queue, request, Response())
    return RedirectResponse("/jobs", 303)


@router.post("/{id}/cancel", dependencies=[*needs(Role.TUNE), OwnForm])
def cancel(found: CurrentJob, queue: CurrentQueue) -> Response:
    """Cancel a job, and show the queue."""
    cancel_job(found, queue)
    return RedirectResponse("/jobs", 303)


@router.post("/{id}/retry", dependencies=[*needs(Role.TUNE), OwnForm])
def retry(found: CurrentJob, queue: CurrentQueue, request: Request) -> Response:
    """Queue a job again, and show the queue."""
    retry_job(found, queue, request, Response())
    return RedirectResponse("/jobs", 303)


def is_installed() -> bool:
    """Check for the library of the queue without importing it."""
    return importlib.util.find_spec("dbos") is not None

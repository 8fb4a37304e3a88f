"""Tuning jobs: requested here, run by `ncclt admin worker` on the clusters."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.responses import StreamingResponse

from ncclt.core.api_key import Role
from ncclt.core.name import check_name
from ncclt.core.revision import Actor
from ncclt.core.tuning_job import JobEvent, JobState, JobStatus, TuningJob
from ncclt.errors import StoreError, UsageError
from ncclt.store.clock import utc_now
from ncclt.store.store import Store
from ncclt_api.access import key_of, needs, who
from ncclt_api.dependencies import MOST_NUMBER, CurrentList, CurrentStore, PagedQuery, StrictQuery, normal_version
from ncclt_api.json_models import JobDocument, JobList, NewJob, NewStaleJobs, StaleJobList
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.uploads import keep_workload, read_uploaded
from ncclt_api.text import readable

if TYPE_CHECKING:
    from ncclt.store.job_queue import JobQueue

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=PROBLEMS)

_LONGEST_KEY = 200

_LONGEST_ANSWER = 256 * 1024
"""Characters of events in one answer, about; the client reads 1 MiB."""

_opening = threading.Lock()


def current_queue(request: Request) -> JobQueue:
    """Return the queue, as of `open_queue`, as the key of the request may see it."""
    key = key_of(request)
    return open_queue(request.app.state).visible_to(key.clusters if key else ())


def open_queue(state: State) -> JobQueue:
    """Return the queue of an application; it is opened when it is first used.

    Raises:
        StoreError: ncclt was installed without it, or it cannot be opened.
    """
    with _opening:
        if state.jobs is None:
            try:
                from ncclt.store.job_queue import JobQueue, prepare
            except ModuleNotFoundError as error:
                raise StoreError(
                    f"this service has no queue of tuning jobs: {error.name} is not installed",
                    hint="pip install 'ncclt[jobs]'",
                ) from error
            if state.store.path is not None:
                # Only `ncclt admin store migrate`, `worker` and `jobs` migrate a shared database.
                prepare(state.store.url)
            state.jobs = JobQueue(state.store.url)
    queue: JobQueue = state.jobs
    return queue


CurrentQueue = Annotated["JobQueue", Depends(current_queue)]


def current_job(id: str, queue: CurrentQueue) -> JobStatus:
    """Return the job of a path."""
    return queue.status(id)


CurrentJob = Annotated[JobStatus, Depends(current_job)]


class JobsQuery(PagedQuery):
    """Filter and page of jobs."""

    cluster: str | None = Field(None, description="only jobs of this cluster")
    state: JobState | None = Field(None, description="only jobs in this state")


@router.get("", operation_id="listJobs", summary="Tuning jobs, newest first", dependencies=needs(Role.READ))
def list_jobs(query: Annotated[JobsQuery, Query()], queue: CurrentQueue, lists: CurrentList) -> JobList:
    """List one page of jobs."""
    jobs = queue.statuses(cluster=query.cluster, state=query.state, limit=query.limit + 1, after=query.cursor)
    return lists.write_rows(JobList, query, jobs, key=lambda status: status.job.id, show=job_document)


@router.post(
    "",
    operation_id="submitJob",
    summary="Submit a tuning job",
    status_code=201,
    responses={
        200: {"model": JobDocument, "description": "the job of this Idempotency-Key, queued before"},
        409: PROBLEMS[404] | {"description": "the Idempotency-Key or the profile's name is another one's"},
    },
    dependencies=needs(Role.TUNE),
)
async def submit_job(
    body: NewJob,
    store: CurrentStore,
    queue: CurrentQueue,
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(max_length=_LONGEST_KEY, description="idempotent: the same key queues one job")
    ] = None,
) -> JobDocument:
    """Queue a job; an uploaded profile is kept under its name."""
    await run_in_threadpool(store.clusters.get, body.cluster)  # refused before anything is stored
    if body.profile is not None:
        name = body.profile.get("name")
        if not isinstance(name, str):
            raise UsageError("the profile has no name", hint="GET /v1/workloads/bert shows what a profile looks like")
        check_name(name, "the profile's name")
        workload = await read_uploaded(json.dumps(body.profile).encode(), name=name)
        await run_in_threadpool(keep_workload, store, workload, Actor(who=who(request)))
    return await run_in_threadpool(_submit, body, store, queue, request, response, idempotency_key or "")


def _submit(
    body: NewJob, store: Store, queue: JobQueue, request: Request, response: Response, idempotency_key: str
) -> JobDocument:
    from ncclt.store.job_queue import new_job_id

    limits = body.model_dump(exclude={"profile", "again", "model", "nccl_version"})
    by = _find_submitter(request)
    job = TuningJob(
        **limits,
        model=body.model if body.model is not None else str((body.profile or {})["name"]),
        nccl_version=normal_version(body.nccl_version),
        id=new_job_id(idempotency_key, by=by),
        created=utc_now(),
        by=by,
    )
    return _answer_queued(response, *queue.submit(store.jobs.check(job, again=body.again)))


def _find_submitter(request: Request) -> str:
    """Return the id of the key of a request; empty = the store has no keys."""
    key = key_of(request)
    return key.id if key else ""


def _answer_queued(response: Response, status: JobStatus, is_new: bool) -> JobDocument:
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{status.job.id}"
    return job_document(status)


@router.post(
    "/stale", operation_id="submitStaleJobs", summary="Renew every stale recommendation", dependencies=needs(Role.TUNE)
)
def submit_stale_jobs(body: NewStaleJobs, store: CurrentStore, queue: CurrentQueue, request: Request) -> StaleJobList:
    """Queue a job for each stale recommendation that has none queued or running."""
    from ncclt.store.job_queue import submit_stale

    by = _find_submitter(request)
    limits = TuningJob(id="", cluster="", model="", by=by, **body.model_dump(exclude={"cluster"}))
    rows = submit_stale(store, queue, limits, cluster=body.cluster, now=utc_now())
    items = [row.to_document() | {"job": job_document(row.status) if row.status else None} for row in rows]
    return StaleJobList.model_validate({"items": items})


@router.get("/{id}", operation_id="getJob", summary="One tuning job", dependencies=needs(Role.READ))
def get_job(job: CurrentJob) -> JobDocument:
    """Return one job with its state."""
    return job_document(job)


@router.post(
    "/{id}/cancel",
    operation_id="cancelJob",
    summary="Cancel a job: in the queue, or after its trial",
    dependencies=needs(Role.TUNE),
)
def cancel_job(status: CurrentJob, queue: CurrentQueue) -> JobDocument:
    """Cancel a job; one that has ended stays as it is."""
    return job_document(queue.cancel(status.job.id))


@router.post(
    "/{id}/retry",
    operation_id="retryJob",
    summary="Queue an ended job again",
    status_code=201,
    responses={
        200: {"model": JobDocument, "description": "it was tried again before: that job"},
        409: PROBLEMS[404] | {"description": "it has not ended"},
    },
    dependencies=needs(Role.TUNE),
)
def retry_job(status: CurrentJob, queue: CurrentQueue, request: Request, response: Response) -> JobDocument:
    """Queue it as a job of its own; its study resumes."""
    retried = queue.retry(status.job.id, by=_find_submitter(request), now=utc_now())
    return _answer_queued(response, *retried)


class JobEventsQuery(StrictQuery):
    """Query for the events of a job."""

    follow: bool = Field(True, description="false = end after the events that are written; an answer may hold a part")


@router.get(
    "/{id}/events",
    operation_id="followJob",
    summary="The progress of a job as server-sent events, until it has ended",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "events with ids, for Last-Event-ID"}},
    dependencies=needs(Role.READ),
)
async def follow_job(
    query: Annotated[JobEventsQuery, Query()],
    status: CurrentJob,
    queue: CurrentQueue,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MOST_NUMBER, description="resume behind the event of this id")
    ] = None,
) -> Response:
    """Stream past and new events, then the ended job."""
    id, first = status.job.id, 0 if last_event_id is None else last_event_id + 1
    if not query.follow:
        text = await run_in_threadpool(_write_events, queue, status, first)
        return Response(text, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def lines() -> AsyncIterator[str]:
        yield _write_status("status", status)
        try:
            async for event in queue.events(id, first=first):
                yield ": waiting\n\n" if event is None else _write_event(event)
        except StoreError:
            return  # the reader comes again with Last-Event-ID
        yield _write_status("end", await run_in_threadpool(queue.status, id))

    return StreamingResponse(
        lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


def _write_events(queue: JobQueue, status: JobStatus, first: int) -> str:
    parts, length = [_write_status("status", status)], 0
    for event in queue.written(status.job.id, first=first):
        parts.append(_write_event(event))
        length += len(parts[-1])
        if length > _LONGEST_ANSWER:
            break
    return "".join(parts)


def _write_event(event: JobEvent) -> str:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(readable(event.data))}\n\n"


def _write_status(kind: str, status: JobStatus) -> str:
    return f"event: {kind}\ndata: {job_document(status).model_dump_json()}\n\n"


def job_document(status: JobStatus) -> JobDocument:
    """Return a job as the API shows it."""
    document = status.to_document()
    return JobDocument.model_validate({**document.pop("job"), **document})

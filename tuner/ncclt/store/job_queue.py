"""The queue of tuning jobs: the only module that knows DBOS, which keeps it durable in SQLite or PostgreSQL.

A job is a DBOS workflow of one step, in a queue per cluster. DBOS gives each job that it hands out an owner's mark and
records an end only from that owner, so the result of a worker that was wrongly assumed dead is dropped. DBOS does not
detect dead workers: `Jobs.bury_workers` of the store does.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, WorkflowSerializationFormat, WorkflowStatus
from dbos import error as dbos_error

from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import SHAPE_PARTS, Recommendation
from ncclt.core.tuning_job import JobEvent, JobResult, JobState, JobStatus, StaleJob, TuningJob
from ncclt.errors import (
    ConflictError,
    DuplicateError,
    NccltError,
    NotFoundError,
    StoreError,
    UsageError,
    hide_passwords,
)
from ncclt.store.database import CONNECT_TIMEOUT_S, engine_alone
from ncclt.store.failures import IMPOSSIBLE_VALUES, hint_for, impossible_value, one_line
from ncclt.store.location import locate
from ncclt.store.store import Store

SCHEMA = "ncclt_jobs"
"""Of DBOS's tables on PostgreSQL."""

_APPLICATION, _VERSION, _WORKFLOW, _EVENTS = "ncclt", "1", "tune", "events"

_CANCEL, _TAKEN_OVER = "cancel", "taken_over"

_BUSY_TIMEOUT_S = 30.0
"""Max wait of a worker for a lock on the SQLite file of the queue, as in DBOS."""

POLL_S = 1.0
"""Polling interval of workers for jobs, and of readers for events."""

_STATES = {
    "ENQUEUED": JobState.QUEUED,
    "DELAYED": JobState.QUEUED,
    "PENDING": JobState.RUNNING,
    "SUCCESS": JobState.DONE,
    "ERROR": JobState.FAILED,
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
}


def queue_file(storage: str) -> Path | None:
    """Return the file beside an SQLite store with its jobs; None on PostgreSQL, whose database has them."""
    path = locate(storage).path
    return path and path.absolute().with_name(f"{path.stem}.jobs.db")


def queue_url(storage: str) -> str:
    """Return the URL of the database with the jobs of a store."""
    if (file := queue_file(storage)) is not None:
        return f"sqlite:///{file}"
    url = locate(storage).url
    joined = "&" if "?" in url else "?"
    return url if "connect_timeout=" in url else f"{url}{joined}connect_timeout={CONNECT_TIMEOUT_S}"


def prepare(storage: str) -> None:
    """Create the tables of the queue or bring them up to date; may be called by several processes at once.

    Raises:
        StoreError: the database cannot be reached or written.
    """
    logging.getLogger("dbos").setLevel(logging.ERROR)
    with _translated():
        DBOS.migrate(queue_url(storage), schema=SCHEMA)


class JobQueue:
    """The jobs of a store, for those who ask for them; close it after use. Threads may share it.

    A missing file is read as an empty queue. Every method raises StoreError if the database cannot be reached.

    Args:
        storage: the store's URL.
    """

    def __init__(self, storage: str) -> None:
        logging.getLogger("dbos").setLevel(logging.ERROR)
        self._file = queue_file(storage)
        self._seen: frozenset[str] = frozenset()
        with _translated():
            # A request does not wait for the database; its caller repeats it.
            self._client = DBOSClient(
                system_database_url=queue_url(storage),
                dbos_system_schema=SCHEMA,
                serializer=DBOSPortableJSONSerializer(),  # DBOS would pickle
                application_name=_APPLICATION,
                lazy=True,
                retry_connection_errors=False,
            )

    def __enter__(self) -> JobQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._client.destroy()

    def visible_to(self, clusters: Collection[str]) -> JobQueue:
        """Return this queue bound to some clusters, empty = all: the jobs of others are not found."""
        bound = copy.copy(self)
        bound._seen = frozenset(clusters)
        return bound

    def submit(self, job: TuningJob) -> tuple[JobStatus, bool]:
        """Queue a job, once: the job of the same id is returned instead if there is one, and whether it is new.

        Raises:
            DuplicateError: the job of this id asks for something else.
        """
        queued = self._find(job.id)
        if queued is None:
            with _translated():
                self._register(job.cluster, at_once=None)
                self._client.enqueue(
                    {
                        "queue_name": _queue_of(job.cluster),
                        "workflow_name": _WORKFLOW,
                        "workflow_id": job.id,
                        "app_version": _VERSION,
                        "priority": job.priority,
                        "serialization_type": WorkflowSerializationFormat.PORTABLE,
                        "attributes": {"cluster": job.cluster, "model": job.model},
                    },
                    json.dumps(job.to_document()),
                )
        status = queued or self.status(job.id)
        if not status.job.is_same_request(job):
            raise DuplicateError(
                f"the job {job.id} asks for something else",
                hint="an Idempotency-Key is for one request; take another one",
            )
        return status, queued is None

    def status(self, id: str) -> JobStatus:
        """Return a job and where it stands.

        Raises:
            NotFoundError: there is no such job.
        """
        status = self._find(id)
        if status is None:
            raise NotFoundError(f"there is no job {id!r}", hint="`ncclt admin jobs list` or GET /v1/jobs lists them")
        return status

    def statuses(
        self,
        *,
        cluster: str | None = None,
        state: JobState | None = None,
        limit: int = 50,
        offset: int = 0,
        after: str | None = None,
    ) -> tuple[JobStatus, ...]:
        """Return jobs, newest first.

        Args:
            cluster: its name; None = any.
            state: None = any.
            after: id of the job that comes before the first of them; None = from the newest one.

        Raises:
            UsageError: there is no such job among them.
        """
        # Failed and cancelled jobs may have ended well for DBOS: what they have in common is that they ended.
        named = [word for word, meant in _STATES.items() if meant is state or (state and state.ended and meant.ended)]
        listed: list[JobStatus] = []
        start = 0
        while after is not None or len(listed) < offset + limit:
            page = self._listed(name=_WORKFLOW, status=named or None, sort_desc=True, limit=_PAGE, offset=start)
            # A cancelled job is in no queue any more, so that DBOS cannot look for a cluster's.
            listed += [
                status
                for status in map(_status_of, page)
                if self._is_visible(status) and cluster in (None, status.job.cluster) and state in (None, status.state)
            ]
            start += _PAGE
            if after in (ids := [status.job.id for status in listed]):
                listed, after = listed[ids.index(after) + 1 :], None
            if len(page) < _PAGE:
                break
        if after is not None:
            raise UsageError(f"{after!r} is not a cursor", hint="pass the next_cursor of the previous page")
        return tuple(listed[offset : offset + limit])

    def backlog(self) -> dict[tuple[str, JobState], list[float]]:
        """Return the Unix times at which the jobs that wait or run were requested, by cluster and state."""
        unfinished = [word for word, state in _STATES.items() if not state.ended]
        rows = self._listed(name=_WORKFLOW, status=unfinished, load_input=False, load_output=False)
        times: dict[tuple[str, JobState], list[float]] = {}
        for row in rows:
            key = ((row.queue_name or "").removeprefix(_queue_of("")), _STATES[row.status])
            times.setdefault(key, []).append((row.created_at or 0) / 1e3)
        return dict(sorted(times.items()))

    def cancel(self, id: str) -> JobStatus:
        """Cancel a job: a queued one at once, a running one when its worker sees it. An ended one stays as it is.

        Raises:
            NotFoundError: there is no such job.
        """
        if self.status(id).state.ended:
            return self.status(id)
        # In this order: a worker that takes the job between the two finds the wish before it launches anything.
        with _translated():
            self._client.update_workflow_attributes(id, {_CANCEL: True}, merge=True)
        if self.status(id).state is JobState.QUEUED:
            with _translated():
                self._client.cancel_workflow(id)
        return self.status(id)

    def retry(self, id: str, *, by: str, now: str) -> tuple[JobStatus, bool]:
        """Queue a job that has ended once more, as a job of its own whose id ends in the number of the try.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: it has not ended.
        """
        before = self.status(id)
        if not before.state.ended:
            raise ConflictError(f"the job {id} is {before.state}", hint="wait for its end, or cancel it")
        stem, _, number = id.rpartition("-")
        again = f"{stem}-{int(number) + 1}" if stem and number.isdecimal() else f"{id}-2"
        return self.submit(replace(before.job, id=again, by=by, created=now))

    async def events(self, id: str, *, first: int = 0, pause_s: float = 10.0) -> AsyncIterator[JobEvent | None]:
        """Yield the events of a job from a number on until it has ended, and None after each pause without one.

        Raises:
            NotFoundError: there is no such job.
        """
        number = first
        while True:
            # Looked at before reading: what was written before the end is still read after it.
            ended = (await asyncio.to_thread(self.status, id)).state.ended
            try:
                with _translated():
                    value = await self._client.read_stream_offset_async(
                        id, _EVENTS, number, polling_interval_sec=POLL_S, timeout_seconds=0.2 if ended else pause_s
                    )
            except dbos_error.DBOSStreamTimeoutError:
                if ended:
                    return
                yield None
                continue
            yield _event(number, value)
            number += 1

    def written(self, id: str, *, first: int = 0) -> Iterator[JobEvent]:
        """Yield the events of a job that are written, from a number on."""
        number = first
        while True:
            try:
                with _translated():
                    value = self._client.read_stream_offset(id, _EVENTS, number, timeout_seconds=0.0)
            except dbos_error.DBOSStreamTimeoutError:
                return
            yield _event(number, value)
            number += 1

    def remove(self, ids: Sequence[str]) -> None:
        """Remove jobs that have ended, with their events: all of them or none."""
        with _translated():
            self._client.delete_workflows(list(ids))

    def holders(self, cluster: str) -> tuple[str, ...]:
        """Return the workers that hold jobs of a cluster."""
        rows = self._listed(status="PENDING", queue_name=_queue_of(cluster), load_input=False, load_output=False)
        return tuple(sorted({row.executor_id for row in rows if row.executor_id}))

    def give_back(self, worker: str, *, died: bool) -> None:
        """Return the jobs that a dead or ended worker holds to the queue, to be called by one process at a time."""
        with _translated():
            for row in self._client.list_workflows(status="PENDING", executor_id=worker, load_input=False):
                times = int((row.attributes or {}).get(_TAKEN_OVER, 0)) + died
                self._client.update_workflow_attributes(row.workflow_id, {_TAKEN_OVER: times}, merge=True)
                self._client.resume_workflow(row.workflow_id, queue_name=row.queue_name)

    def allow(self, cluster: str, *, at_once: int) -> None:
        """Set how many jobs of a cluster may run at once, over all workers."""
        with _translated():
            self._register(cluster, at_once=at_once)

    def _register(self, cluster: str, *, at_once: int | None) -> None:
        self._client.register_queue(
            _queue_of(cluster),
            global_concurrency=at_once or 1,
            worker_concurrency=at_once or 1,
            polling_interval_sec=POLL_S,
            on_conflict="always_update" if at_once else "never_update",
        )

    def _find(self, id: str) -> JobStatus | None:
        rows = self._listed(workflow_ids=[id], name=_WORKFLOW)
        return next((status for status in map(_status_of, rows) if self._is_visible(status)), None)

    def _is_visible(self, status: JobStatus) -> bool:
        return not self._seen or status.job.cluster in self._seen

    def _listed(self, **which: Any) -> list[WorkflowStatus]:
        if self._file is not None and not self._file.exists():
            return []
        with _translated():
            return self._client.list_workflows(**which)


_PAGE = 200


def new_job_id(idempotency_key: str = "", *, by: str = "") -> str:
    """Return the id of a new job; the same for the same key of the same person."""
    return uuid.uuid5(_IDS, f"{by}\n{idempotency_key}").hex[:16] if idempotency_key else uuid.uuid4().hex[:16]


_IDS = uuid.UUID("6e63636c-7400-4a6f-8273-000000000001")


def submit_stale(
    store: Store, queue: JobQueue, limits: TuningJob, *, cluster: str | None, now: str
) -> tuple[StaleJob, ...]:
    """Queue a job for each stale recommendation that has none queued or running.

    Args:
        limits: the job but for its id, cluster, workload and shape.
        cluster: only its recommendations; None = all.
        now: ISO time.

    Raises:
        NotFoundError: the cluster is unknown.
        StoreError: store or queue cannot be used.
    """
    stale = store.recommendations.stale(cluster=cluster)
    if cluster is not None and not stale:
        store.clusters.get(cluster)
    unfinished = [
        status
        for state in (JobState.QUEUED, JobState.RUNNING)
        for status in queue.statuses(cluster=cluster, state=state, limit=sys.maxsize)
    ]
    renewals = []
    for recommendation in stale:
        renewed = _submit_stale(store, queue, limits, recommendation, unfinished=unfinished, now=now)
        if renewed.status is not None and renewed.is_new:
            unfinished.append(renewed.status)
        renewals.append(renewed)
    return tuple(renewals)


def _submit_stale(
    store: Store,
    queue: JobQueue,
    limits: TuningJob,
    recommendation: Recommendation,
    *,
    unfinished: Sequence[JobStatus],
    now: str,
) -> StaleJob:
    shape: dict[str, Any] = {part: getattr(recommendation.fingerprint, part) for part in SHAPE_PARTS}
    shape |= {"cluster": recommendation.cluster, "model": recommendation.model}
    renewal = StaleJob(recommendation=recommendation.id, stale=recommendation.stale, **shape)
    try:
        place = store.clusters.get(recommendation.cluster)
        for status in unfinished:
            if _tunes(status.job, renewal, place):
                return replace(renewal, status=status)
        job = replace(limits, **shape, id=_free_id(queue, recommendation.id), created=now)
        submitted, is_new = queue.submit(store.jobs.check(job, again=True))
    except StoreError:
        raise
    except NccltError as error:
        return replace(renewal, refused=error.message)
    return replace(renewal, status=submitted, is_new=is_new)


def _tunes(job: TuningJob, wanted: StaleJob, place: Cluster) -> bool:
    """Match a job with a stale recommendation; fields that the job leaves open are the cluster's."""
    return (
        (job.cluster, job.model) == (wanted.cluster, wanted.model)
        and (job.nodes or place.nodes) == wanted.nodes
        and (job.gpus_per_node or place.gpus_per_node) == wanted.gpus_per_node
        and NcclVersion.parse(job.nccl_version or place.nccl_version) == NcclVersion.parse(wanted.nccl_version)
    )


def _free_id(queue: JobQueue, recommendation: str) -> str:
    """Return the id of the next job for a stale recommendation: two callers at once queue one job."""
    number = 0
    while True:
        id = new_job_id(f"{recommendation} {number}", by="stale")
        try:
            ended = queue.status(id).state.ended
        except NotFoundError:
            return id
        if not ended:
            return id
        number += 1


def prune_jobs(storage: str, *, before: str, dry_run: bool) -> int:
    """Remove the jobs that ended before a time, and return how many they are.

    Args:
        before: ISO time in UTC.

    Raises:
        StoreError: the queue cannot be used.
    """
    if (file := queue_file(storage)) is not None and not file.exists():
        return 0
    prepare(storage)
    with JobQueue(storage) as queue:
        ids = [
            status.job.id
            for status in queue.statuses(limit=sys.maxsize)
            if status.state.ended and "" < (status.ended or status.job.created) < before
        ]
        if ids and not dry_run:
            queue.remove(ids)
    return len(ids)


def serve_jobs(storage: str, cluster: str, *, worker: str, run: Callable[[TuningJob], JobResult]) -> Callable[[], None]:
    """Take jobs of a cluster from now on, each in a thread of its own; return what stops taking more.

    Args:
        storage: the store's URL; `prepare` must have been called.
        worker: a name that no other process has or had.
        run: runs a job to its end, and may `write_event`; what it raises fails the job.
    """
    url = queue_url(storage)
    # On SQLite, DBOS counts the running jobs before its transaction begins: two workers would each take one.
    engine = engine_alone(url, busy_timeout_s=_BUSY_TIMEOUT_S)
    DBOS(
        config={
            "name": _APPLICATION,
            "system_database_url": url,
            "system_database_engine": engine,
            "dbos_system_schema": SCHEMA,
            "executor_id": worker,
            "application_version": _VERSION,
            "log_level": "ERROR",
            "serializer": DBOSPortableJSONSerializer(),
            "run_migrations": False,
        }
    )

    # One step: what was recorded of a job would otherwise be replayed by the worker that takes it over.
    @DBOS.step(name="study")
    def study(document: str) -> str:
        return json.dumps(run(TuningJob.from_document(json.loads(document))).to_document())

    @DBOS.workflow(name=_WORKFLOW, serialization_type=WorkflowSerializationFormat.PORTABLE, max_recovery_attempts=None)
    def tune(document: str) -> str:
        return study(document)

    DBOS.listen_queues([_queue_of(cluster)])
    DBOS.launch()

    def take_no_more() -> None:
        DBOS.destroy()
        if engine is not None:
            engine.dispose()

    return take_no_more


def write_event(kind: str, **data: Any) -> None:
    """Write an event of the job that this thread runs; wait while the database is away."""
    DBOS.write_stream(_EVENTS, {"kind": kind, "data": data})


def _event(number: int, value: Any) -> JobEvent:
    return JobEvent(number=number, kind=str(value["kind"]), data=dict(value["data"]))


def _status_of(row: WorkflowStatus) -> JobStatus:
    assert row.input is not None
    job = TuningJob.from_document(json.loads(row.input["args"][0]))
    attributes = row.attributes or {}
    result = JobResult.from_document(json.loads(row.output)) if row.status == "SUCCESS" and row.output else None
    state = _STATES[row.status] if result is None else result.state
    if row.status == "ERROR":
        reason = hide_passwords(" ".join(f"{type(row.error).__name__}: {row.error}".split()))[:500]
        result = JobResult(state=JobState.FAILED, reason=reason)
    return JobStatus(
        job=job,
        state=state,
        cancelling=bool(attributes.get(_CANCEL)) and not state.ended,
        worker="" if state is JobState.QUEUED else row.executor_id or "",
        started=_iso(row.dequeued_at),
        ended=_iso(row.completed_at),
        taken_over=int(attributes.get(_TAKEN_OVER, 0)),
        result=result,
    )


def _iso(time_ms: int | None) -> str:
    return datetime.fromtimestamp(time_ms / 1e3, UTC).isoformat(timespec="milliseconds") if time_ms else ""


def _queue_of(cluster: str) -> str:
    return f"tune-{cluster}"


@contextmanager
def _translated() -> Iterator[None]:
    """Turn every failure of DBOS and its driver as `store.failures.translated` does, but for the end of a wait."""
    try:
        yield
    except (dbos_error.DBOSStreamTimeoutError, StoreError):
        raise
    except IMPOSSIBLE_VALUES as error:
        raise impossible_value(error) from error
    except Exception as error:
        message = one_line(error)[:300]
        missing = any(words in message for words in ("no such table", "does not exist", "migrat"))
        raise StoreError(
            f"the queue of tuning jobs cannot be used: {message}",
            hint="`ncclt admin store migrate` makes its tables" if missing else hint_for(error),
        ) from error

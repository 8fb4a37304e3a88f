"""`ncclt admin jobs`: tuning jobs in the queue of a store."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import require_one_source, storage_flag, storage_url
from ncclt.cli.options import AsJson, ClusterFilter, ClusterHere, Fields, Limit, ModelFilter, spread
from ncclt.cli.render import Column, print_document, print_json, print_list, print_text, say
from ncclt.core.budget import Budget
from ncclt.core.option import Option
from ncclt.core.tuning_job import USUAL_PRIORITY, JobState, JobStatus, StaleJob, TuningJob
from ncclt.errors import ConflictError, UsageError, require_extra
from ncclt.measure.target import Target
from ncclt.pipeline.remote_jobs import RemoteJobs
from ncclt.store import open_store, open_to_read
from ncclt.store.clock import utc_now
from ncclt.store.location import locate

if TYPE_CHECKING:
    from ncclt.store.job_queue import JobQueue

app = typer.Typer(help="Queue, list, follow and cancel tuning jobs.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Id of the job, see `ncclt admin jobs list`.")]
Server = Annotated[
    str | None,
    typer.Option(help="URL of an ncclt server to use instead of a store (key: NCCLT_API_KEY).", show_default=False),
]

_LIMITS = {
    "trials": Option("Max search trials."),
    "seconds": Option("Max seconds of search.", flag="--time"),
    "gpu_hours": Option("Max GPU-hours of the study."),
    "blocks": Option("Max blocks of the A/B test."),
    "prove_variables": Option("Validate plain variables too."),
}
"""Help of the limits of a job."""

_SHAPE = ("nodes", "gpus_per_node", "nccl_version")
_OF_JOB = {"nccl_version": Option("NCCL version of the job; default: the cluster's.")}


def _open_jobs(server: str | None) -> AbstractContextManager[RemoteJobs | JobQueue]:
    """Return the jobs of a service, or the queue of a store; neither is made."""
    if server:
        return nullcontext(_open_remote(server))
    storage = storage_url()
    require_extra("jobs")
    from ncclt.store.job_queue import JobQueue

    open_to_read(storage).close()  # a named store that is not there is an error
    return JobQueue(locate(storage).url)


def _open_remote(server: str) -> RemoteJobs:
    require_one_source(server, storage_flag())
    return RemoteJobs(server)


@app.command("submit")
@spread
def submit(
    *,
    cluster: ClusterHere = None,
    model: ModelFilter = None,
    shape: Annotated[Target, Fields(" ".join(_SHAPE), _OF_JOB)],
    budget: Annotated[Budget, Fields(" ".join(_LIMITS), _LIMITS)],
    priority: Annotated[int, Option("Priority, from 1 (first) to 9 (last).")] = USUAL_PRIORITY,
    again: Annotated[bool, Option("Measure again if it was tuned already.")] = False,
    stale: Annotated[bool, Option("Queue a job for each stale recommendation.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Queue a tuning job and print its id.

    With --stale, queue a job for each stale recommendation without one, of --cluster or all clusters.
    """
    limits = {name: getattr(budget, name) for name in _LIMITS} | {name: getattr(shape, name) for name in _SHAPE}
    job = TuningJob(id="", cluster=cluster or "", model=model or "", priority=priority, **limits)
    if stale:
        if again or model is not None or shape != Target():
            raise UsageError(
                "--stale takes workload and shape from the recommendations",
                hint="leave out --model, --nodes, --gpus-per-node, --nccl-version and --again",
            )
        _submit_stale(replace(job, cluster=""), cluster or None, server, as_json=as_json)
        return
    if not cluster or not model:
        raise UsageError("--cluster and --model are needed", hint="or --stale, for all stale recommendations")
    status = _open_remote(server).submit(job, again=again) if server else _queue_job(job, again=again)
    _print_status(status, as_json=as_json)


def _queue_job(job: TuningJob, *, again: bool) -> JobStatus:
    """Queue a job in a store, which is made where it is missing."""
    storage = storage_url()
    require_extra("jobs")
    from ncclt.store.job_queue import JobQueue, new_job_id, prepare

    with open_store(storage) as store:
        job = store.jobs.check(replace(job, id=new_job_id(), created=utc_now()), again=again)
        prepare(store.url)
        with JobQueue(store.url) as queue:
            status, _ = queue.submit(job)
        if not store.jobs.workers(job.cluster):
            say(f"ncclt: no worker serves {job.cluster}; start one there: ncclt admin worker --cluster {job.cluster}")
    return status


def _submit_stale(limits: TuningJob, cluster: str | None, server: str | None, *, as_json: bool) -> None:
    """Queue a job for each stale recommendation, and print them.

    Raises:
        ConflictError: there is one without a job.
    """
    if server:
        stale = _open_remote(server).submit_stale(limits, cluster=cluster)
    else:
        require_extra("jobs")
        from ncclt.store.job_queue import JobQueue, prepare, submit_stale

        with open_store(storage_url(), makes=False) as store:
            prepare(store.url)
            with JobQueue(store.url) as queue:
                stale = submit_stale(store, queue, limits, cluster=cluster, now=utc_now())
    if as_json:
        print_json({"schema": 1, "stale": stale})
    elif not stale:
        print_text("no stale recommendations")
    else:
        for entry in stale:
            _print_stale(entry)
    if refused := [entry.recommendation for entry in stale if entry.status is None]:
        raise ConflictError(
            f"no job for {', '.join(refused)}",
            hint="`ncclt admin recommendations retire ID` ends a recommendation that cannot be tuned again",
        )


def _print_stale(entry: StaleJob) -> None:
    job = f"{entry.model} on {entry.cluster}, {entry.nodes}x{entry.gpus_per_node}, NCCL {entry.nccl_version}"
    if entry.status is None:
        print_text(f"refused: {job}: {entry.refused}")
    else:
        state = "queued" if entry.is_new else f"already {_format_state(entry.status)}"
        print_text(f"{entry.status.job.id} {state}: {job}: {entry.stale}")


@app.command("list")
@spread
def list_jobs(
    cluster: ClusterFilter = None,
    state: Annotated[JobState | None, Option("State of the jobs.")] = None,
    limit: Limit = 50,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with _open_jobs(server) as jobs:
        statuses = jobs.statuses(cluster=cluster, state=state, limit=limit)
    print_list(
        "jobs",
        statuses,
        [
            Column("id", lambda status: status.job.id),
            Column("state", _format_state),
            Column("cluster", lambda status: status.job.cluster),
            Column("model", lambda status: status.job.model),
            Column("priority", lambda status: status.job.priority, drop=2),
            Column("created", lambda status: status.job.created[:19], drop=1),
            Column("result", lambda s: (s.result.decision or s.result.reason) if s.result else ""),
        ],
        as_json=as_json,
    )


@app.command("show")
def show(id: Id, server: Server = None, as_json: AsJson = False) -> None:
    """Show a job."""
    with _open_jobs(server) as jobs:
        status = jobs.status(id)
    if as_json:
        _print_status(status, as_json=True)
        return
    document = status.to_document()
    request, result = document.pop("job"), document.pop("result") or {}
    labelled = {f"result {key}" if key in request else key: value for key, value in result.items()}
    print_document({**request, **labelled, **document})


@app.command("cancel")
def cancel(id: Id, server: Server = None, as_json: AsJson = False) -> None:
    """Cancel a job; a running one ends after its trial."""
    with _open_jobs(server) as jobs:
        _print_status(jobs.cancel(id), as_json=as_json)


@app.command("retry")
def retry(id: Id, server: Server = None) -> None:
    """Queue an ended job again; its study resumes."""
    with _open_jobs(server) as jobs:
        status = jobs.retry(id) if isinstance(jobs, RemoteJobs) else jobs.retry(id, by="", now=utc_now())[0]
    _print_status(status, as_json=False)


@app.command("logs")
def logs(
    id: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job."""
    number, has_ended = 0, False
    with _open_jobs(server) as jobs:
        while not has_ended:
            has_ended = jobs.status(id).state.ended or not follow
            for event in jobs.written(id, first=number):
                number = event.number + 1
                if as_json:
                    print_json({"number": event.number, "kind": event.kind, **event.data})
                elif event.kind == "log":
                    sys.stdout.write(f"{event.data['line']}\n")
                    sys.stdout.flush()
            if not has_ended:
                time.sleep(1.0)


def _format_state(status: JobStatus) -> str:
    return f"{status.state}, cancelling" if status.cancelling else status.state.value


def _print_status(status: JobStatus, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, **status.to_document()})
        return
    sys.stdout.write(f"{status.job.id}\n")
    say(f"ncclt: job {status.job.id} is {_format_state(status)}")

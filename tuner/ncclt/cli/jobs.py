"""`ncclt admin jobs`: tuning jobs in the queue of a store."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import cluster_names, model_names
from ncclt.cli.configuration import require_one_source, storage_flag, storage_url
from ncclt.cli.options import AsJson, Fields, spread
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.budget import Budget
from ncclt.core.option import Option
from ncclt.core.tuning_job import USUAL_PRIORITY, JobState, JobStatus, StaleJob, TuningJob
from ncclt.errors import ConflictError, UsageError, require_extra
from ncclt.measure.target import Target
from ncclt.pipeline.remote_jobs import RemoteJobs

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


@app.callback()
def jobs() -> None:
    """Queue, list, follow and cancel tuning jobs."""


def _queue(storage: str | None) -> JobQueue:
    """Return the queue of a store; neither is made."""
    require_extra("jobs")
    from ncclt.store import open_to_read
    from ncclt.store.job_queue import JobQueue
    from ncclt.store.location import locate

    open_to_read(storage).close()  # a named store that is not there is an error
    return JobQueue(locate(storage).url)


@app.command("submit")
@spread
def submit(
    *,
    cluster: Annotated[
        str | None, typer.Option(envvar="NCCLT_CLUSTER", help="Name of the cluster.", autocompletion=cluster_names)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the workload, see `ncclt profile list`.", autocompletion=model_names)
    ] = None,
    shape: Annotated[
        Target,
        Fields(
            "nodes gpus_per_node nccl_version",
            {"nccl_version": Option("NCCL version of the job; default: the cluster's.")},
        ),
    ],
    budget: Annotated[Budget, Fields(" ".join(_LIMITS), _LIMITS)],
    priority: Annotated[int, typer.Option(help="Priority, from 1 (first) to 9 (last).")] = USUAL_PRIORITY,
    again: Annotated[bool, typer.Option("--again", help="Measure again if it was tuned already.")] = False,
    stale: Annotated[bool, typer.Option("--stale", help="Queue a job for each stale recommendation.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Queue a tuning job and print its id.

    With --stale, queue a job for each stale recommendation without one, of --cluster or all clusters.
    """
    storage = storage_url()
    from ncclt.store.clock import utc_now

    limits = TuningJob(
        id="",
        cluster="",
        model="",
        trials=budget.trials,
        seconds=budget.seconds,
        gpu_hours=budget.gpu_hours,
        blocks=budget.blocks,
        prove_variables=budget.prove_variables,
        priority=priority,
    )
    if stale:
        if again or model is not None or shape != Target():
            raise UsageError(
                "--stale takes workload and shape from the recommendations",
                hint="leave out --model, --nodes, --gpus-per-node, --nccl-version and --again",
            )
        _print_stale(_submit_stale(limits, cluster or None, server, storage), as_json=as_json)
        return
    if not cluster or not model:
        raise UsageError("--cluster and --model are needed", hint="or --stale, for all stale recommendations")
    job = replace(
        limits,
        cluster=cluster,
        model=model,
        nodes=shape.nodes,
        gpus_per_node=shape.gpus_per_node,
        nccl_version=shape.nccl_version,
    )
    if server:
        _show(_open_remote(server).submit(job, again=again), as_json=as_json)
        return
    require_extra("jobs")
    from ncclt.store import open_store
    from ncclt.store.job_queue import JobQueue, new_job_id, prepare

    with open_store(storage) as store:
        job = store.jobs.check(replace(job, id=new_job_id(), created=utc_now()), again=again)
        prepare(store.url)
        with JobQueue(store.url) as queue:
            status, _ = queue.submit(job)
        if not store.jobs.workers(cluster):
            say(f"ncclt: no worker serves {cluster}; start one there: ncclt admin worker --cluster {cluster}")
    _show(status, as_json=as_json)


def _submit_stale(
    limits: TuningJob, cluster: str | None, server: str | None, storage: str | None
) -> tuple[StaleJob, ...]:
    if server:
        return _open_remote(server).submit_stale(limits, cluster=cluster)
    require_extra("jobs")
    from ncclt.store import open_store
    from ncclt.store.clock import utc_now
    from ncclt.store.job_queue import JobQueue, prepare, submit_stale

    with open_store(storage, makes=False) as store:
        prepare(store.url)
        with JobQueue(store.url) as queue:
            return submit_stale(store, queue, limits, cluster=cluster, now=utc_now())


def _print_stale(found: tuple[StaleJob, ...], *, as_json: bool) -> None:
    """Print the job of each stale recommendation.

    Raises:
        ConflictError: there is one without a job.
    """
    refused = [one for one in found if one.status is None]
    if as_json:
        print_json({"schema": 1, "stale": [one.to_document() for one in found]})
    elif not found:
        print("no stale recommendations")
    else:
        for one in found:
            jobs = f"{one.model} on {one.cluster}, {one.nodes}x{one.gpus_per_node}, NCCL {one.nccl_version}"
            if one.status is None:
                print(f"refused: {jobs}: {one.refused}")
            elif one.is_new:
                print(f"{one.status.job.id} queued: {jobs}: {one.stale}")
            else:
                print(f"{one.status.job.id} already {_state(one.status)}: {jobs}: {one.stale}")
    if refused:
        raise ConflictError(
            f"no job for {', '.join(one.recommendation for one in refused)}",
            hint="`ncclt admin recommendations retire ID` ends a recommendation that cannot be tuned again",
        )


def _open_remote(server: str) -> RemoteJobs:
    require_one_source(server, storage_flag())
    return RemoteJobs(server)


@app.command("list")
def list_jobs(
    cluster: Annotated[str | None, typer.Option(help="Cluster of the jobs.", autocompletion=cluster_names)] = None,
    state: Annotated[JobState | None, typer.Option(help="State of the jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Max jobs.")] = 50,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    if server:
        found = _open_remote(server).statuses(cluster=cluster, state=state, limit=limit)
    else:
        with _queue(storage_url()) as queue:
            found = queue.statuses(cluster=cluster, state=state, limit=limit)
    if as_json:
        print_json({"schema": 1, "jobs": [one.to_document() for one in found]})
        return
    rows = [
        (
            one.job.id,
            _state(one),
            one.job.cluster,
            one.job.model,
            str(one.job.priority),
            one.job.created[:19],
            one.result.decision or one.result.reason if one.result else "",
        )
        for one in found
    ]
    print_table(("id", "state", "cluster", "model", "priority", "created", "result"), rows, numbers=("priority",))


@app.command("show")
def show(id: Id, server: Server = None, as_json: AsJson = False) -> None:
    """Show a job."""
    if server:
        _show(_open_remote(server).status(id), as_json=as_json, whole=True)
        return
    with _queue(storage_url()) as queue:
        _show(queue.status(id), as_json=as_json, whole=True)


@app.command("cancel")
def cancel(id: Id, server: Server = None, as_json: AsJson = False) -> None:
    """Cancel a job; a running one ends after its trial."""
    if server:
        _show(_open_remote(server).cancel(id), as_json=as_json)
        return
    with _queue(storage_url()) as queue:
        _show(queue.cancel(id), as_json=as_json)


@app.command("retry")
def retry(id: Id, server: Server = None) -> None:
    """Queue an ended job again; its study resumes."""
    if server:
        _show(_open_remote(server).retry(id), as_json=False)
        return
    from ncclt.store.clock import utc_now

    with _queue(storage_url()) as queue:
        _show(queue.retry(id, by="", now=utc_now())[0], as_json=False)


@app.command("logs")
def logs(
    id: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job."""
    if server:
        _print_events(_open_remote(server), id, follow=follow, as_json=as_json)
        return
    with _queue(storage_url()) as queue:
        _print_events(queue, id, follow=follow, as_json=as_json)


def _print_events(jobs: JobQueue | RemoteJobs, id: str, *, follow: bool, as_json: bool) -> None:
    number = 0
    while True:
        ended = jobs.status(id).state.ended
        for event in jobs.written(id, first=number):
            number = event.number + 1
            if as_json:
                print_json({"number": event.number, "kind": event.kind, **event.data})
            elif event.kind == "log":
                sys.stdout.write(f"{event.data['line']}\n")
                sys.stdout.flush()
        if ended or not follow:
            return
        time.sleep(1.0)


def _state(status: JobStatus) -> str:
    return f"{status.state}, cancelling" if status.cancelling else status.state.value


def _show(status: JobStatus, *, as_json: bool, whole: bool = False) -> None:
    if as_json:
        print_json({"schema": 1, **status.to_document()})
        return
    if not whole:
        sys.stdout.write(f"{status.job.id}\n")
        say(f"ncclt: job {status.job.id} is {_state(status)}")
        return
    document: dict[str, Any] = status.to_document()
    request: dict[str, Any] = document.pop("job")
    result = {
        f"result {key}" if key in request else key: value for key, value in (document.pop("result") or {}).items()
    }
    for key, value in {**request, **result, **document}.items():
        if value not in (None, "", "schema"):
            print(f"{key}: {value}")

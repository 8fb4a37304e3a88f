"""`ncclt admin worker`: runs the tuning jobs of a cluster."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import report
from ncclt.cli.options import spread
from ncclt.cli.render import say
from ncclt.core.option import Option
from ncclt.errors import NccltError, UsageError, require_extra
from ncclt.measure.target import Target
from ncclt.store import open_store

_MOST_AT_ONCE = 1000

app = typer.Typer()


@app.command(context_settings={"allow_interspersed_args": False})
@spread
def worker(
    cluster: Annotated[str, Option("Name of the cluster.", envvar="NCCLT_CLUSTER")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: options of `ncclt tune` for every job.")
    ] = None,
    at_once: Annotated[int, Option("Max jobs of the cluster at once, over all workers.")] = 1,
) -> None:
    """Run the tuning jobs of a cluster.

    Start it where `ncclt tune` would be started: on a login node, in an allocation, or in a pod. Several workers may
    serve one cluster; if one dies, another takes over its jobs. On SIGTERM or Ctrl-C it finishes the running trial
    and gives its jobs back; the second time it kills the trial.
    """
    require_extra("jobs")
    require_extra("tune")
    from ncclt.cli.tune import app as tune
    from ncclt.pipeline.job_worker import JobWorker

    if not 1 <= at_once <= _MOST_AT_ONCE:
        raise UsageError(f"--at-once must be 1 to {_MOST_AT_ONCE}, not {at_once}")
    # Refuse what every job would fail with: what `ncclt tune` does not take, and a store, which is this worker's.
    words = ["--model", "any", *(arguments or ())]
    options = typer.main.get_command(tune).make_context("ncclt tune", words).params
    Target(launcher=options["launcher"] or "", benchmark=options["benchmark"]).require_known_names()
    with open_store(storage_url()) as store:
        store.clusters.get(cluster)
        serving = JobWorker(store, cluster=cluster, at_once=at_once, arguments=tuple(arguments or ()), say=say)

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            if serving.stop.is_set():
                serving.hurry.set()
            serving.stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        code = 0
        try:
            serving.serve()
        except NccltError as error:
            code = report(error)
    sys.stderr.flush()
    # Threads of the queue still wait for what was given back.
    os._exit(code)

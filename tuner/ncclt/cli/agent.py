"""`ncclt agent`: keep a file up to date with what a server recommends for one kind of job."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.completion import cluster_names, model_names
from ncclt.cli.configuration import lookup
from ncclt.cli.job_request import with_allowed
from ncclt.cli.output import say
from ncclt.core.option import Group
from ncclt.errors import UsageError

app = typer.Typer()


@app.command()
def agent(
    render: Annotated[Path, typer.Option(metavar="FILE", help="The file that is kept up to date.")],
    model: Annotated[str, typer.Option(help="Name of the workload.", autocompletion=model_names)],
    nodes: Annotated[int, typer.Option(help="Nodes of the jobs.", min=1)],
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.", min=1)],
    nccl_version: Annotated[str, typer.Option(help="NCCL that the jobs load.")],
    cluster: Annotated[
        str | None, typer.Option(help="Name of the cluster.", envvar="NCCLT_CLUSTER", autocompletion=cluster_names)
    ] = None,
    server: Annotated[str | None, typer.Option(help="ncclt server to fetch from.", envvar="NCCLT_SERVER")] = None,
    format: Annotated[str, typer.Option(help="nccl-conf, dotenv or export.")] = "nccl-conf",
    allow: Annotated[
        list[str] | None, typer.Option(help="Also accept a `recorded` or `simulated` result; repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the server.", min=0.1)] = 5.0,
    once: Annotated[
        bool, typer.Option("--once", help="Write the file once, and end.", rich_help_panel=Group.OUTPUT)
    ] = (False),
) -> None:
    """Keep a file up to date with what a server recommends for one kind of job.

    The file is replaced whole within a second of a change at the server, until SIGTERM or SIGINT. Once nothing fits any
    more, for example because what was published is stale, it sets nothing. While the server is away it stays as it is.

    Run one agent for each file, on a file system that all nodes of a job share. With a file per node, a job that starts
    during a change would get different settings on its ranks, and hang. A file that no agent wrote is left alone.
    """
    from ncclt.cli.env import write_whole
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.core.recommendation import Request
    from ncclt.deliver.agent import FORMATS, keep_up_to_date, require_own

    if format not in FORMATS:
        raise UsageError(f"an agent cannot keep the format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    where, cluster = server or lookup("server").value, cluster or lookup("cluster").value
    if not where:
        raise UsageError("an agent needs a server", hint="--server URL, or NCCLT_SERVER")
    if not cluster:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER, or `cluster` in ncclt.toml")
    require_own(render)
    request = Request(
        cluster=cluster,
        model=model,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nccl_version=str(NcclVersion.parse(nccl_version)),
    )
    request = with_allowed(request, allow)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def write(text: str) -> None:
        if render.exists() and render.read_text(encoding="utf-8") == text:
            return
        write_whole(render, text, option="--render")
        say(f"ncclt: {render} is written")

    try:
        keep_up_to_date(request, where, format=format, timeout_s=timeout, write=write, say=say, once=once)
    except KeyboardInterrupt:
        raise typer.Exit from None

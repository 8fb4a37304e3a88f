"""From a login node: the whole study as one batch job of Slurm, which runs the same command line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.output import say
from ncclt.errors import UsageError, hide_passwords

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.measure.testbed import LauncherChoice
    from ncclt.store import Store

SbatchArg = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch-arg",
        help="Option passed to sbatch unchanged, such as --partition=gpu; repeatable. The job asks for whole nodes "
        "(--exclusive), for studies that share nodes measure each other; --oversubscribe here asks for none.",
    ),
]
TimeLimit = Annotated[
    str | None, typer.Option(help="Time limit of the submitted job, in Slurm's form; default: the partition's.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Submit the job and exit without following it.")]


def is_login_node(choice: LauncherChoice) -> bool:
    """Tell whether trials are to run under Slurm, and this is not in an allocation."""
    return choice.name == "slurm" and not os.environ.get("SLURM_JOB_ID")


def submit_study(
    cluster: Cluster,
    store: Store,
    *,
    on_gpus: bool,
    parallel: int,
    sbatch_args: tuple[str, ...],
    time_limit: str | None,
    wait: bool,
    dry_run: bool,
) -> int:
    """Submit this very command line as one job and follow it; return the job's exit code.

    Args:
        cluster: sized to one trial.
        store: the job must see it too.
        on_gpus: ask Slurm for GPUs.
        parallel: trials at once; the job gets so many times the nodes.
        sbatch_args: for sbatch.
        time_limit: of the job.
        wait: follow the job until it ends.
        dry_run: print the script instead.

    Raises:
        UsageError: sbatch is not here or refuses, or the nodes would not see the store.
    """
    from ncclt.launch.launcher import JobShape
    from ncclt.launch.slurm.sbatch import BatchRequest, node_local_folder, plan_batch, submit_and_follow

    if store.path is not None and (why := node_local_folder(store.path)):
        if not dry_run and "NCCLT_STORE_IS_SHARED" not in os.environ:
            raise UsageError(
                f"the job would keep its trials where they cannot be found again: {why}",
                hint="name a store that all nodes see with --storage, or set NCCLT_STORE_IS_SHARED=1 if they see this",
            )
        say(f"ncclt: note: {why}")
    words = [word for word in sys.argv[1:] if word != "--dry-run"]
    if store.path is None:
        words = _storage_by_environment(words)
    request = BatchRequest(
        command=(sys.executable, "-m", "ncclt", *words),
        shape=JobShape(nodes=cluster.nodes * parallel, processes_per_node=cluster.gpus_per_node),
        gpus_per_node=cluster.gpus_per_node if on_gpus and not _asks_for_gpus(sbatch_args) else None,
        time_limit=time_limit,
        job_name="ncclt-tune",
        folder=Path.cwd(),
        extra=sbatch_args,
    )
    if dry_run:
        plan = plan_batch(request)
        print(f"# {' '.join(plan.argv)}\n{plan.script}", end="")
        return 0
    # The job outlives a login shell that ends; whoever ends this program is told so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    return submit_and_follow(request, wait=wait, show=sys.stdout.write, say=sys.stderr.write)


def _storage_by_environment(words: list[str]) -> list[str]:
    """Leave out --storage where its URL holds a password, and hand it on as a variable.

    Slurm shows the script of a job, and every user the command lines of a node; the job gets our environment.
    """
    left = []
    following = iter(words)
    for word in following:
        name, equals, url = word.partition("=")
        if name != "--storage" or hide_passwords(url := url if equals else next(following, "")) == url:
            left += [word] if equals or name != "--storage" else [word, url]
        else:
            os.environ["NCCLT_STORAGE"] = url
    return left


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _asks_for_gpus(sbatch_args: tuple[str, ...]) -> bool:
    return any(argument.startswith(("--gpus", "--gres")) for argument in sbatch_args)

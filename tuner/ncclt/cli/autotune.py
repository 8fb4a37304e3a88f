"""`ncclt autotune`: from a job to a result, in stages that are commands of their own.

It has a name of its own, and is no option of `tune`, because it starts the user's job, which `tune` never does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Fields, Quiet, spread
from ncclt.core.budget import Budget
from ncclt.core.option import Group, Option
from ncclt.core.rollout import MAX_COST
from ncclt.errors import UsageError, require_extra
from ncclt.measure.target import Target
from ncclt.prove.comparison import Comparison

app = typer.Typer()

_OF_TARGET = "cluster nodes gpus_per_node launcher launcher_option backend nccl_tests hosts"
"""Options of `ncclt tune` that a first run needs; `--dry-run` prints the stages as commands, which take all others."""

_OF_BOTH = {
    "warmup": Option("Warm-up steps before the measured ones.", group=Group.LAUNCH),
    "timeout_s": Option("Max seconds of a launch.", flag="--timeout", group=Group.LAUNCH),
}
"""Options of a comparison that the recording has too."""


@app.command(context_settings={"allow_interspersed_args": False})
@spread
def autotune(
    command: Annotated[
        list[str] | None, typer.Argument(help="Command of the training, such as: torchrun ... train.py; or --model.")
    ] = None,
    model: Annotated[str | None, Option("Name of a stored workload instead of a recording.")] = None,
    *,
    target: Annotated[Target, Fields(_OF_TARGET)],
    budget: Annotated[Budget, Fields("trials seconds blocks min_effect process_wide")],
    how: Annotated[Comparison, Fields("warmup timeout_s directory", _OF_BOTH)],
    window: Annotated[int | None, Option("Steps to record and to time; default: 20 and 30.", least=1)] = None,
    force: Annotated[bool, Option("Continue with too little to gain or doctor errors.")] = False,
    live: Annotated[bool, Option("Tune inside the running job (experimental).")] = False,
    max_cost: Annotated[float, Option("Max cost of --live, as a share of the job's time.")] = MAX_COST,
    dry_run: Annotated[bool, Option("Print the stages; run and store nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Record a job, tune its messages and A/B-test its step times.

    Records the first steps of the job (`ncclt profile record`), tunes its messages (`ncclt tune`), and, if a policy
    wins, A/B-tests the step times of the job itself (`ncclt verify`). Stops early if tuning cannot save enough. The
    job needs no change. Ctrl-C stops; the same command resumes.

    With --live the job runs once, and its ranks switch settings between blocks of steps (experimental).
    """
    argv, how = tuple(command or ()), replace(how, min_effect=budget.min_effect)
    max_blocks = how.blocks if budget.blocks == Budget().blocks else budget.blocks
    if live:
        if not argv or dry_run:
            raise UsageError(
                "--live needs a command after --, and cannot be combined with --dry-run",
                hint="for example: ncclt autotune --live -- torchrun --nproc-per-node=8 train.py",
            )
        from ncclt.cli.autotune_live import run_live

        raise typer.Exit(
            run_live(argv, target, how, storage=storage_url(), model=model, max_cost=max_cost, as_json=as_json)
        )
    require_extra("tune")
    if not argv and not model:
        raise UsageError(
            "give the command of a job after --, or --model NAME",
            hint="for example: ncclt autotune -- torchrun --nproc-per-node=8 train.py",
        )
    from ncclt.cli.autotune_stages import Autotune

    Autotune(
        argv=argv,
        name=model or "",
        window=window,
        target=target,
        budget=budget,
        how=replace(how, blocks=max_blocks, steps=window or how.steps),
        force=force,
        hidden=quiet or as_json,
        as_json=as_json,
    ).start(storage_url(), dry_run=dry_run)

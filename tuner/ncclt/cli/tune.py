"""`ncclt tune`: from a workload and a cluster to a proven policy."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.edge import EXIT_INTERRUPTED, StopWish, print_json, say
from ncclt.cli.options import AsJson, Quiet, Storage, storage_option
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.runners import Ground, LauncherChoice
    from ncclt.store import Store
    from ncclt.tune import TuneRequest

app = typer.Typer()

DEFAULT_CLUSTER = "leonardo"
"""The cluster of the paper that ncclt grew from; meant only where trials are simulated."""


@app.command()
def tune(
    model: Annotated[str | None, typer.Option(help="Name of the workload, see `ncclt profile list`.")] = None,
    profile: Annotated[str | None, typer.Option(help="The same as --model, for an imported one.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            envvar="NCCLT_CLUSTER",
            help="Name of the cluster, see `ncclt cluster list`. "
            f"Simulated, {DEFAULT_CLUSTER} is meant when it is left out; a landscape brings its own.",
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the job.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node of the job.")] = None,
    nccl_version: Annotated[str | None, typer.Option(help="NCCL that the job loads, when not the cluster's.")] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            envvar="NCCLT_LAUNCHER",
            help="Where trials run: simulate, replay or local. Left out: local where "
            "GPUs are visible, else simulate; it says which and why.",
        ),
    ] = None,
    landscape: Annotated[
        Path | None, typer.Option(help="CSV of recorded measurements to replay instead of launching.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Take only rows of the landscape with COLUMN=VALUE (patterns with * allowed); repeatable."),
    ] = None,
    nccl_tests: Annotated[
        Path | None, typer.Option(help="Folder of the nccl-tests programs for --launcher local; left out: PATH.")
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            help="Launches of the search at most, earlier runs of the study included. Confirmation and "
            "proof come on top."
        ),
    ] = 40,
    seconds: Annotated[float | None, typer.Option("--time", help="Seconds of search at most in this run.")] = None,
    patience: Annotated[
        int, typer.Option(help="Launches without a gain after which the search stops by itself; 0 = never.")
    ] = 16,
    blocks: Annotated[int, typer.Option(help="A B B A blocks of the proof, four launches or more each.")] = 6,
    min_effect: Annotated[float, typer.Option(help="Smallest gain worth a change, as a share.")] = 0.02,
    process_wide: Annotated[
        str, typer.Option(help="Process-wide NCCL parameters to search, with commas; none = leave them alone.")
    ] = "BUFFSIZE",
    seed: Annotated[int, typer.Option(help="The same seed gives the same study.")] = 0,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; the same name resumes. Left out: made from what is tuned.")
    ] = None,
    storage: Storage = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be tried and launched; run and store nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search the NCCL configuration that moves a workload's messages fastest on a cluster, and prove it.

    The default is measured first; then settings are tried, each launch measuring all messages; the best ones are
    launched again; and the resulting policy is measured in turn with the untouched default (A B B A ...). Ctrl-C
    finishes the running trial and saves; the same command resumes.
    """
    from ncclt.runners import choose_launcher, gpus_visible, require_tune_extra

    require_tune_extra()
    import os

    from ncclt.search.loop import Budget
    from ncclt.store import open_store
    from ncclt.tune import TuneRequest
    from ncclt.tune import tune as run

    name = _workload_name(model, profile)
    choice = choose_launcher(launcher, landscape=landscape is not None, environ=os.environ, gpus_visible=gpus_visible)
    if choice.name == "replay" and landscape is None:
        raise UsageError("--launcher replay needs --landscape FILE.csv")
    if where and landscape is None:
        raise UsageError("--where goes with --landscape")
    # Whatever can be refused is refused here, before anything is created.
    budget = Budget(trials=trials, seconds=seconds, patience=patience)
    with open_store(storage) as store:
        workload = store.workload(name)
        request = TuneRequest(
            workload=workload,
            name=study,
            budget=budget,
            blocks=blocks,
            min_effect=min_effect,
            seed=seed,
            process_wide=_names(process_wide),
        )
        ground = _ground(
            choice, store, workload, cluster=cluster, nodes=nodes, gpus_per_node=gpus_per_node,
            nccl_version=nccl_version, landscape=landscape, where=where or [], nccl_tests=nccl_tests, seed=seed,
        )  # fmt: skip
        if dry_run:
            _print_plan(request, ground, as_json=as_json)
            return
        from ncclt.cli.tune_view import TuneView, print_result, result_document

        with StopWish() as stop, TuneView(ground, hidden=quiet or as_json) as view:
            try:
                result = run(
                    request,
                    ground,
                    store,
                    watcher=view,
                    interrupted=stop,
                    clock=time.monotonic,
                    now=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
                )
            except KeyboardInterrupt:
                say("ncclt: killed; every completed trial is saved, the same command goes on")
                raise typer.Exit(EXIT_INTERRUPTED) from None
        if as_json:
            print_json(result_document(result))
        else:
            option = storage_option(storage, store.shown)
            print_result(result, ground, store, storage_option=option, quiet=quiet)
        if result.recommendation is None:
            raise typer.Exit(EXIT_INTERRUPTED)


def _workload_name(model: str | None, profile: str | None) -> str:
    if (model is None) == (profile is None):
        raise UsageError("give --model NAME (or --profile NAME)", hint="`ncclt profile list` shows the names")
    return model or profile or ""


def _names(process_wide: str) -> tuple[str, ...]:
    names = [n.strip().upper().removeprefix("NCCL_") for n in process_wide.split(",") if n.strip()]
    return () if names == ["NONE"] else tuple(sorted(set(names)))


def _ground(
    choice: LauncherChoice,
    store: Store,
    workload: Workload,
    *,
    cluster: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    nccl_version: str | None,
    landscape: Path | None,
    where: list[str],
    nccl_tests: Path | None,
    seed: int,
) -> Ground:
    from ncclt.runners import local_ground, replayed_ground, simulated_ground

    if landscape is not None:
        if cluster or nodes or gpus_per_node or nccl_version:
            raise UsageError(
                "a landscape brings its own cluster: --cluster, --nodes, --gpus-per-node and --nccl-version do not fit",
                hint="choose its rows by --where COLUMN=VALUE",
            )
        return replayed_ground(landscape, _conditions(where), seed=seed, reason=choice.reason)
    if cluster is None and choice.name != "simulate":
        raise UsageError("--cluster is needed to say what is measured", hint="see `ncclt cluster list`")
    chosen: Cluster = store.cluster(cluster or DEFAULT_CLUSTER).sized(
        nodes=nodes, gpus_per_node=gpus_per_node, nccl_version=nccl_version
    )
    if choice.name == "simulate":
        return simulated_ground(chosen, seed=seed, reason=choice.reason)
    return local_ground(chosen, workload.collectives, benchmark_folder=nccl_tests, reason=choice.reason)


def _conditions(where: list[str]) -> dict[str, str]:
    conditions: dict[str, str] = {}
    for text in where:
        column, equals, value = text.partition("=")
        if not equals or not column.strip():
            raise UsageError(f"--where {text!r} is no COLUMN=VALUE", hint="for example --where gpus=4")
        conditions[column.strip()] = value.strip()
    return conditions


def _print_plan(request: TuneRequest, ground: Ground, *, as_json: bool) -> None:
    """Show what `tune` would do: nothing is measured and nothing stored."""
    from ncclt.cli.tune_view import plan_document
    from ncclt.tune import study_of

    workload, notes = ground.cut(request.workload)
    document = plan_document(
        study_of(request, ground, workload), ground, ground.space(workload, request.process_wide), request, notes
    )
    if as_json:
        print_json(document)
        return
    for key, value in document.items():
        if isinstance(value, list):
            print(f"{key}:")
            for item in value:
                print(f"  {item}")
        else:
            print(f"{key}: {value}")

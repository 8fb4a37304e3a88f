"""`ncclt tune`: from a workload and a cluster to a proven policy."""

from __future__ import annotations

import os
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.options import AsJson, Quiet, Storage, storage_option
from ncclt.cli.output import EXIT_INTERRUPTED, StopWish, print_json, say
from ncclt.cli.submit import NoWait, SbatchArg, TimeLimit, is_login_node, submit_study
from ncclt.cli.testbed import (
    Backend,
    BenchmarkName,
    Beside,
    ClusterName,
    Container,
    GpusPerNode,
    HostFile,
    Hosts,
    KeepEnv,
    Kubernetes,
    Landscape,
    LauncherArg,
    LauncherName,
    MaxCommands,
    Namespace,
    NcclTestsFolder,
    NcclVersionName,
    Nodes,
    Parallel,
    Persistent,
    Python,
    Scratch,
    SshOption,
    TestbedOptions,
    Through,
    Where,
    open_testbed,
)
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline import TuneRequest

app = typer.Typer()


@app.command()
def tune(
    model: Annotated[str | None, typer.Option(help="Name of the workload, see `ncclt profile list`.")] = None,
    profile: Annotated[str | None, typer.Option(help="Same as --model.")] = None,
    cluster: ClusterName = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    nccl_version: NcclVersionName = None,
    launcher: LauncherName = None,
    landscape: Landscape = None,
    where: Where = None,
    benchmark: BenchmarkName = None,
    backend: Backend = "nccl",
    nccl_tests: NcclTestsFolder = None,
    max_commands: MaxCommands = None,
    beside: Beside = None,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    parallel: Parallel = 1,
    python: Python = sys.executable,
    container: Container = None,
    namespace: Namespace = None,
    kubernetes: Kubernetes = None,
    launcher_arg: LauncherArg = None,
    ssh_option: SshOption = None,
    scratch: Scratch = None,
    keep_env: KeepEnv = False,
    persistent: Persistent = False,
    through: Through = None,
    sbatch_arg: SbatchArg = None,
    time_limit: TimeLimit = None,
    no_wait: NoWait = False,
    trials: Annotated[
        int,
        typer.Option(
            help="Launches of the search at most, earlier runs of the study included. Confirmation and "
            "proof come on top."
        ),
    ] = 40,
    seconds: Annotated[float | None, typer.Option("--time", help="Seconds of search at most in this run.")] = None,
    gpu_hours: Annotated[
        float | None, typer.Option(help="GPU hours of the whole study after which the search stops.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Training steps that will run with the result; a launch must be expected to pay for itself."),
    ] = None,
    patience: Annotated[
        int, typer.Option(help="Launches without a gain after which the search stops by itself; 0 = never.")
    ] = 16,
    blocks: Annotated[
        int,
        typer.Option(help="A B B A blocks of the proof at most, four launches or more each; it ends when decided."),
    ] = 16,
    min_effect: Annotated[float, typer.Option(help="Smallest gain worth a change, as a share.")] = 0.02,
    process_wide: Annotated[
        str, typer.Option(help="Process-wide NCCL parameters to search, comma-separated; none = leave them alone.")
    ] = "BUFFSIZE",
    seed: Annotated[int, typer.Option(help="The same seed gives the same study.")] = 0,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Sampler of Optuna or OptunaHub that chooses the settings, e.g. optuna.samplers:TPESampler. Default: "
            "ncclt's own.",
        ),
    ] = "",
    study: Annotated[
        str | None, typer.Option(help="Name of the study; the same name resumes. Default: derived from what is tuned.")
    ] = None,
    more: Annotated[
        int | None,
        typer.Option(
            "--continue",
            metavar="N",
            min=1,
            help="Add N launches of the search to a finished study, and prove it again. Without it a finished study "
            "prints its result and launches nothing.",
        ),
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm/--no-warm", help="Try early what was best in the nearest stored studies.")
    ] = True,
    init_log: Annotated[
        Path | None,
        typer.Option(
            help="Log of any job of this shape, run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING: the search "
            "begins from NCCL's own cost table instead of an estimate. It is kept with the study."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Tune even if `ncclt doctor` finds errors on this machine.")
    ] = False,
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
    finishes the running trial and saves; the same command resumes (leave out --continue, or its launches are added
    again). A finished study prints its result again and launches nothing. Several processes may run the
    same command at once: they share the study. Outside of a Slurm allocation, --launcher slurm submits the whole study
    as one job.
    """
    from ncclt.measure.testbed import require_tune_extra

    require_tune_extra()
    from ncclt.measure.launched_testbed import check_benchmark
    from ncclt.pipeline import TuneRequest
    from ncclt.pipeline import tune as run
    from ncclt.search.loop import Budget
    from ncclt.store import open_store, open_to_read

    costs = None
    if init_log is not None:
        from ncclt.health.doctor.files import printed_costs_of_file

        costs = printed_costs_of_file(init_log)
    name = _workload_name(model, profile)
    options = TestbedOptions(
        cluster=cluster, nodes=nodes, gpus_per_node=gpus_per_node, nccl_version=nccl_version, launcher=launcher,
        landscape=landscape, where=tuple(where or ()), benchmark=benchmark, backend=backend, nccl_tests=nccl_tests,
        max_commands=max_commands, beside=beside, hosts=hosts, hostfile=hostfile, parallel=parallel, python=python,
        container=container, namespace=namespace, kubernetes=tuple(kubernetes or ()),
        launcher_arg=tuple(launcher_arg or ()), ssh_option=tuple(ssh_option or ()), scratch=scratch, keep_env=keep_env,
        persistent=persistent, through=through,
    )  # fmt: skip
    choice = options.choice()
    # Whatever can be refused is refused here, before anything is created.
    budget = Budget(trials=trials, seconds=seconds, gpu_hours=gpu_hours, patience=patience, steps=steps)
    with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as store:
        workload = store.workload(name)
        request = TuneRequest(
            workload=workload,
            name=study,
            budget=budget,
            blocks=blocks,
            min_effect=min_effect,
            seed=seed,
            sampler=sampler,
            process_wide=_names(process_wide),
            warm=warm,
            printed_costs=costs,
            more=more or 0,
        )
        if (sbatch_arg or time_limit or no_wait) and choice.name != "slurm":
            raise UsageError("--sbatch-arg, --time-limit and --no-wait need --launcher slurm")
        if is_login_node(choice):
            chosen = options.chosen_cluster(choice, store)
            # What the job would refuse in its queue is refused here.
            if costs is not None:
                costs.require(chosen)
            check_benchmark(chosen, options.place(choice))
            code = submit_study(
                chosen, store, on_gpus=backend != "gloo", parallel=parallel, time_limit=time_limit, wait=not no_wait,
                sbatch_args=tuple(sbatch_arg or ()), dry_run=dry_run,
            )  # fmt: skip
            raise typer.Exit(code)
        testbed = open_testbed(options, choice, store, workload, seed=seed, ask=not dry_run)
        if dry_run:
            _print_plan(request, testbed, as_json=as_json)
            return
        if testbed.is_launched:
            _examine(testbed.runner.cluster, force=force)
        from ncclt.cli.tune_view import TuneView, print_result, result_document

        with StopWish() as stop, TuneView(testbed, hidden=quiet or as_json) as view:
            try:
                result = run(
                    request,
                    testbed,
                    store,
                    watcher=view,
                    interrupted=stop,
                    clock=time.monotonic,
                    now=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
                )
            except KeyboardInterrupt:
                say("ncclt: killed; every completed trial is saved, run the same command to resume")
                raise typer.Exit(EXIT_INTERRUPTED) from None
        if as_json:
            print_json(result_document(result))
        else:
            option = storage_option(storage, store.shown)
            print_result(result, testbed, store, storage_option=option, quiet=quiet)
        if result.recommendation is None and not result.left:
            raise typer.Exit(stop.exit_code)


def _examine(cluster: Cluster, *, force: bool) -> None:
    """Look at this machine before anything is measured on it, and stop where something is broken.

    Raises:
        UsageError: there is a finding of severity error.
    """
    from ncclt.health.doctor.service import examine_here

    diagnosis = examine_here(os.environ, cluster=cluster)
    for finding in diagnosis.blocking:
        say(f"ncclt: doctor: {finding.id}: {finding.what}")
    if diagnosis.blocking and not force:
        raise UsageError(
            f"{len(diagnosis.blocking)} findings of `ncclt doctor` would invalidate every measurement here",
            hint="`ncclt doctor` says why and how to repair it; --force tunes anyway",
        )


def _workload_name(model: str | None, profile: str | None) -> str:
    if (model is None) == (profile is None):
        raise UsageError("give --model NAME (or --profile NAME)", hint="`ncclt profile list` shows the names")
    return model or profile or ""


def _names(process_wide: str) -> tuple[str, ...]:
    names = [n.strip().upper().removeprefix("NCCL_") for n in process_wide.split(",") if n.strip()]
    return () if names == ["NONE"] else tuple(sorted(set(names)))


def _print_plan(request: TuneRequest, testbed: Testbed, *, as_json: bool) -> None:
    """Show what `tune` would do: nothing is measured and nothing stored."""
    from ncclt.cli.tune_view import plan_document
    from ncclt.pipeline import study_of
    from ncclt.search.space import space_of

    workload, notes = testbed.cut(request.workload)
    space = space_of(testbed, workload, request.process_wide)
    document = plan_document(study_of(request, testbed, workload), testbed, space, request, notes)
    if as_json:
        print_json(document)
        return
    launches = document.pop("launches", [])
    for key, value in document.items():
        if isinstance(value, list):
            print(f"{key}:")
            for item in value:
                print(f"  {item}")
        else:
            print(f"{key}: {value}")
    for launch in launches:
        print(f"launch of {launch['setting']}, at most {launch['timeout_s']:.0f} s:")
        for name in launch["unset_env"]:
            print(f"  unset {name}")
        for name, value in launch["set_env"].items():
            print(f"  {name}={shlex.quote(value)}")
        print(f"  {shlex.join(launch['argv'])}")
        for name, text in launch["files"].items():
            print(f"  file {name}:")
            print("".join(f"    {line}\n" for line in text.splitlines()), end="")

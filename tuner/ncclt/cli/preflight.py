"""`ncclt preflight`: the health of a fabric before a job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.options import AsJson, Quiet, storage_url
from ncclt.cli.output import EXIT_INTERRUPTED, interruptible, print_json, say
from ncclt.cli.spread import Fields, spread
from ncclt.core.budget import MOST_SECONDS
from ncclt.core.option import Group, Option
from ncclt.errors import MissingDependencyError, StoreError, UsageError
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.preflight import Preflight
    from ncclt.health.preflight.checkup import PreflightRequest
    from ncclt.health.preflight.probes import RunnerFor
    from ncclt.store import Store

app = typer.Typer()

_EARLIER = 100
"""Preflights of a cluster that are looked through for a baseline."""


@app.command(
    epilog="Exit codes: 0 = healthy, 4 = degraded, 1 = could not measure, 2 = wrong options, 69 = no store, "
    "75 = the allocation is gone, 130 = interrupted. docs/cluster-admin/preflight.md shows it in a Slurm prolog."
)
@spread
def preflight(
    target: Annotated[
        Target,
        Fields(
            "cluster nodes gpus_per_node nccl_version launcher hosts hostfile benchmark backend nccl_tests python "
            "launcher_option launcher_arg scratch keep_env sizes expect tolerance quick full all_pairs parallel",
            {
                "cluster": Option(
                    "Name of the cluster, see `ncclt cluster list`; default: this machine.",
                    envvar="NCCLT_CLUSTER",
                ),
                "launcher": Option(
                    "local, torchrun, mpirun, slurm, ssh, kubernetes or simulate.",
                    envvar="NCCLT_LAUNCHER",
                ),
                "parallel": Option("Launches to run at once, each on its own nodes.", group=Group.BUDGET),
            },
        ),
    ],
    sizes: Annotated[
        str | None,
        typer.Option(rich_help_panel=Group.PROOF, help="Comma-separated sizes, such as 64,1M,1G."),
    ] = None,
    expect: Annotated[
        float | None,
        typer.Option(
            help="Expected bus bandwidth, GB/s; default: as in healthy runs, or of the links.",
            rich_help_panel=Group.PROOF,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(rich_help_panel=Group.PROOF, help="Max shortfall, as a share."),
    ] = 0.15,
    quick: Annotated[bool, typer.Option("--quick", help="Measure all nodes together once only.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Measure pairs and single nodes even if all together are fine.")
    ] = False,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Measure every pair of nodes instead of bisecting.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--time", rich_help_panel=Group.BUDGET, help="Max seconds of the run and of each launch."),
    ] = None,
    weak: Annotated[
        list[str] | None,
        typer.Option(
            help="Simulated fault: n03=0.6, n03+n04=0.5, n03:2=0.7 or n03=hang; repeatable.",
            rich_help_panel=Group.PROOF,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(rich_help_panel=Group.PROOF, help="Random seed of a simulation.")] = 0,
    history: Annotated[bool, typer.Option("--history", help="List earlier preflights and exit.")] = False,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Keep the result, for later runs to compare with.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the launches and their duration; run nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure all_reduce on all nodes and find slow ones.

    Measures all nodes together first. If they are slow, it bisects nodes, pairs and GPUs, and measures each suspect
    three times before naming it.
    """
    storage = storage_url()
    from ncclt.cli.preflight_view import EXIT_CODES, print_history, print_plan, print_preflight, watcher
    from ncclt.health.preflight.checkup import PreflightRequest, cost
    from ncclt.health.preflight.checkup import preflight as run
    from ncclt.health.preflight.expectation import expectation
    from ncclt.health.preflight.probes import Probes

    if history:
        from ncclt.store import open_to_read

        with open_to_read(storage) as opened:
            print_history(opened.records.preflights(cluster=target.cluster), as_json=as_json)
        return
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--time must be above 0 and at most {MOST_SECONDS:,} seconds, not {seconds:g}")
    if target.is_replayed:
        raise UsageError("recorded tables know no nodes", hint="--launcher simulate --weak n03=0.6 simulates a fault")
    target = target.resolved(os.environ, for_nodes=True)
    simulated = target.is_simulated
    if weak and not simulated:
        raise UsageError("--weak needs --launcher simulate")
    where, earlier = _known(target, storage, keep=store, writes=store and not dry_run)
    names = _hosts(target, where, dry_run=dry_run)
    where = where.sized(nodes=len(names))
    wanted = _sizes(sizes)
    word = "simulated" if simulated else target.benchmark_name
    expected = expectation(
        where, wanted, tolerance=tolerance, given_gbps=expect, earlier=earlier, benchmark=word, simulated=simulated
    )

    def request(notes: tuple[str, ...]) -> PreflightRequest:
        return PreflightRequest(
            cluster=where,
            hosts=names,
            expectation=expected,
            sizes=wanted,
            tolerance=tolerance,
            launcher=target.launcher,
            benchmark=word,
            quick=quick,
            full=full,
            all_pairs=all_pairs,
            notes=notes,
        )

    if dry_run:
        planned = request(())
        launches = _first_launch(target, planned, time_s=seconds)
        print_plan(
            planned, cost(planned, simulated=simulated), target.parallel, launches, simulated=simulated, as_json=as_json
        )
        return
    request(())  # refused before anything is launched
    runner_for, notes = _runners(target, where, names, weak or [], seed=seed, time_s=seconds)
    hidden = quiet or as_json
    if not hidden:
        mark = " (SIMULATED)" if simulated else ""
        say(f"ncclt: launches run on: {target.launcher}{mark}, {target.reason}")
    from ncclt.store.clock import utc_now

    with interruptible():
        probes = Probes(
            runner_for,
            expected,
            simulated=simulated,
            at_once=target.parallel,
            time_s=seconds,
            clock=time.monotonic,
            watch=watcher(hidden=hidden),
        )
        try:
            result = run(request(notes), probes, now=utc_now, clock=time.monotonic)
        except KeyboardInterrupt:
            say("ncclt: interrupted: the running launch was ended, nothing was stored")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        print_json(result.to_document())
    else:
        print_preflight(result, quiet=quiet)
    if store:
        _keep(result, storage, quiet=hidden)
    raise typer.Exit(EXIT_CODES[result.state])


def _known(target: Target, storage: str | None, *, keep: bool, writes: bool) -> tuple[Cluster, tuple[Preflight, ...]]:
    """Return the cluster, and its earlier preflights; with --no-store the store need not be readable.

    Raises:
        StoreError: the result could not be kept; raised before anything is measured.
    """
    from ncclt.measure.open_testbed import choose_cluster, on_cpus
    from ncclt.store import only_shipped, open_store, open_to_read

    def read(store: Store) -> tuple[Cluster, tuple[Preflight, ...]]:
        cluster = choose_cluster(target, store.clusters)
        if target.is_launched and target.is_gloo:
            cluster = on_cpus(cluster)  # times of gloo are no baseline for a fabric of GPUs
        return cluster, store.records.preflights(cluster=cluster.name, limit=_EARLIER)

    try:
        with open_store(storage) if writes else open_to_read(storage, would_be_made=True) as store:
            if writes:
                store.require_writable()
            return read(store)
    except (StoreError, MissingDependencyError) as error:
        if keep:
            raise
        return read(only_shipped(error))


def _hosts(target: Target, cluster: Cluster, *, dry_run: bool) -> tuple[str, ...]:
    """Return the names of the nodes; without --nodes, all that are named.

    --dry-run needs no names and no allocation: placeholders stand for the nodes.
    """
    named = target.hosts
    if target.is_launched:
        from ncclt.health.preflight.probes import hosts_here
        from ncclt.launch.hostfile import granted_hosts

        unknown = (
            not named
            and cluster.nodes > 1
            and not granted_hosts(os.environ)
            and not target.launcher_class.chooses_nodes
        )
    else:
        unknown = False
    if dry_run and unknown:
        say("ncclt: note: no nodes named or granted; using n00, n01, ...")
    elif target.is_launched:
        if target.nodes is None and named:
            cluster = cluster.sized(nodes=len(named))
        return hosts_here(cluster, target, environ=os.environ)
    if named and target.nodes not in (None, len(named)):
        raise UsageError(f"the number of hosts ({len(named)}) differs from the number of nodes ({target.nodes})")
    digits = max(2, len(str(cluster.nodes - 1)))
    return named or tuple(f"n{index:0{digits}}" for index in range(cluster.nodes))


def _runners(
    target: Target,
    cluster: Cluster,
    hosts: tuple[str, ...],
    weak: list[str],
    *,
    seed: int,
    time_s: float | None,
) -> tuple[RunnerFor, tuple[str, ...]]:
    """Return what gives the runner of some nodes or GPUs, and the notes on all of them."""
    if not target.is_launched:
        from ncclt.health.preflight.simulated import SimulatedFabric, parse_fault

        fabric = SimulatedFabric(cluster, hosts, faults=[parse_fault(text) for text in weak], seed=seed)
        return fabric.runner, ("SIMULATED: the times come from a model of the cluster; nothing was measured",)
    from ncclt.health.preflight.probes import launched_runners

    return launched_runners(cluster, target, environ=os.environ, time_s=time_s)


def _first_launch(target: Target, request: PreflightRequest, *, time_s: float | None) -> list[dict[str, Any]]:
    """Return the launch on all nodes, for --dry-run; empty where nothing is launched, or no allocation to launch in."""
    if not target.is_launched or target.lacks_allocation(os.environ):
        return []
    from ncclt.cli.launch_view import launch_row
    from ncclt.core.setting import DEFAULT
    from ncclt.health.preflight.probes import launched_runners, probe_messages

    cluster, hosts = request.cluster, request.hosts
    runner_for, _ = launched_runners(
        cluster, replace(target, hosts=hosts), environ=os.environ, time_s=time_s, ask=False
    )
    messages = probe_messages(request.sizes, ranks=cluster.world_size, nodes=len(hosts))
    return [launch_row("all nodes", plan) for plan in runner_for(hosts, ()).plans(DEFAULT, messages)]


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _sizes(text: str | None) -> tuple[int, ...]:
    """Return sizes in bytes, ascending; K, M and G are powers of 1024 as in nccl-tests."""
    from ncclt.health.preflight.checkup import SIZES

    if text is None:
        return SIZES
    found = set()
    for word in text.upper().split(","):
        number = word.strip().rstrip("B").rstrip("I")
        unit = number[-1:] if number[-1:] in ("K", "M", "G") else ""
        digits = number.removesuffix(unit)
        # Four bytes: one element of float32.
        if not digits.isdecimal() or int(digits) * _UNITS[unit] < 4:
            raise UsageError(f"--sizes {text!r} holds {word.strip()!r}", hint="for example --sizes 64,1M,1G")
        found.add(int(digits) * _UNITS[unit] // 4 * 4)
    return tuple(sorted(found))


def _keep(result: Preflight, storage: str | None, *, quiet: bool) -> None:
    from ncclt.store import open_store

    with open_store(storage) as store:
        store.records.add_preflight(result)
        if not quiet:
            say(f"ncclt: stored preflight {result.id} in {store.shown}")

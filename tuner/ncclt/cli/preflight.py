"""`ncclt preflight`: the health of a fabric before a job."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli import testbed
from ncclt.cli.options import AsJson, Quiet, Storage
from ncclt.cli.output import EXIT_INTERRUPTED, interruptible, print_json, say
from ncclt.cli.submit import is_login_node
from ncclt.errors import StoreError, UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.preflight import Preflight
    from ncclt.health.preflight import RunnerFor
    from ncclt.measure.testbed import LauncherChoice
    from ncclt.store import Store

app = typer.Typer()

_EARLIER = 100
"""Preflights of a cluster that are looked through for a baseline."""


@app.command(
    epilog="Exit codes: 0 = healthy, 4 = degraded, 1 = could not measure, 2 = wrong options, 69 = no store, "
    "75 = the allocation is gone, 130 = interrupted. docs/preflight.md shows it in a Slurm prolog."
)
def preflight(
    cluster: testbed.ClusterName = None,
    nodes: testbed.Nodes = None,
    gpus_per_node: testbed.GpusPerNode = None,
    nccl_version: testbed.NcclVersionName = None,
    launcher: testbed.LauncherName = None,
    hosts: testbed.Hosts = None,
    hostfile: testbed.HostFile = None,
    benchmark: testbed.BenchmarkName = None,
    backend: testbed.Backend = "nccl",
    nccl_tests: testbed.NcclTestsFolder = None,
    python: testbed.Python = sys.executable,
    container: testbed.Container = None,
    launcher_arg: testbed.LauncherArg = None,
    scratch: testbed.Scratch = None,
    keep_env: testbed.KeepEnv = False,
    sizes: Annotated[
        str | None,
        typer.Option(help="Sizes of all_reduce, comma-separated, for example 64,1M,1G; the largest is judged."),
    ] = None,
    expect: Annotated[
        float | None,
        typer.Option(
            help="Bus bandwidth of all nodes at the largest size, GB/s. Default: the median of earlier healthy runs "
            "of this job's shape from three on, else what the links of the cluster promise."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Share by which all nodes may fall short; half of it against earlier runs and among peers."),
    ] = 0.15,
    quick: Annotated[bool, typer.Option("--quick", help="Measure all nodes together once, nothing else.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Also measure pairs and every node alone where all together are fine.")
    ] = False,
    pairs: Annotated[
        str,
        typer.Option(
            help="Pairs to measure: adaptive (few launches), ring, all, or rotate:K, K rounds in which every node "
            "meets another one."
        ),
    ] = "adaptive",
    parallel: Annotated[
        int, typer.Option(help="Launches at once, each on nodes of its own; they share switches, so they may contend.")
    ] = 1,
    seconds: Annotated[
        float | None,
        typer.Option("--time", help="Seconds after which no further launch is begun, and that no launch may take."),
    ] = None,
    weak: Annotated[
        list[str] | None,
        typer.Option(
            help="Drill, with --launcher simulate: n03=0.6 (node), n03+n04=0.5 (link), n03:2=0.7 (GPU), or =hang, "
            "=crash, =wrong; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated noise.")] = 0,
    history: Annotated[bool, typer.Option("--history", help="List earlier preflights and exit.")] = False,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Keep the result; later runs compare with it.")
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Also write the heat map as an SVG picture.")] = None,
    storage: Storage = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be launched and how long it takes; run nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure all_reduce on all nodes, and if that is slow, find the node, link or GPU at fault.

    All nodes are measured together in one launch, and that is all if they reach what is expected. Otherwise halves,
    pairs and GPUs are measured until it is clear what is slow; each suspect is measured three times before it is named.
    """
    from ncclt.cli.preflight_plot import check_plot, svg, write_svg
    from ncclt.cli.preflight_view import EXIT_CODES, print_history, print_plan, print_preflight, watcher
    from ncclt.health.preflight import PreflightRequest, Probes, cost
    from ncclt.health.preflight import preflight as run
    from ncclt.health.preflight.expectation import expectation

    if history:
        from ncclt.store import open_to_read

        with open_to_read(storage) as opened:
            print_history(opened.preflights(cluster=cluster), as_json=as_json)
        return
    if plot is not None:
        check_plot(plot)
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--time must be above 0 seconds, not {seconds:g}")
    if launcher == "replay":
        raise UsageError("recorded tables know no nodes", hint="--launcher simulate --weak n03=0.6 shows a drill")
    options = testbed.TestbedOptions(
        cluster=cluster, nodes=nodes, gpus_per_node=gpus_per_node, nccl_version=nccl_version, launcher=launcher,
        hosts=hosts, hostfile=hostfile, benchmark=benchmark, backend=backend, nccl_tests=nccl_tests, parallel=parallel,
        python=python, container=container, launcher_arg=tuple(launcher_arg or ()), scratch=scratch, keep_env=keep_env,
    )  # fmt: skip
    choice = options.choice()
    if weak and choice.name != "simulate":
        raise UsageError("--weak needs --launcher simulate")
    where, earlier = _known(options, choice, storage, keep=store, writes=store and not dry_run)
    names = _hosts(options, choice, where, dry_run=dry_run)
    where = where.sized(nodes=len(names))
    wanted = _sizes(sizes)
    word = "simulated" if choice.name == "simulate" else options.place(choice).benchmark_name
    expected = expectation(
        where, wanted, tolerance=tolerance, given_gbps=expect, earlier=earlier, benchmark=word,
        simulated=choice.name == "simulate",
    )  # fmt: skip

    def request(notes: tuple[str, ...]) -> PreflightRequest:
        return PreflightRequest(
            cluster=where, hosts=names, expectation=expected, sizes=wanted, tolerance=tolerance, launcher=choice.name,
            benchmark=word, quick=quick, full=full, plan=pairs, notes=notes,
        )  # fmt: skip

    simulated = choice.name == "simulate"
    if dry_run:
        planned = request(())
        print_plan(planned, cost(planned, simulated=simulated), parallel, simulated=simulated, as_json=as_json)
        return
    request(())  # refused before anything is launched
    runner_for, notes = _runners(options, choice, where, names, weak or [], seed=seed, time_s=seconds)
    hidden = quiet or as_json
    if not hidden:
        mark = " (SIMULATED)" if simulated else ""
        say(f"ncclt: launches run on: {choice.name}{mark}, {choice.reason}")
    with interruptible():
        probes = Probes(
            runner_for, expected, simulated=simulated, at_once=parallel, time_s=seconds, clock=time.monotonic,
            watch=watcher(hidden=hidden),
        )  # fmt: skip
        try:
            result = run(
                request(notes), probes, now=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
                clock=time.monotonic,
            )  # fmt: skip
        except KeyboardInterrupt:
            say("ncclt: interrupted: the running launch was ended, nothing was stored")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        print_json(result.to_document())
    else:
        print_preflight(result, quiet=quiet)
    if plot is not None:
        write_svg(svg(result), plot)
    if store:
        _keep(result, storage, quiet=hidden)
    raise typer.Exit(EXIT_CODES[result.state])


def _known(
    options: testbed.TestbedOptions, choice: LauncherChoice, storage: str | None, *, keep: bool, writes: bool
) -> tuple[Cluster, tuple[Preflight, ...]]:
    """Return the cluster, and its earlier preflights; without --store a store that cannot be read is no obstacle.

    Raises:
        StoreError: the result could not be kept, which is told before anything is measured.
    """
    from ncclt.measure.launched_testbed import on_cpus
    from ncclt.store import open_store

    def read(store: Store) -> tuple[Cluster, tuple[Preflight, ...]]:
        cluster = options.chosen_cluster(choice, store)
        if choice.name != "simulate" and options.place(choice).is_gloo:
            cluster = on_cpus(cluster)  # what gloo measures is no history of the fabric of GPUs
        return cluster, store.preflights(cluster=cluster.name, limit=_EARLIER)

    try:
        with open_store(storage, migrate=keep) as store:
            if writes:
                store.require_writable()
            return read(store)
    except StoreError:
        if keep:
            raise
    # The shipped clusters are still known, and nobody's file is touched.
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/ncclt.db") as nothing:
        return read(nothing)


def _hosts(
    options: testbed.TestbedOptions, choice: LauncherChoice, cluster: Cluster, *, dry_run: bool
) -> tuple[str, ...]:
    """Return the names of the nodes; where --nodes is left out it is as many as are named.

    A plan that is only shown needs no allocation of Slurm: its nodes get names of ours.
    """
    not_allocated = dry_run and is_login_node(choice) and not options.place(choice).hosts
    if not_allocated:
        say("ncclt: note: this is not a Slurm allocation: n00, n01 and so on stand for its nodes")
    if choice.name != "simulate" and not not_allocated:
        from ncclt.health.preflight.launched_runners import hosts_here

        place = options.place(choice)
        if options.nodes is None and place.hosts:
            cluster = cluster.sized(nodes=len(place.hosts))
        return hosts_here(cluster, place, environ=os.environ)
    named = options.place(choice).hosts
    if named and options.nodes not in (None, len(named)):
        raise UsageError(f"{len(named)} hosts were named for {options.nodes} nodes")
    digits = max(2, len(str(cluster.nodes - 1)))
    return named or tuple(f"n{index:0{digits}}" for index in range(cluster.nodes))


def _runners(
    options: testbed.TestbedOptions,
    choice: LauncherChoice,
    cluster: Cluster,
    hosts: tuple[str, ...],
    weak: list[str],
    *,
    seed: int,
    time_s: float | None,
) -> tuple[RunnerFor, tuple[str, ...]]:
    """Return what gives the runner of some nodes or GPUs, and what the reader must know of all of them."""
    if choice.name == "simulate":
        from ncclt.health.preflight.simulated import SimulatedFabric, parse_weakness

        fabric = SimulatedFabric(cluster, hosts, weaknesses=[parse_weakness(text) for text in weak], seed=seed)
        return fabric.runner, ("SIMULATED: the times come from a model of the cluster, nothing was measured",)
    from ncclt.health.preflight.launched_runners import launched_runners

    return launched_runners(cluster, options.place(choice), environ=os.environ, time_s=time_s)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _sizes(text: str | None) -> tuple[int, ...]:
    """Return sizes in bytes, ascending; K, M and G are powers of 1024 as in nccl-tests."""
    from ncclt.health.preflight import SIZES

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
        store.add_preflight(result)
        if not quiet:
            say(f"ncclt: stored preflight {result.id} in {store.shown}")

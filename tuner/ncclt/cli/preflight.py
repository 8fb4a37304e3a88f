"""`ncclt preflight`: the health of a fabric before a job."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ncclt.cli.configuration import storage_url
from ncclt.cli.launch_view import print_launches
from ncclt.cli.options import AsJson, Fields, Quiet, spread
from ncclt.cli.output import EXIT_INTERRUPTED, console, interruptible, note, print_json, print_table, say
from ncclt.cli.stdio import visible
from ncclt.core.budget import MOST_SECONDS
from ncclt.core.message import format_bytes
from ncclt.core.option import Group, Option
from ncclt.core.preflight import State
from ncclt.core.trial import Outcome
from ncclt.errors import MissingDependencyError, StoreError, UsageError
from ncclt.health.preflight.heat_map import HeatMap, heat_maps
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.preflight import Preflight, ProbeReading
    from ncclt.health.preflight.checkup import PreflightCost, PreflightRequest
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
            "cluster nodes gpus_per_node nccl_version launcher hosts benchmark backend nccl_tests python "
            "launcher_option launcher_arg scratch sizes expect tolerance quick full all_pairs parallel",
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
    from ncclt.health.preflight.checkup import PreflightRequest, cost
    from ncclt.health.preflight.checkup import preflight as run
    from ncclt.health.preflight.expectation import expectation, find_healthy
    from ncclt.health.preflight.probes import Probes

    if history:
        from ncclt.store import open_to_read

        with open_to_read(storage) as opened:
            print_history(opened.records.preflights(cluster=target.cluster), as_json=as_json)
        return
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--time must be above 0 and at most {MOST_SECONDS:,} seconds, not {seconds:g}")
    if target.is_replayed:
        raise UsageError("recorded tables have no nodes", hint="--launcher simulate --weak n03=0.6 simulates a fault")
    target = target.resolved(os.environ, for_nodes=True)
    simulated = target.is_simulated
    if weak and not simulated:
        raise UsageError("--weak needs --launcher simulate")
    where, earlier = _known(target, storage, keep=store, writes=store and not dry_run)
    names = _hosts(target, where, dry_run=dry_run)
    where = where.sized(nodes=len(names))
    wanted = _sizes(sizes)
    word = "simulated" if simulated else target.benchmark_name
    healthy = find_healthy(where, earlier, benchmark=word, simulated=simulated)
    expected = expectation(where, wanted, tolerance=tolerance, given_gbps=expect, healthy=healthy)

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
        print_plan(planned, cost(planned), target.parallel, launches, as_json=as_json)
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
        from ncclt.store import open_store

        with open_store(storage) as opened:
            opened.records.add_preflight(result)
            if not hidden:
                say(f"ncclt: stored preflight {result.id} in {opened.shown}")
    raise typer.Exit(EXIT_CODES[result.state])


def _known(target: Target, storage: str | None, *, keep: bool, writes: bool) -> tuple[Cluster, tuple[Preflight, ...]]:
    """Return the cluster, and its earlier preflights; with --no-store the store need not be readable.

    Raises:
        StoreError: the result could not be kept; raised before anything is measured.
    """
    from ncclt.measure.open_testbed import choose_cluster, on_cpus
    from ncclt.store import only_shipped, open_store, open_to_read

    def read(store: Store) -> tuple[Cluster, tuple[Preflight, ...]]:
        cluster = choose_cluster(target, store.clusters.get)
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
    """Return a function from nodes or GPUs to their runner, and the notes on all of them."""
    if not target.is_launched:
        from ncclt.health.preflight.simulated import parse_fault, simulated_runners

        runner_for = simulated_runners(cluster, hosts, faults=[parse_fault(text) for text in weak], seed=seed)
        return runner_for, ("SIMULATED: the times come from a model of the cluster; nothing was measured",)
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
    where = target if target.launcher_class.shares_files else replace(target, hosts=hosts)
    runner_for, _ = launched_runners(cluster, where, environ=os.environ, time_s=time_s, ask=False)
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


PLAN_SCHEMA = 1
"""Version of the document that `preflight --dry-run --json` prints."""

_ROUNDS = 4


def watcher(*, hidden: bool) -> Callable[[ProbeReading], None]:
    """Return a callback that reports each launch on stderr."""
    count = 0

    def watch(reading: ProbeReading) -> None:
        nonlocal count
        count += 1
        if hidden:
            return
        if reading.outcome is Outcome.OK:
            went = f"{reading.gbps:.3g} GB/s, {reading.share * 100:.0f} % of the expected bandwidth"
        else:
            went = f"{reading.outcome}: {reading.detail.splitlines()[0] if reading.detail else 'no output'}"
        say(f"ncclt: launch {count}, {reading.section.label}: {went}")

    return watch


def print_plan(
    request: PreflightRequest,
    cost: PreflightCost,
    parallel: int,
    launches: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
) -> None:
    """Print the plan; `launches` are those on all nodes."""
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "launcher": request.launcher,
        "benchmark": request.benchmark,
        "simulated": request.simulated,
        "cluster": request.cluster.name,
        "hosts": list(request.hosts),
        "gpus_per_node": request.cluster.gpus_per_node,
        "sizes": list(request.sizes),
        "expected": [{"size_bytes": size, "busbw_gbps": gbps} for size, gbps in request.expectation.sizes],
        "source": request.expectation.source,
        "all_pairs": request.all_pairs,
        "rounds": [[list(pair) for pair in pairs] for pairs in cost.rounds],
        "launches_healthy": cost.healthy,
        "launches_one_fault": cost.one_fault,
        "seconds_healthy": cost.healthy * cost.launch_s,
        "seconds_one_fault": cost.one_fault * cost.launch_s,
        "notes": list(request.notes),
        **({"launches": list(launches)} if launches else {}),
    }
    if as_json:
        print_json(document)
        return
    if request.simulated:
        print("SIMULATED")
    print(f"hosts: {', '.join(request.hosts)}")
    print(f"launch 1: all_reduce of {', '.join(map(format_bytes, request.sizes))} on all of them")
    largest = dict(request.expectation.sizes)[max(request.sizes)]
    print(f"expected: {largest:.4g} GB/s at {format_bytes(max(request.sizes))} ({request.expectation.source})")
    print(f"launches: {cost.healthy} if healthy, about {cost.one_fault} with one slow node")
    if cost.launch_s:
        healthy, fault = (
            cost.healthy * cost.launch_s,
            cost.one_fault * cost.launch_s,
        )
        print(f"seconds: about {healthy:.0f} if healthy, {fault:.0f} with one slow node, {parallel} at a time")
    for number, pairs in enumerate(cost.rounds[:_ROUNDS]):
        print(f"round {number + 1} of pairs, only if needed or with --full: {' '.join('+'.join(p) for p in pairs)}")
    if len(cost.rounds) > _ROUNDS:
        print(f"... and {len(cost.rounds) - _ROUNDS} more rounds")
    print_launches(launches, texts=False)
    if launches:
        print("--json shows files and whole commands")
    for sentence in request.notes:
        note(sentence)


def print_preflight(result: Preflight, *, quiet: bool) -> None:
    """Print the table of sizes, the heat maps, every finding and the verdict."""
    if result.rows:
        header = ("size", "time, µs", "bus bandwidth, GB/s", "expected, GB/s", "% of expected")
        rows = [
            (
                format_bytes(row.size_bytes),
                f"{row.time_us:,.1f}",
                f"{row.busbw_gbps:.3g}",
                f"{row.expected_gbps:.3g}" if row.expected_gbps else "-",
                f"{row.busbw_gbps / row.expected_gbps * 100:.0f}" if row.expected_gbps else "-",
            )
            for row in result.rows
        ]
        mark = "SIMULATED " if result.simulated else ""
        shape = f"{len(result.hosts)} x {result.gpus_per_node} GPUs of {result.cluster}"
        print(f"{mark}all_reduce on {shape}, expected {result.source}")
        print_table(header, rows, numbers=header)
    for one in heat_maps(result):
        _print_map(one)
    for finding in result.findings[1:]:
        print(f"also: {finding.sentence}")
    if not quiet:
        for note in result.notes:
            say(f"ncclt: note: {note}")
    print(result.verdict)


def _print_map(one: HeatMap) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=visible(one.title), title_justify="left")
    table.add_column("%", no_wrap=True)
    for name in one.names:
        table.add_column(Text(visible(name)), justify="right", no_wrap=True)
    for first in one.names:
        cells = [_cell(None if first == second else one.share(first, second)) for second in one.names]
        table.add_row(Text(visible(first)), *cells)
    if one.left_out:
        table.caption, table.caption_justify = f"{one.left_out} better ones are not shown", "left"
    given = console()
    wide = max(shutil.get_terminal_size().columns, 200) if not given.is_terminal else None
    (console(width=wide) if wide else given).print(table)


def _cell(share: float | None) -> Text:
    """Return a percentage; the colour adds no information."""
    if share is None:
        return Text("·", style="dim")
    text = "fail" if share == 0 else f"{share * 100:.0f}"
    style = "bold white on red" if share < 0.75 else "black on yellow" if share < 0.92 else "green"
    return Text(text, style=style)


def print_history(found: Sequence[Preflight], *, as_json: bool) -> None:
    """List earlier preflights, the newest first."""
    if as_json:
        print_json({"schema": 1, "preflights": [one.to_document() for one in found]})
        return
    header = ("time", "cluster", "nodes x GPUs", "largest size, GB/s", "launches", "state", "verdict")
    rows = [
        (
            one.created[:19],
            one.cluster,
            f"{len(one.hosts)} x {one.gpus_per_node}",
            f"{one.rows[-1].busbw_gbps:.3g}" if one.rows else "-",
            str(len(one.readings)),
            one.state.value,
            one.verdict,
        )
        for one in found
    ]
    print_table(header, rows, numbers=("largest size, GB/s", "launches"))


EXIT_CODES = {State.HEALTHY: 0, State.DEGRADED: 4, State.UNMEASURED: 1}
"""4 as in `ncclt doctor`: works, but below its potential."""

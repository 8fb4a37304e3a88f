"""`ncclt preflight`: the health of a fabric before a job."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import EXIT_INTERRUPTED, interruptible
from ncclt.cli.options import AsJson, Fields, Quiet, spread
from ncclt.cli.render import (
    Column,
    build_launch_document,
    format_bandwidth,
    print_facts,
    print_json,
    print_launches,
    print_list,
    print_table,
    print_text,
    say,
)
from ncclt.core.budget import MOST_SECONDS
from ncclt.core.cluster import Cluster
from ncclt.core.message import format_bytes
from ncclt.core.option import Group, Option
from ncclt.core.preflight import Preflight, ProbeReading, State
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome
from ncclt.errors import MissingDependencyError, StoreError, UsageError
from ncclt.health.preflight.checkup import LAUNCH_S, SIZES, Depth, PreflightRequest
from ncclt.health.preflight.checkup import preflight as examine
from ncclt.health.preflight.expectation import expectation, find_healthy
from ncclt.health.preflight.probes import Probes, hosts_here, launched_runners, probe_messages
from ncclt.launch.hostfile import granted_hosts
from ncclt.measure.open_testbed import choose_cluster, on_cpus
from ncclt.measure.target import Target
from ncclt.store import only_shipped, open_store, open_to_read
from ncclt.store.clock import utc_now

if TYPE_CHECKING:
    from ncclt.store import Store


app = typer.Typer()

_MOST_EARLIER = 100
"""Preflights of a cluster that are looked through for a baseline."""

_EARLIER = (
    Column("time", lambda preflight: preflight.created[:19]),
    Column("cluster", lambda preflight: preflight.cluster),
    Column("nodes x GPUs", lambda preflight: f"{len(preflight.hosts)} x {preflight.gpus_per_node}", drop=1),
    Column("largest size, GB/s", lambda p: p.rows[-1].busbw_gbps if p.rows else None, right=True, drop=2),
    Column("launches", lambda preflight: len(preflight.readings), drop=3),
    Column("state", lambda preflight: preflight.state.value),
    Column("verdict", lambda preflight: preflight.verdict),
)
"""Columns of the list of earlier preflights, the newest first."""

_TARGET_FIELDS = Fields(
    "cluster nodes gpus_per_node nccl_version launcher hosts benchmark backend nccl_tests python "
    "launcher_option launcher_arg scratch sizes expect parallel",
    {
        "cluster": Option(
            "Name of the cluster, see `ncclt cluster list`; default: this machine.", envvar="NCCLT_CLUSTER"
        ),
        "launcher": Option("local, torchrun, mpirun, slurm, ssh or kubernetes.", envvar="NCCLT_LAUNCHER"),
        "parallel": Option("Launches to run at once, each on its own nodes.", group=Group.BUDGET),
    },
)

_EXPECT = "Expected bus bandwidth, GB/s; default: as in healthy runs, or of the links."
_SECONDS = Option("Max seconds of the run and of each launch.", flag="--time", group=Group.BUDGET)


@app.command(
    epilog="Exit codes: 0 = healthy, 4 = degraded, 1 = could not measure, 2 = wrong options, 69 = no store, "
    "75 = the allocation is gone, 130 = interrupted. docs/cluster-admin/preflight.md shows it in a Slurm prolog."
)
@spread
def preflight(
    target: Annotated[Target, _TARGET_FIELDS],
    depth: Depth,
    sizes: Annotated[str | None, Option("Comma-separated sizes, such as 64,1M,1G.", group=Group.PROOF)] = None,
    expect: Annotated[float | None, Option(_EXPECT, group=Group.PROOF)] = None,
    seconds: Annotated[float | None, _SECONDS] = None,
    history: Annotated[bool, Option("List earlier preflights and exit.")] = False,
    store: Annotated[
        bool, Option("Keep the result, for later runs to compare with.", flag="--store/--no-store")
    ] = True,
    dry_run: Annotated[bool, Option("Print the launches and their duration; run nothing.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure all_reduce on all nodes and find slow ones.

    Measures all nodes together first. If they are slow, it bisects nodes, pairs and GPUs, and measures each suspect
    three times before naming it.
    """
    storage = storage_url()
    if history:
        with open_to_read(storage) as opened:
            print_list("preflights", opened.records.preflights(cluster=target.cluster), _EARLIER, as_json=as_json)
        return
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--time must be above 0 and at most {MOST_SECONDS:,} seconds, not {seconds:g}")
    if not target.is_launched:
        raise UsageError(
            "recorded and simulated times have no nodes to examine",
            hint="--dry-run shows the launches on real nodes without running them",
        )
    target = target.resolved(os.environ, for_nodes=True)
    cluster, earlier = _read_store(target, storage, keep=store, writes=store and not dry_run)
    request = _build_request(target, cluster, earlier, depth, _parse_sizes(sizes), expect=expect, dry_run=dry_run)
    if dry_run:
        print_plan(request, target, time_s=seconds, as_json=as_json)
        return
    result = _measure(request, target, time_s=seconds, hidden=quiet or as_json)
    if as_json:
        print_json(result)
    else:
        print_preflight(result, quiet=quiet)
    if store:
        with open_store(storage) as opened:
            opened.records.add_preflight(result)
            if not (quiet or as_json):
                say(f"ncclt: stored preflight {result.id} in {opened.shown}")
    raise typer.Exit(EXIT_CODES[result.state])


def _read_store(
    target: Target, storage: str | None, *, keep: bool, writes: bool
) -> tuple[Cluster, tuple[Preflight, ...]]:
    """Return the cluster, and its earlier preflights; with --no-store the store need not be readable.

    Raises:
        StoreError: the result could not be kept; raised before anything is measured.
    """

    def read(store: Store) -> tuple[Cluster, tuple[Preflight, ...]]:
        cluster = choose_cluster(target, store.clusters.get)
        if target.is_gloo:
            cluster = on_cpus(cluster)  # times of gloo are no baseline for a fabric of GPUs
        return cluster, store.records.preflights(cluster=cluster.name, limit=_MOST_EARLIER)

    try:
        with open_store(storage) if writes else open_to_read(storage, would_be_made=True) as store:
            if writes:
                store.require_writable()
            return read(store)
    except (StoreError, MissingDependencyError) as error:
        if keep:
            raise
        return read(only_shipped(error))


def _build_request(
    target: Target,
    cluster: Cluster,
    earlier: tuple[Preflight, ...],
    depth: Depth,
    sizes: tuple[int, ...],
    *,
    expect: float | None,
    dry_run: bool,
) -> PreflightRequest:
    """Return the request; --dry-run needs no names and no allocation: placeholders stand for the nodes."""
    if target.nodes is None and target.hosts:
        cluster = cluster.sized(nodes=len(target.hosts))
    are_known = target.hosts or cluster.nodes == 1 or granted_hosts(os.environ) or target.launcher_class.chooses_nodes
    if dry_run and not are_known:
        say("ncclt: note: no nodes named or granted; using n00, n01, ...")
        digits = max(2, len(str(cluster.nodes - 1)))
        hosts = tuple(f"n{index:0{digits}}" for index in range(cluster.nodes))
    else:
        hosts = hosts_here(cluster, target, environ=os.environ)
    cluster = cluster.sized(nodes=len(hosts))
    healthy = find_healthy(cluster, earlier, benchmark=target.benchmark_name)
    return PreflightRequest(
        cluster=cluster,
        hosts=hosts,
        expectation=expectation(cluster, sizes, tolerance=depth.tolerance, given_gbps=expect, healthy=healthy),
        sizes=sizes,
        launcher=target.launcher,
        benchmark=target.benchmark_name,
        depth=depth,
    )


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _parse_sizes(text: str | None) -> tuple[int, ...]:
    """Return sizes in bytes, ascending; K, M and G are powers of 1024 as in nccl-tests."""
    if text is None:
        return SIZES
    sizes = set()
    for word in text.upper().split(","):
        number = word.strip().rstrip("B").rstrip("I")
        unit = number[-1:] if number[-1:] in _UNITS else ""
        digits = number.removesuffix(unit)
        # Four bytes: one element of float32.
        if not digits.isdecimal() or int(digits) * _UNITS[unit] < 4:
            raise UsageError(f"--sizes {text!r} holds {word.strip()!r}", hint="for example --sizes 64,1M,1G")
        sizes.add(int(digits) * _UNITS[unit] // 4 * 4)
    return tuple(sorted(sizes))


def _measure(request: PreflightRequest, target: Target, *, time_s: float | None, hidden: bool) -> Preflight:
    """Run the preflight, and report each launch on stderr unless `hidden`."""
    runner_for, notes = launched_runners(request.cluster, target, environ=os.environ, time_s=time_s)
    numbers = itertools.count(1)

    def report(reading: ProbeReading) -> None:
        result = f"{reading.outcome}: {reading.detail.splitlines()[0] if reading.detail else 'no output'}"
        if reading.outcome is Outcome.OK:
            result = f"{format_bandwidth(reading.gbps)}, {reading.share * 100:.0f} % of the expected bandwidth"
        if not hidden:
            say(f"ncclt: launch {next(numbers)}, {reading.section.label}: {result}")

    if not hidden:
        say(f"ncclt: launches run on: {target.launcher}, {target.reason}")
    with interruptible():
        probes = Probes(
            runner_for, request.expectation, at_once=target.parallel, time_s=time_s, clock=time.monotonic, watch=report
        )
        try:
            return examine(request, probes, notes=notes, now=utc_now, clock=time.monotonic)
        except KeyboardInterrupt:
            say("ncclt: interrupted: the running launch was ended, nothing was stored")
            raise typer.Exit(EXIT_INTERRUPTED) from None


PLAN_SCHEMA = 1
"""Version of the document that `preflight --dry-run --json` prints."""

_ROUNDS = 4


def print_plan(request: PreflightRequest, target: Target, *, time_s: float | None, as_json: bool) -> None:
    """Print the launches of a preflight, as far as they are known, and what it will take."""
    launches = _plan_first_launch(request, target, time_s=time_s)
    healthy = request.estimate_launches(is_healthy=True)
    one_fault = request.estimate_launches(is_healthy=False)
    expected, sizes, rounds = request.expectation, request.sizes, request.rounds
    if as_json:
        document: dict[str, Any] = {
            "schema": PLAN_SCHEMA,
            "launcher": request.launcher,
            "benchmark": request.benchmark,
            "simulated": False,
            "cluster": request.cluster.name,
            "hosts": list(request.hosts),
            "gpus_per_node": request.cluster.gpus_per_node,
            "sizes": list(sizes),
            "expected": [{"size_bytes": size, "busbw_gbps": gbps} for size, gbps in expected.sizes],
            "source": expected.source,
            "all_pairs": request.depth.all_pairs,
            "rounds": [[list(pair) for pair in pairs] for pairs in rounds],
            "launches_healthy": healthy,
            "launches_one_fault": one_fault,
            "seconds_healthy": healthy * LAUNCH_S,
            "seconds_one_fault": one_fault * LAUNCH_S,
            "notes": [],
            **({"launches": launches} if launches else {}),
        }
        print_json(document)
        return
    shown_rounds = [(number, " ".join(map("+".join, pairs))) for number, pairs in enumerate(rounds[:_ROUNDS], 1)]
    durations = f"about {healthy * LAUNCH_S:.0f} if healthy, {one_fault * LAUNCH_S:.0f} with one slow node"
    gbps = f"{format_bandwidth(dict(expected.sizes)[sizes[-1]])} at {format_bytes(sizes[-1])} ({expected.source})"
    print_facts(
        [
            ("hosts", ", ".join(request.hosts)),
            ("launch 1", f"all_reduce of {', '.join(map(format_bytes, sizes))} on all of them"),
            ("expected", gbps),
            ("launches", f"{healthy} if healthy, about {one_fault} with one slow node"),
            ("seconds", f"{durations}, {target.parallel} at a time"),
            *((f"round {number} of pairs, only if needed or with --full", text) for number, text in shown_rounds),
            ("further rounds", str(len(rounds) - _ROUNDS) if len(rounds) > _ROUNDS else ""),
        ]
    )
    print_launches(launches, texts=False)
    if launches:
        print_text("--json shows files and whole commands")


def _plan_first_launch(request: PreflightRequest, target: Target, *, time_s: float | None) -> list[dict[str, Any]]:
    """Return the launch on all nodes; empty where there is no allocation to launch in."""
    if target.lacks_allocation(os.environ):
        return []

    cluster, hosts = request.cluster, request.hosts
    target = target if target.launcher_class.shares_files else replace(target, hosts=hosts)
    runner_for, _ = launched_runners(cluster, target, environ=os.environ, time_s=time_s, ask=False)
    messages = probe_messages(request.sizes, ranks=cluster.world_size, nodes=len(hosts))
    return [build_launch_document("all nodes", plan) for plan in runner_for(hosts, ()).plans(DEFAULT, messages)]


def print_preflight(result: Preflight, *, quiet: bool) -> None:
    """Print the table of sizes, every finding and the verdict."""
    if result.rows:
        shape = f"{len(result.hosts)} x {result.gpus_per_node} GPUs of {result.cluster}"
        print_text(f"all_reduce on {shape}, expected {result.source}")
        print_table(
            result.rows,
            [
                Column("size", lambda row: format_bytes(row.size_bytes), right=True),
                Column("time, µs", lambda row: f"{row.time_us:,.1f}", right=True),
                Column("bus bandwidth, GB/s", lambda row: row.busbw_gbps),
                Column("expected, GB/s", lambda row: row.expected_gbps, right=True),
                Column("% of expected", lambda row: f"{row.share * 100:.0f}" if row.share else None, right=True),
            ],
        )
    for finding in result.findings[1:]:
        print_text(f"also: {finding.sentence}")
    for text in () if quiet else result.notes:
        say(f"ncclt: note: {text}")
    print_text(result.verdict)


EXIT_CODES = {State.HEALTHY: 0, State.DEGRADED: 4, State.UNMEASURED: 1}
"""4 as in `ncclt doctor`: works, but below its potential."""

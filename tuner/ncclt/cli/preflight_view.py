"""The text output of `ncclt preflight`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ncclt.cli.launch_view import print_launches
from ncclt.cli.output import console, note, print_json, print_table, say
from ncclt.cli.stdio import visible
from ncclt.core.message import format_bytes
from ncclt.core.preflight import State
from ncclt.core.trial import Outcome
from ncclt.health.preflight.heat_map import HeatMap, heat_maps

if TYPE_CHECKING:
    from ncclt.core.preflight import Preflight, ProbeReading
    from ncclt.health.preflight.checkup import PreflightCost, PreflightRequest

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
    simulated: bool,
    as_json: bool,
) -> None:
    """Show what would be launched; `launches` are those on all nodes."""
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "launcher": request.launcher,
        "benchmark": request.benchmark,
        "simulated": simulated,
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
    if simulated:
        print("SIMULATED")
    print(f"hosts: {', '.join(request.hosts)}")
    print(f"launch 1: all_reduce of {', '.join(map(format_bytes, request.sizes))} on all of them")
    largest = dict(request.expectation.sizes)[max(request.sizes)]
    print(f"expected: {largest:.4g} GB/s at {format_bytes(max(request.sizes))} ({request.expectation.source})")
    print(f"launches: {cost.healthy} if healthy, about {cost.one_fault} with one slow node")
    if cost.launch_s:
        healthy, fault = cost.healthy * cost.launch_s, cost.one_fault * cost.launch_s
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

"""How surely does `ncclt preflight` name what is wrong with a fabric, and in how many launches?

INVENTED TIMES throughout: fleets of 8, 32 and 128 nodes of a shipped cluster get 0 to 3 faults (a node's network, a
link between neighbours, a GPU) that take away 10 to 60 % of the bandwidth, and every launch scatters. What a preflight
names is held against what was put in. Its yardstick is the fleet in health, as a stored baseline would give it; a link
is put in between neighbours because a ring over all nodes passes no other. Launches are compared with those of all
pairs of nodes.

    python bench/preflight.py [--json] [--runs N] [--seed S] [--cluster NAME]
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import FabricFinding, Part, Preflight, Section, State
from ncclt.health.preflight.checkup import TOLERANCE, PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes
from ncclt.store.shipped import profiles_folder, shipped_clusters

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "fakes"))
from fleet import Fault, Fleet

from output import Rows, build_parser

NODES = (8, 32, 128)
NOISE = (0.01, 0.03)
LOSSES = ((0.10, 0.20), (0.20, 0.60))
SIZE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of fleet; shares from 0 to 1.

    Attributes:
        nodes, noise, loss: of the fleet; noise is the sigma of one launch, loss a range.
        faults: faults put in, over all runs.
        precision: of the parts that were named, those that were weak.
        recall: of the weak parts, those that were named; a GPU counts as named by its node in `by_node`.
        by_node: the same, where the right node of a weak GPU is enough.
        seen: fleets with one that were not called healthy, whatever was named.
        healthy: fleets without a fault that were called healthy.
        launches: median of a run with faults, and `most` the most.
        all_pairs: launches that all pairs of nodes would take.
    """

    nodes: int
    noise: float
    loss: str
    faults: int
    precision: float
    recall: float
    by_node: float
    seen: float
    healthy: float
    launches: float
    most: int
    all_pairs: int


def draw_faults(
    hosts: Sequence[str], gpus: int, count: int, loss: tuple[float, float], draw: random.Random
) -> list[Fault]:
    """Draw faults that have no node in common."""
    faults: list[Fault] = []
    faulty_hosts: set[str] = set()
    while len(faults) < count:
        index = draw.randrange(len(hosts))
        kind = draw.choice((Part.NODE, Part.LINK, Part.GPU))
        ends = (hosts[index], hosts[(index + 1) % len(hosts)]) if kind is Part.LINK else (hosts[index],)
        if faulty_hosts & set(ends):
            continue
        faulty_hosts |= set(ends)
        gpu = (draw.randrange(gpus),) if kind is Part.GPU else ()
        faults.append(Fault(hosts=ends, gpus=gpu, share=1 - draw.uniform(*loss)))
    return faults


def examine(cluster: Cluster, faults: Sequence[Fault], *, noise: float, seed: int) -> Preflight:
    """Run one preflight on a fleet."""
    hosts = tuple(f"n{index:03d}" for index in range(cluster.nodes))
    by_links = expectation(cluster, (SIZE,), tolerance=TOLERANCE)
    usual = Probes(Fleet(cluster).runner, by_links, clock=lambda: 0.0).measure([Section(hosts=hosts)])[0].gbps
    # As a baseline: measured, so half of the tolerance.
    expected = expectation(cluster, (SIZE,), tolerance=TOLERANCE / 2, given_gbps=usual)
    probes = Probes(Fleet(cluster, faults, sigma=noise, seed=seed).runner, expected, clock=lambda: 0.0)
    request = PreflightRequest(
        cluster=cluster, hosts=hosts, expectation=expected, sizes=(SIZE,), launcher="invented", benchmark="invented"
    )
    return preflight(request, probes, now=lambda: "", clock=lambda: 0.0)


def _key(part: Fault | FabricFinding) -> tuple[frozenset[str], tuple[int, ...]]:
    return frozenset(part.hosts), part.gpus


def measure_row(cluster: Cluster, *, noise: float, loss: tuple[float, float], runs: int, seed: int) -> Row:
    """Run fleets of one kind, a quarter of them without a fault."""
    draw = random.Random(f"{seed}/{cluster.nodes}/{noise}/{loss}")
    hosts = tuple(f"n{index:03d}" for index in range(cluster.nodes))
    named = faults = hits = hits_by_node = seen = healthy = 0
    launches: list[int] = []
    for number in range(runs):
        weak = draw_faults(hosts, cluster.gpus_per_node, number % 4, loss, draw)
        result = examine(cluster, weak, noise=noise, seed=seed * 1000 + number)
        if not weak:
            healthy += result.state is State.HEALTHY
            named += len(result.findings)
            continue
        launches.append(len(result.readings))
        seen += result.state is not State.HEALTHY
        findings = {_key(finding) for finding in result.findings if finding.part not in (Part.GROUP, Part.FABRIC)}
        truth = {_key(fault) for fault in weak}
        named_hosts = {hosts for hosts, _ in findings}
        faults += len(truth)
        named += len(findings)
        hits += len(truth & findings)
        hits_by_node += sum((hosts, gpus) in findings or (bool(gpus) and hosts in named_hosts) for hosts, gpus in truth)
    return Row(
        nodes=cluster.nodes,
        noise=noise,
        loss=f"{loss[0] * 100:.0f}-{loss[1] * 100:.0f} %",
        faults=faults,
        precision=hits / named if named else 1.0,
        recall=hits / faults,
        by_node=hits_by_node / faults,
        seen=seen / len(launches),
        healthy=healthy / len(range(0, runs, 4)),
        launches=statistics.median(launches),
        most=max(launches),
        all_pairs=cluster.nodes * (cluster.nodes - 1) // 2,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or the rows as JSON."""
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=40, help="fleets of each kind, every fourth healthy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", default="dgx-a100", help="shipped cluster that the nodes are of")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    options = parser.parse_args(arguments)
    if options.runs < 2 or min(options.nodes) < 8:
        parser.error("--runs must be at least 2, and --nodes at least 8: up to three faults have no node in common")
    clusters = shipped_clusters(profiles_folder())
    if options.cluster not in clusters:
        parser.error(f"no shipped cluster {options.cluster!r}; there are: {', '.join(clusters)}")
    rows = Rows(as_json=options.json)
    if not options.json:
        print("INVENTED TIMES")
    for nodes, noise, loss in itertools.product(options.nodes, NOISE, LOSSES):
        rows.add(
            measure_row(
                clusters[options.cluster].sized(nodes=nodes),
                noise=noise,
                loss=loss,
                runs=options.runs,
                seed=options.seed,
            )
        )
    rows.end(invented=True)


if __name__ == "__main__":
    main(sys.argv[1:])

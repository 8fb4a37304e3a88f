"""How surely does `ncclt preflight` name what is wrong with a fabric, and in how many launches?

SIMULATED throughout: fleets of 8, 32 and 128 nodes of a shipped cluster get 0 to 3 faults (a node's network, a
link between neighbours, a GPU) that take away 10 to 60 % of the bandwidth, and every launch scatters. What a preflight
names is held against what was put in. Its yardstick is the fleet in health, as a stored baseline would give it; a link
is put in between neighbours because a ring over all nodes passes no other. Launches are compared with those of all
pairs of nodes.

    python bench/preflight.py [--json] [--runs N] [--seed S] [--cluster NAME]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import FabricFinding, Part, Section, State
from ncclt.health.preflight.checkup import TOLERANCE, PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes
from ncclt.health.preflight.simulated import InjectedFault, simulated_runners
from ncclt.store.shipped import profiles_folder, shipped_clusters

NODES = (8, 32, 128)
NOISE = (0.02, 0.05)
LOSSES = ((0.10, 0.20), (0.20, 0.60))
SIZE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of fleet; shares from 0 to 1.

    Attributes:
        nodes, noise, loss: of the fleet; noise is the sigma of one sample, loss a range.
        faults: faults put in, over all runs.
        precision: of the parts that were named, those that were weak.
        recall: of the weak parts, those that were named; a GPU counts as named by its node in `recall_node`.
        recall_node: the same, where the right node of a weak GPU is enough.
        healthy_right: fleets without a fault that were called healthy.
        degraded_seen: fleets with one that were not called healthy, whatever was named.
        launches: median of a run with faults, and `launches_most` the most.
        all_pairs: launches that all pairs of nodes would take.
    """

    nodes: int
    noise: float
    loss: str
    faults: int
    precision: float
    recall: float
    recall_node: float
    healthy_right: float
    degraded_seen: float
    launches: float
    launches_most: int
    all_pairs: int
    simulated: bool = True


def draw_faults(
    hosts: Sequence[str], gpus: int, count: int, loss: tuple[float, float], draw: random.Random
) -> list[InjectedFault]:
    """Draw faults that have no node in common."""
    found: list[InjectedFault] = []
    taken: set[str] = set()
    while len(found) < count:
        index = draw.randrange(len(hosts))
        kind = draw.choice((Part.NODE, Part.LINK, Part.GPU))
        ends = (hosts[index], hosts[(index + 1) % len(hosts)]) if kind is Part.LINK else (hosts[index],)
        if taken & set(ends):
            continue
        taken |= set(ends)
        gpu = (draw.randrange(gpus),) if kind is Part.GPU else ()
        found.append(InjectedFault(hosts=ends, gpus=gpu, share=1 - draw.uniform(*loss)))
    return found


def examine(
    cluster: Cluster, faults: Sequence[InjectedFault], *, noise: float, seed: int
) -> tuple[State, tuple[FabricFinding, ...], int]:
    """Run one preflight on a simulated fleet."""
    hosts = tuple(f"n{index:03d}" for index in range(cluster.nodes))
    healthy = simulated_runners(cluster, hosts, seed=seed, sigma=0)
    links = expectation(cluster, (SIZE,), tolerance=TOLERANCE)
    usual = Probes(healthy, links, clock=lambda: 0.0)
    gbps = usual.measure([Section(hosts=hosts)])[0].gbps
    # As a baseline: measured, so half of the tolerance.
    expected = expectation(cluster, (SIZE,), tolerance=TOLERANCE / 2, given_gbps=gbps)
    runner_for = simulated_runners(cluster, hosts, faults=faults, seed=seed, sigma=noise)
    probes = Probes(runner_for, expected, clock=lambda: 0.0)
    request = PreflightRequest(
        cluster=cluster, hosts=hosts, expectation=expected, sizes=(SIZE,), launcher="simulate", benchmark="simulate"
    )
    result = preflight(request, probes, now=lambda: "", clock=lambda: 0.0)
    return result.state, result.findings, len(result.readings)


def _key(part: InjectedFault | FabricFinding) -> tuple[frozenset[str], tuple[int, ...]]:
    return frozenset(part.hosts), part.gpus


def row(cluster: Cluster, *, noise: float, loss: tuple[float, float], runs: int, seed: int) -> Row:
    """Run fleets of one kind, a quarter of them without a fault."""
    draw = random.Random(f"{seed}/{cluster.nodes}/{noise}/{loss}")
    hosts = tuple(f"n{index:03d}" for index in range(cluster.nodes))
    named = faults = hit = hit_node = seen = healthy = healthy_right = 0
    launches: list[int] = []
    for number in range(runs):
        weak = draw_faults(hosts, cluster.gpus_per_node, number % 4, loss, draw)
        state, findings, count = examine(cluster, weak, noise=noise, seed=seed * 1000 + number)
        if not weak:
            healthy += 1
            healthy_right += state is State.HEALTHY
            named += len(findings)
            continue
        launches.append(count)
        seen += state is not State.HEALTHY
        exact = [one for one in findings if one.part not in (Part.GROUP, Part.FABRIC)]
        truth, said = {_key(one) for one in weak}, {_key(one) for one in exact}
        said_hosts = {key[0] for key in said}
        faults += len(truth)
        named += len(said)
        hit += len(truth & said)
        hit_node += sum(key in said or (bool(key[1]) and key[0] in said_hosts) for key in truth)
    return Row(
        nodes=cluster.nodes,
        noise=noise,
        loss=f"{loss[0] * 100:.0f}-{loss[1] * 100:.0f} %",
        faults=faults,
        precision=hit / named if named else 1.0,
        recall=hit / faults,
        recall_node=hit_node / faults,
        healthy_right=healthy_right / healthy,
        degraded_seen=seen / len(launches),
        launches=statistics.median(launches),
        launches_most=max(launches),
        all_pairs=cluster.nodes * (cluster.nodes - 1) // 2,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=40, help="fleets of each kind, every fourth healthy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", default="dgx-a100", help="shipped cluster that the nodes are of")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    options = parser.parse_args(arguments)
    if options.runs < 2 or min(options.nodes) < 8:
        parser.error("--runs must be at least 2, and --nodes at least 8: up to three faults have no node in common")
    known = shipped_clusters(profiles_folder())
    if options.cluster not in known:
        parser.error(f"no shipped cluster {options.cluster!r}; there are: {', '.join(known)}")
    cluster = known[options.cluster]
    rows = [
        row(cluster.sized(nodes=nodes), noise=noise, loss=loss, runs=options.runs, seed=options.seed)
        for nodes in options.nodes
        for noise in NOISE
        for loss in LOSSES
    ]
    if options.json:
        print(json.dumps({"rows": [asdict(one) for one in rows]}, indent=2))
        return
    print("SIMULATED")
    columns = (
        ("nodes", "nodes", "d"),
        ("noise", "noise", ".2f"),
        ("loss", "loss", ""),
        ("faults", "faults", "d"),
        ("precision", "precision", ".2f"),
        ("recall", "recall", ".2f"),
        ("by node", "recall_node", ".2f"),
        ("seen", "degraded_seen", ".2f"),
        ("healthy", "healthy_right", ".2f"),
        ("launches", "launches", ".0f"),
        ("most", "launches_most", "d"),
        ("all pairs", "all_pairs", "d"),
    )
    print(" ".join(f"{title:>9}" for title, _, _ in columns))
    for one in rows:
        print(" ".join(f"{format(getattr(one, field), form):>9}" for _, field, form in columns))


if __name__ == "__main__":
    main(sys.argv[1:])

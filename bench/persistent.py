"""Trials per minute with persistent ranks, beside the same trials as launches of their own; same machine, same run.

    python bench/persistent.py [--launcher torchrun] [--backend gloo] [--nodes 1] [--ranks 2] [--trials 100] [--json]

The same settings, messages and sampling for both. Starting and ending the ranks is counted, so the figure is that of
a whole search of `--trials`; the median seconds of one trial stand beside it. What is left of a trial is sampling: the
more messages and the larger, the less there is to gain. `communicator`: all process groups are closed and made anew for
every setting; `call`: the tuner plugin's table is switched (needs a C compiler; gloo calls no plugin, so there only the
switching is timed).
`--launcher slurm` has to run in an allocation of `--nodes`; NCCLT_CONTROLLER_HOST as for ncclt.
Not tried on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.launch import launcher_class
from ncclt.launch.launcher import JobShape, Launcher
from ncclt.measure import LaunchedRunner, PersistentRunner
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.switching import SwitchCost
from ncclt.nccl.tuner_plugin.build import build, compiler
from output import Rows, build_parser

TARGET = 10.0

SETTINGS = (
    DEFAULT,
    *(
        Setting(algorithm=algorithm, protocol=protocol)
        for algorithm in (Algorithm.RING, Algorithm.TREE)
        for protocol in (Protocol.LL, Protocol.SIMPLE)
    ),
)


def create_launcher(arguments: argparse.Namespace) -> Launcher:
    shape = JobShape(nodes=arguments.nodes, processes_per_node=arguments.ranks // arguments.nodes)
    launcher: Launcher = launcher_class(arguments.launcher).create(shape=shape, environment=os.environ)
    return launcher


def per_minute(runner: LaunchedRunner | PersistentRunner, messages: list[Message], trials: int) -> tuple[float, float]:
    """Measure so many trials; return them per minute, until nothing runs any more, and the median seconds of one."""
    settings: Iterator[Setting] = islice(cycle(SETTINGS), trials)
    walls_s = []
    began_s = time.perf_counter()
    try:
        for setting in settings:
            result = runner.measure(setting, messages, repeat=0)
            if result.outcome is not Outcome.OK:
                raise SystemExit(f"{setting.label}: {result.outcome}: {result.detail}")
            walls_s.append(result.wall_s)
    finally:
        if isinstance(runner, PersistentRunner):
            runner.close()
    return trials * 60 / (time.perf_counter() - began_s), statistics.median(walls_s)


def measured(arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    nodes, ranks = arguments.nodes, arguments.ranks
    network: dict[str, Any] = {"fabric": "ethernet", "nics_per_node": 1, "nic_gbps": 10.0} if nodes > 1 else {}
    cluster = Cluster(
        name="bench",
        nodes=nodes,
        gpus_per_node=ranks // nodes,
        gpu="bench",
        compute_capability=80,
        link_class="shm",
        link_gbps=10.0,
        nccl_version=arguments.nccl,
        **network,
    )
    messages = [
        Message(
            collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=ranks, spans_nodes=nodes > 1
        )
        for size in (4096, 65_536, 1_048_576)
    ]

    def variables(setting: Setting) -> dict[str, str]:
        collectives = {message.collective for message in messages}
        return dict(variables_for_setting(setting, version=cluster.version, collectives=collectives).variables)

    common: dict[str, Any] = {
        "benchmark": TorchCollectives(backend=arguments.backend, budget_s=arguments.budget_s),
        "cluster": cluster,
        "variables": variables,
    }
    slow = LaunchedRunner(launcher=create_launcher(arguments), scratch_is_shared=nodes == 1, **common)
    relaunch, launch_s = per_minute(slow, messages, arguments.relaunches)
    host = os.environ.get("NCCLT_CONTROLLER_HOST", "")
    ways: list[tuple[SwitchCost, Path | None]] = [(SwitchCost.COMMUNICATOR, None)]
    if compiler() is not None:
        ways.append((SwitchCost.CALL, build(folder / "libnccl-tuner-ncclt.so")))
    for cost, plugin in ways:
        quick = PersistentRunner(launcher=create_launcher(arguments), host=host, plugin=plugin, **common)
        stays, trial_s = per_minute(quick, messages, arguments.trials)
        assert quick.switches == {SwitchCost.PROCESS: 1, cost: arguments.trials - 1}, quick.switches
        yield {
            "launcher": arguments.launcher,
            "backend": arguments.backend,
            "ranks": ranks,
            "level": cost.name.lower(),
            "trials": arguments.trials,
            "relaunches": arguments.relaunches,
            "persistent_per_minute": round(stays, 1),
            "relaunch_per_minute": round(relaunch, 1),
            "persistent_trial_s": round(trial_s, 3),
            "relaunch_trial_s": round(launch_s, 3),
            "ratio": round(stays / relaunch, 1),
        }


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--launcher", choices=("torchrun", "slurm"), default="torchrun")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--nccl", default="2.29.7", help="version that the ranks have; says what can be switched how")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="on all nodes together")
    parser.add_argument("--trials", type=int, default=100, help="with persistent ranks")
    parser.add_argument("--relaunches", type=int, default=5, help="trials that are launches of their own")
    parser.add_argument("--budget-s", type=float, default=0.05, help="for timing one message, in both")
    arguments = parser.parse_args()
    if min(arguments.nodes, arguments.ranks, arguments.trials, arguments.relaunches) < 1 or arguments.budget_s <= 0:
        parser.error("--nodes, --ranks, --trials and --relaunches must be at least 1, and --budget-s above 0")
    if arguments.ranks % arguments.nodes:
        parser.error(f"{arguments.ranks} ranks cannot be spread evenly over {arguments.nodes} nodes")
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = Rows(as_json=arguments.json)
            for row in measured(arguments, Path(folder)):
                rows.add(row)
    except UsageError as error:
        parser.error(error.message)
    rows.end(f"target: a ratio of at least {TARGET:.0f}")


if __name__ == "__main__":
    main()

"""Runners of parts of a real job: the same launcher and benchmark, on some of its nodes or GPUs.

Not tested on a GPU; tested with a stand-in for nccl-tests.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.errors import UsageError
from ncclt.launch.hostfile import granted_hosts
from ncclt.measure import LaunchedRunner, Timeouts
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.launched_testbed import benchmark_of, launcher_of
from ncclt.measure.target import Target

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def hosts_here(cluster: Cluster, target: Target, *, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the nodes to examine: as named, those granted to this job, or this machine.

    Raises:
        UsageError: the launcher cannot choose nodes, or too few are named.
    """
    if target.launcher_class.chooses_nodes:
        raise UsageError(
            f"--launcher {target.launcher} chooses the nodes itself, so a preflight cannot compare them",
            hint="run it in the pods of a job, with --launcher ssh or mpirun",
        )
    named = target.hosts
    if not named and target.launcher_class.uses_allocation:
        named = granted_hosts(environ)
    if not named and cluster.nodes == 1:
        return (platform.node(),)
    if len(named) < cluster.nodes:
        raise UsageError(
            f"{cluster.nodes} nodes are to be examined and {len(named) or 'none'} are named",
            hint="name them with --hosts or --hostfile; in a job of Slurm, PBS, LSF or Grid Engine they are known",
        )
    return named[: cluster.nodes]


class _CappedTimeouts(Timeouts):
    """Time limits of launches that share a total limit, so that a hang is reported within it, not after it."""

    def __init__(self, most_s: float | None) -> None:
        super().__init__()
        self._most_s = most_s

    def limit_s(self, messages: Sequence[Message]) -> float:
        """Return how long a command for some messages may take, seconds."""
        limit_s = super().limit_s(messages)
        return limit_s if self._most_s is None else min(limit_s, self._most_s)


def launched_runners(
    cluster: Cluster, target: Target, *, environ: Mapping[str, str], time_s: float | None = None, ask: bool = True
) -> tuple[Callable[[tuple[str, ...], tuple[int, ...]], LaunchedRunner], tuple[str, ...]]:
    """Return a function that makes the runner of some nodes or GPUs, and the notes about all of them.

    The programs' features are detected once, on all nodes. The duration of one launch limits the later ones of as many
    ranks, so that a hang costs a minute and not the generous timeout of the first launch.

    Args:
        cluster: sized to the job.
        target: resolved; its hosts are the whole job's.
        environ: the process environment.
        time_s: of the whole preflight; no launch gets more. None = no limit.
        ask: run programs on the nodes to find out what they support.

    Raises:
        UsageError: launcher, benchmark and cluster do not fit together.
    """
    target.require(cluster)
    whole = launcher_of(cluster, target, target.hosts[: cluster.nodes], environ=environ)
    benchmark, notes = benchmark_of(cluster, target, whole, frozenset({Collective.ALL_REDUCE}), ask=ask)
    timeouts = _CappedTimeouts(time_s)

    def runner_for(hosts: tuple[str, ...], gpus: tuple[int, ...]) -> LaunchedRunner:
        part = cluster.sized(nodes=len(hosts), gpus_per_node=len(gpus) or None)
        sized = benchmark
        if isinstance(benchmark, NcclTests):
            starts_ranks = target.launcher_class.starts_ranks
            sized = replace(
                benchmark,
                processes=part.world_size if starts_ranks else 1,
                gpus_per_process=1 if starts_ranks else part.gpus_per_node,
            )
        visible = {_VISIBLE: _visible(gpus, target, environ)} if gpus else {}
        return LaunchedRunner(
            benchmark=sized,
            launcher=launcher_of(part, target, () if target.launcher_class.shares_files else hosts, environ=environ),
            cluster=part,
            variables=lambda _setting: visible,
            timeouts=timeouts,
            scratch=target.scratch,
            scratch_is_shared=target.scratch_is_shared,
        )

    return runner_for, notes


def _visible(gpus: tuple[int, ...], target: Target, environ: Mapping[str, str]) -> str:
    """Return CUDA's list of the GPUs to use; on this machine they count among those that are visible here."""
    here = [name for name in environ.get(_VISIBLE, "").split(",") if name]
    if target.launcher_class.shares_files and here:
        return ",".join(here[gpu] for gpu in gpus)
    return ",".join(map(str, gpus))

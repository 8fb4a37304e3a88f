"""From a target to the testbed that a command measures on, with the clusters that the store knows."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclt.errors import UsageError
from ncclt.measure.target import DEFAULT_CLUSTER, Target

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.measure.testbed import Testbed
    from ncclt.store import Store


def chosen_cluster(target: Target, store: Store) -> Cluster:
    """Return the cluster that is measured, sized to the job.

    Raises:
        UsageError: none was named, and what is here cannot be known.
    """
    if target.cluster is None and target.launcher != "simulate":
        from ncclt.measure.launched_testbed import cluster_here

        return cluster_here(target)
    return store.cluster(target.cluster or DEFAULT_CLUSTER).sized(
        nodes=target.nodes, gpus_per_node=target.gpus_per_node, nccl_version=target.nccl_version
    )


def open_testbed(
    target: Target, store: Store, workload: Workload, *, seed: int, ask: bool = True, ask_driver: bool = True
) -> Testbed:
    """Return the target ready to measure.

    Args:
        target: resolved.
        store: knows the clusters.
        workload: what will be measured.
        seed: of simulated noise.
        ask: whether programs may be started there to ask what they can do.
        ask_driver: whether the nodes are asked for their driver too.
    """
    from ncclt.measure.launched_testbed import launched_testbed
    from ncclt.measure.testbed import replayed_testbed, simulated_testbed

    if target.landscape is not None:
        return replayed_testbed(target.landscape, _conditions(target.where), seed=seed, reason=target.reason)
    cluster = chosen_cluster(target, store)
    if target.launcher == "simulate":
        return simulated_testbed(cluster, seed=seed, reason=target.reason, parallel=target.parallel)
    if ask and ask_driver and target.backend == "nccl":
        from ncclt.measure.driver import drivers_of_nodes

        # What the nodes say goes before what the cluster's file said when it was written.
        told = drivers_of_nodes(cluster, target, environ=os.environ).text
        cluster = replace(cluster, driver=told or cluster.driver)
    return launched_testbed(cluster, workload.collectives, target, environ=os.environ, ask=ask)


def _conditions(where: tuple[str, ...]) -> dict[str, str]:
    conditions: dict[str, str] = {}
    for text in where:
        column, equals, value = text.partition("=")
        if not equals or not column.strip():
            raise UsageError(f"--where {text!r} is not COLUMN=VALUE", hint="for example --where gpus=4")
        conditions[column.strip()] = value.strip()
    return conditions

"""From a target to the testbed that measures it, with the clusters that the store knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol as Port

from ncclt.core.cluster import Cluster
from ncclt.core.message import format_bytes
from ncclt.core.workload import Workload
from ncclt.measure.driver import drivers_of_nodes
from ncclt.measure.launched_testbed import cluster_here, launched_testbed
from ncclt.measure.target import DEFAULT_CLUSTER, Target
from ncclt.measure.testbed import Testbed, replayed_testbed, simulated_testbed
from ncclt.user_dirs import recorded_tables


class ClusterLookup(Port):
    """Catalogue of clusters, as that of a store."""

    def get(self, name: str) -> Cluster:
        """Return the cluster of this name.

        Raises:
            NotFoundError: there is none.
        """


def chosen_cluster(target: Target, clusters: ClusterLookup) -> Cluster:
    """Return the cluster that is measured, sized to the job.

    Raises:
        UsageError: none was named, and the hardware of this machine is not known.
        NotFoundError: no cluster has that name.
    """
    if target.cluster is None and not target.is_simulated:
        return cluster_here(target)
    return clusters.get(target.cluster or DEFAULT_CLUSTER).sized(
        nodes=target.nodes, gpus_per_node=target.gpus_per_node, nccl_version=target.nccl_version
    )


def open_testbed(
    target: Target,
    clusters: ClusterLookup,
    workload: Workload,
    *,
    environ: Mapping[str, str],
    seed: int,
    ask: bool = True,
    ask_driver: bool = True,
) -> Testbed:
    """Return the target ready to measure.

    Args:
        target: resolved.
        clusters: the catalogue.
        workload: what will be measured.
        environ: the process environment.
        seed: of simulated noise.
        ask: run programs on the nodes to find out what they support.
        ask_driver: read the driver version of the nodes too.

    Raises:
        UsageError: launcher, benchmark, cluster and nodes do not fit together.
        NotFoundError: no cluster has that name.
        InputError: the landscape cannot be read.
    """
    if target.landscape is not None:
        replayed = replayed_testbed(target.landscape, seed=seed, reason=target.reason)
        return replayed.forcing(workload.collectives, target.through)
    if target.is_replayed:
        assert target.cluster is not None
        found = clusters.get(target.cluster).as_recorded(
            nodes=target.nodes, gpus_per_node=target.gpus_per_node, nccl_version=target.nccl_version, why=target.reason
        )
        replayed = replayed_testbed(recorded_tables()[found.name], seed=seed, reason=target.reason)
        return replayed.forcing(workload.collectives, target.through)
    cluster = chosen_cluster(target, clusters)
    if target.is_simulated:
        simulated = simulated_testbed(cluster, seed=seed, reason=target.reason, parallel=target.parallel)
        simulated = replace(simulated, notes=(*simulated.notes, *_extrapolated(cluster, workload)))
        return simulated.forcing(workload.collectives, target.through)
    if ask and ask_driver and target.backend == "nccl":
        # The cluster's file may be older than the driver of the nodes.
        installed = drivers_of_nodes(cluster, target, environ=environ).text
        cluster = replace(cluster, driver=installed or cluster.driver)
    return launched_testbed(cluster, workload.collectives, target, environ=environ, ask=ask)


def _extrapolated(cluster: Cluster, workload: Workload) -> tuple[str, ...]:
    """Say what of a workload lies beyond twice the sizes and nodes that the cluster was calibrated with."""
    fitted = cluster.calibration
    if fitted is None:
        return ()
    found = []
    if fitted.beyond(fitted.most_bytes, cluster.nodes):
        nodes = " to ".join(str(count) for count in sorted({fitted.least_nodes, fitted.most_nodes}))
        found.append(f"extrapolated: the cluster was calibrated on {nodes} nodes, and this job has {cluster.nodes}")
    beyond = sum("size" in fitted.beyond(one.message.size_bytes, cluster.nodes) for one in workload.messages)
    if beyond:
        sizes = f"{format_bytes(fitted.least_bytes)} to {format_bytes(fitted.most_bytes)}"
        found.append(
            f"extrapolated: {beyond} of {len(workload.messages)} messages lie beyond the calibrated sizes, {sizes}"
        )
    return tuple(found)

"""What a simulated cluster runs for a message: the NCCL default, or what a setting forces."""

from __future__ import annotations

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting, max_channels
from ncclt.measure.simulated.chunks import BUFFER_BYTES
from ncclt.measure.simulated.truth import SimulatedKernel
from ncclt.nccl.cost_model.model import Choice, cell_channels, most_threads, nccl_choice
from ncclt.nccl.cost_model.topology import build_topology


def choice_of(cluster: Cluster, setting: Setting, message: Message) -> Choice | None:
    """Return what runs: the forced choice if the setting applies to the collective, else NCCL's own."""
    reaching = setting.applied_to(message.collective, version=cluster.version)
    return nccl_choice(
        message.collective,
        message.size_bytes,
        cluster,
        message.group_size,
        message.spans_nodes,
        algorithm=reaching.algorithm,
        protocol=reaching.protocol,
        max_threads=dict(reaching.parameters).get("NTHREADS"),
    )


def kernel_of(cluster: Cluster, setting: Setting, message: Message) -> SimulatedKernel:
    """Return the kernel that runs for a message under a setting.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    buffsize = dict(setting.parameters).get("BUFFSIZE", BUFFER_BYTES[Protocol.SIMPLE])
    choice = choice_of(cluster, setting, message)
    if choice is None:
        return SimulatedKernel(
            collective=message.collective, size_bytes=message.size_bytes, buffsize=buffsize, p2p=setting.parameters
        )
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    return SimulatedKernel(
        collective=message.collective,
        size_bytes=message.size_bytes,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
        channels=_channels(cluster, setting, message, choice),
        # NCCL takes fewer for messages that leave some of them idle, which costs nothing.
        threads=most_threads(choice.algorithm, choice.protocol, graph, dict(setting.parameters).get("NTHREADS")),
        buffsize=buffsize,
    )


def _channels(cluster: Cluster, setting: Setting, message: Message, choice: Choice) -> int:
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    if setting.channels is None:
        factor = cluster.calibration.channels if cluster.calibration else 1.0
        return min(max(1, round(choice.channels * factor)), max_channels(cluster.version))
    nvls = choice.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE)
    own = graph.nvls_channels if nvls else graph.channels
    # Launches that force more (NCCL_MIN_CTAS) get more, as the times of a calibration show.
    most = min(setting.channels, max(own, cluster.calibration.most_channels if cluster.calibration else 0))
    return cell_channels(message.collective, choice.protocol, message.size_bytes, graph.ranks, most)

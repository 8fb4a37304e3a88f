"""The kernel that a simulated cluster runs for a message, and its time without noise.

The time is a function of the kernel and of the hardware alone: one algorithm, protocol and number of channels has one
time, whether NCCL chose it or a setting forced it.

More ports and more bandwidth never make a call longer. NCCL's graph search counts channels of quantised speeds, so
that a faster link may get fewer of them, or another algorithm, and be slower. The kernel of the next lower nominal
bandwidth or number of ports then stays. Likewise a forced algorithm and protocol takes the channels of
twice the size, or of two nodes instead of one, where NCCL's own would be slower than those there. The NCCL default of
algorithm and protocol is not corrected in this way: it may be faster at twice the size, as it is on real machines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.measure.simulated.link_model import LinkModel, build_link_model, scale_links
from ncclt.measure.simulated.transfer_time import SimulatedKernel, kernel_us, select_kernel

_LINKS_GBPS = (16.0, 25.0, 32.0, 50.0, 64.0, 100.0, 150.0, 200.0, 300.0, 400.0, 450.0, 538.0, 600.0, 900.0)
_PORTS_GBPS = (1.25, 3.125, 6.25, 12.5, 25.0, 50.0, 100.0)
"""Nominal bandwidths of NVLink, xGMI and PCIe, and of network ports, 1e9 bytes/s."""


def expected_us(cluster: Cluster, setting: Setting, message: Message) -> float:
    """Return the time of one call, µs.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    return kernel_us(running_kernel(cluster, setting, message), _link_model(cluster, message))


@lru_cache(maxsize=1 << 16)
def running_kernel(cluster: Cluster, setting: Setting, message: Message) -> SimulatedKernel:
    """Return the kernel that runs for a message under a setting.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    own = select_kernel(cluster, setting, message)
    if cluster.calibration or not message.collective.is_tunable:
        return own  # a calibration is fitted at the bandwidths that are there
    lower = [(where, message, running_kernel(where, setting, message)) for where in _next_lower(cluster)]
    found, limit_us = own, kernel_us(own, _link_model(cluster, message))
    for where, what, kernel in (*lower, *_harder(cluster, setting, message, own)):
        time_us = kernel_us(kernel, _link_model(where, what))
        if time_us < limit_us:
            found, limit_us = replace(kernel, size_bytes=message.size_bytes), time_us
    if found is own:
        return own
    # One algorithm, protocol and number of channels has one number of threads.
    forced = replace(setting, algorithm=found.algorithm, protocol=found.protocol, channels=found.channels)
    return replace(found, threads=select_kernel(cluster, forced, message).threads)


def _harder(
    cluster: Cluster, setting: Setting, message: Message, own: SimulatedKernel
) -> Iterator[tuple[Cluster, Message, SimulatedKernel]]:
    """Yield twice the message, and two nodes instead of one, where a forced pair gets other channels there."""
    reaching = setting.applied_to(message.collective, version=cluster.version)
    if reaching.algorithm is None or reaching.protocol is None:
        return
    larger = replace(message, size_bytes=2 * message.size_bytes)
    if select_kernel(cluster, setting, larger).channels != own.channels:
        yield cluster, larger, running_kernel(cluster, setting, larger)
    if cluster.nodes == 1 and cluster.nics_per_node and not message.group_size:
        two = replace(cluster, nodes=2)
        yield two, message, select_kernel(two, setting, message)


def _link_model(cluster: Cluster, message: Message) -> LinkModel:
    links = build_link_model(cluster, message.group_size, message.spans_nodes)
    return scale_links(links, cluster.calibration.factors) if cluster.calibration else links


def _next_lower(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with the next lower nominal bandwidth of its links or ports, and with a port fewer.

    Within several nodes the ports are the limit.
    """
    if cluster.nodes == 1:
        if link := _below(cluster.link_gbps, _LINKS_GBPS):
            yield replace(cluster, link_gbps=link)
        return
    if port := _below(cluster.nic_gbps, _PORTS_GBPS):
        yield replace(cluster, nic_gbps=port)
    if cluster.nics_per_node > 1:
        yield replace(cluster, nics_per_node=cluster.nics_per_node - 1)


def _below(gbps: float, nominal: Sequence[float]) -> float | None:
    at = bisect_left(nominal, gbps)
    return nominal[at - 1] if at else None

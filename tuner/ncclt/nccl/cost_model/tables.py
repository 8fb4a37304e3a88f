"""The constants of NCCL's cost model.

Source: NVIDIA/nccl 2.30.7 graph/tuning.cc (tables at the top of the file) and graph/search.cc (speed arrays).
Latencies are µs, bandwidths 1e9 bytes/s. Protocol order in every triple: LL, LL128, Simple.
"""

from __future__ import annotations

from typing import NamedTuple

from ncclt.core.algorithms import Algorithm, Protocol

PROTOCOL_ORDER = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
"""Index of a protocol in every triple of this module."""


class Latencies(NamedTuple):
    """Latencies of one algorithm, one for each protocol, µs.

    Attributes:
        base: kernel start (baseLatencies).
        nvlink: one hop over NVLink (hwLatencies[NCCL_HW_NVLINK]).
        pci: one hop within the node without NVLink (hwLatencies[NCCL_HW_PCI]).
        net: one hop between nodes (hwLatencies[NCCL_HW_NET]).
    """

    base: tuple[float, float, float]
    nvlink: tuple[float, float, float]
    pci: tuple[float, float, float]
    net: tuple[float, float, float]


LATENCIES_US = {
    Algorithm.TREE: Latencies((6.8, 14.0, 8.4), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)),
    Algorithm.RING: Latencies((6.6, 14.0, 8.4), (0.6, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 14.0)),
    Algorithm.COLLNET_DIRECT: Latencies((0.0, 0.0, 0.0), (0.0, 0.0, 3.7), (0.0, 0.0, 3.7), (0.0, 0.0, 31.0)),
    Algorithm.COLLNET_CHAIN: Latencies((0.0, 0.0, 0.0), (0.0, 0.0, 2.8), (0.0, 0.0, 2.8), (0.0, 0.0, 30.0)),
    Algorithm.NVLS: Latencies((0.0, 0.0, 0.0), (0.0, 0.0, 25.0), (0.0, 0.0, 0.0), (0.0, 0.0, 18.0)),
    Algorithm.NVLS_TREE: Latencies((0.0, 0.0, 0.0), (0.0, 0.0, 25.0), (0.0, 0.0, 0.0), (0.0, 0.0, 20.9)),
    Algorithm.PAT: Latencies((8.0, 8.0, 8.0), (0.0, 0.0, 4.0), (0.0, 0.0, 4.0), (0.0, 0.0, 14.0)),
}

LL_MAX_GBPS = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
"""Ceiling of LL (llMaxBws): GPU generation x (1, 2, more nodes)."""

RING_LL128_CHANNEL_GBPS = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
"""Ceiling of one ring channel with LL128 (perChMaxRingLL128Bws): generation x nodes."""

TREE_LL128_CHANNEL_GBPS = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
"""Ceiling of one tree channel with LL128 (perChMaxTreeLL128Bws)."""

TREE_CHANNEL_GBPS = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
"""Ceiling of one tree channel (perChMaxTreeBws)."""

NVLS_TREE_CHANNEL_GBPS = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
"""Ceiling of one NVLS tree channel (perChMaxNVLSTreeBws)."""

NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
"""Share of the link that NVLS gets, by generation (nvlsEfficiency)."""

TREE_CORRECTION: dict[Protocol, tuple[float, ...]] = {
    Protocol.LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    Protocol.LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    Protocol.SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip
"""Share of the modelled bandwidth that a tree reaches, by log2(bytes / 64) (treeCorrectionFactor)."""

SPEEDS_INTRA_GBPS = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
SPEEDS_INTRA_SM90_GBPS = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
SPEEDS_INTER_GBPS = (
    48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12,
)  # fmt: skip
SPEEDS_INTER_SM90_GBPS = (
    48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12,
)  # fmt: skip
"""Bandwidths that the graph search tries for one channel, in its order (graph/search.cc)."""

LINK_SHARE = {"nvswitch": 0.8, "nvlink": 0.8, "pcie": 0.75, "shm": 0.75}
"""NCCL's assumption about a link against its nominal rate: 20 of 25 GB/s per NVLink3, 24 of 32 GB/s for PCIe 4 x16."""

HOST_PATH_GBPS = {"amd": 16.0, "intel": 10.0, "arm": 6.0}
"""NCCL's assumption about the path between two sockets (AMD_BW, SKL_QPI_BW, ARM_BW in graph/topo.h)."""

THREAD_THRESHOLD_BYTES = {Protocol.LL: 8, Protocol.LL128: 8, Protocol.SIMPLE: 64}
"""Bytes per thread below which NCCL uses fewer channels, then fewer threads (threadThresholds)."""

CELL_BYTES = 32768
"""Traffic that the scheduler gives one channel at least (enqueue.cc, scheduleCollTasksToPlan)."""

"""Latencies and bandwidths of one communicator on the simulated hardware, and the constants that a calibration changes.

These are measured figures, deliberately not those of NCCL's cost model: the difference between the two is what a tuner
can gain. Where no measurement is public the cost model's figure is used and marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ncclt.core.algorithms import Protocol
from ncclt.core.cluster import Cluster
from ncclt.nccl.cost_model.topology import Topology, build_topology, nics_of

_LL, _LL128, _SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """One communicator on its hardware; every mapping is by protocol.

    Attributes:
        graph: its shape, and the channels that NCCL builds.
        base_us: starting the kernel.
        intra_us: one hop within a node.
        inter_us: one hop between nodes, before the cost of many channels.
        sync_us: passing on one more chunk, within a node.
        net_sync_us: the same between nodes.
        link_gbps: what one GPU sends within its node with ring/Simple when all channels are busy.
        channel_gbps: what one channel sends within the node.
        link_share: bandwidth of a protocol against Simple, within the node.
        tree_share: bandwidth of a tree against a ring, within the node.
        nvls_gbps: algorithm bandwidth of NVLS for all_reduce; 0 where there is none.
        net_gbps: what the ports of one node send together.
        net_channel_gbps: what one channel sends between nodes.
        net_share: bandwidth of a protocol against Simple, between nodes.
        proxy_us: what each further channel of a GPU adds to a hop between nodes (one progress thread serves all).
        crowding: share of bandwidth lost per channel above 8 where the host moves the data.
        launch_us: each further thread block; small, so that needless channels cost something (estimate).
        tree_channel: a tree channel against a ring channel within the node: NCCL's ceilings for A100 are 24 and 20 GB/s
            (up and down run side by side).
        net_tree_share: bandwidth of a tree against a ring, between nodes.
        tree_hop_share: hop of a tree with Simple within the node against that of a ring, which synchronises each slice.
        chain_share: share of the hops of a broadcast or reduce that calls in a row do not hide.
        nvls_us: starting NVLS.
        extra_us: what is timed beside the call, such as a computation.
    """

    graph: Topology
    base_us: dict[Protocol, float]
    intra_us: dict[Protocol, float]
    inter_us: dict[Protocol, float]
    sync_us: float
    net_sync_us: float
    link_gbps: float
    channel_gbps: dict[Protocol, float]
    link_share: dict[Protocol, float]
    tree_share: float
    nvls_gbps: float
    net_gbps: float
    net_channel_gbps: dict[Protocol, float]
    net_share: dict[Protocol, float]
    proxy_us: float
    crowding: float
    launch_us: float = 0.04
    tree_channel: float = 1.2
    net_tree_share: float = 1.0
    tree_hop_share: float = 1.0
    chain_share: float = 0.15
    nvls_us: float = 25.0
    extra_us: float = 0.0


_BASE_US = {
    # Over PCIe: intercepts of the L40S times at 2 and 4 ranks (CS244C data, 8 B: 9.2/15.5/21.2 and 17.3/23.1/39.1 µs).
    # Over NVLink: the cost model's for LL and Simple; LL128 starts 6.5 µs after LL as on L40S (MI355X: 7).
    False: {_LL: 5.2, _LL128: 11.7, _SIMPLE: 12.2},
    True: {_LL: 6.6, _LL128: 13.1, _SIMPLE: 8.4},
}
_HOP_US = {
    # Same source, by the steps between 2 and 4 ranks; NVLink as in the cost model, but a hop of LL128 costs hardly more
    # than one of LL, as on L40S (2 to 4 ranks) and on MI355X (tree against ring, LL against LL128).
    False: {_LL: 2.0, _LL128: 1.9, _SIMPLE: 4.5},
    True: {_LL: 0.7, _LL128: 0.8, _SIMPLE: 3.4},
}
_NET_HOP_US = {_LL: 5.0, _LL128: 5.5, _SIMPLE: 13.0}
"""InfiniBand: LL and Simple as in the cost model, LL128 by the comment above; a tree grows by 9.7-12 µs per doubling of
nodes (ABCI, Polaris, Alps), which is two hops of LL."""

_SHARE = {
    # (LL, LL128, tree) against ring/Simple at saturation. H100: waynehacking8 at 256 MiB; A100: reference figures of
    # the same kind; PCIe and SHM: L40S (CS244C) at 128 MiB (4 x RTX 4090: LL .31-.37). Volta is taken as Ampere.
    "hopper": (0.43, 0.92, 0.71),
    "ampere": (0.39, 0.74, 0.79),
    "pcie": (0.42, 0.62, 0.93),
    "shm": (0.40, 0.62, 0.93),
}
_LINK_SHARE = {"nvswitch": (0.79, 0.82), "nvlink": (0.80, 0.80), "pcie": (0.60, 0.60), "shm": (0.49, 0.49)}
"""Bus bandwidth of a saturated ring against the nominal link, up to Ampere and from Hopper on: DGX A100 231 of 300,
H100 367 of 450, two A100 on one host bridge 19.9 of 32, L40S and RTX 4090 15.7-19.4 of 32 GB/s."""

_CHANNEL_GBPS = (18.0, 20.0, 30.0, 40.0)
"""One channel of ring/Simple over NVLink, by generation: MI355X 17.7 GB/s, the others from NCCL's ceilings."""

_PCIE_SHARE = 0.85
"""Of the nominal PCIe bandwidth between a GPU and the ports: packet headers and flow control (estimate)."""

_PCIE_CHANNEL_SHARE = 0.55
"""One channel over PCIe against the link: RTX 4090 over SHM 14.8 GB/s with 1, 17.5 with 2, 19.4 with 8 channels."""

_CHANNEL_SHARE = {_LL: 0.36, _LL128: 0.75, _SIMPLE: 1.0}
"""One channel of a protocol against Simple; with LL an SM handles twice the bytes. LL so that 24 channels reach the 159
GB/s of LL on H100 (MI355X: .14 and .6)."""

_FABRIC = {
    # share of the port rate, extra µs per hop, µs per further channel, GB/s of one channel.
    # The first is from published curves (Alps, Polaris, p5, ABCI); EFA and TCP latencies from the same curves at 8 B.
    "none": (1.0, 0.0, 0.0, 1.0),
    "infiniband": (0.96, 0.0, 0.25, 24.0),
    "roce": (0.93, 1.0, 0.3, 24.0),
    "efa": (0.85, 25.0, 0.6, 8.0),
    "slingshot": (0.92, 5.0, 0.5, 20.0),
    "ethernet": (0.70, 25.0, 2.0, 2.5),
}
_NET_SHARE = {_LL: 0.42, _LL128: 0.935, _SIMPLE: 1.0}
"""Bandwidth between nodes against Simple: LL sends as many flags as data, LL128 8 bytes of flags in 128."""

_NET_CHANNEL_CEILING = {_LL: 2.0, _LL128: 1e3, _SIMPLE: 1e3}
"""1e9 bytes/s of one channel: a progress thread reads every flag of LL, so that 4 KiB on one channel add 9-12 µs to a
call over two nodes (Sophia, ABCI, and the two-node curve of the seed tables between 512 B and 4 KiB)."""

_NVLS_SHARE = 0.64
"""NVLS on H100 reaches link * 0.64 * (1 - 0.56 / n): bus 207, 359 and 443 GB/s at 2, 4 and 6 GPUs."""


_SYS_SHARE = 0.69
"""Over both sockets against the bridges of one: two A100 over PCIe, 53.9 and 77.8 ms for 1 GiB (paths NODE and SYS)."""

_BRIDGE_POWER = 1.7
"""GPUs behind one host bridge share it: from 2 to 4 an all_reduce takes five times as long, three by the bytes."""


@lru_cache(maxsize=1024)
def build_link_model(cluster: Cluster, group_size: int = 0, spans_nodes: bool = False) -> LinkModel:
    """Return the links of a communicator; arguments as in `nccl.cost_model.topology.build_topology`."""
    graph = build_topology(cluster, group_size, spans_nodes)
    nvlink, hopper = graph.nvlink, graph.generation >= 2
    kind = ("hopper" if hopper else "ampere") if nvlink else cluster.link_class
    ll, ll128, tree = _SHARE[kind]
    port_share, hop_extra, proxy, net_channel = _FABRIC[cluster.fabric]
    staged = 0.0 if cluster.gpudirect else 3.0
    channel = _CHANNEL_GBPS[graph.generation] if nvlink else _PCIE_CHANNEL_SHARE * cluster.link_gbps
    net_one = min(net_channel, cluster.nic_gbps or net_channel)
    ports = nics_of(cluster, graph.per_node)
    nvls = cluster.link_class == "nvswitch" and hopper
    return LinkModel(
        graph=graph,
        base_us=_BASE_US[nvlink],
        intra_us=_HOP_US[nvlink],
        inter_us={p: us + hop_extra + staged for p, us in _NET_HOP_US.items()},
        sync_us=0.5 if nvlink else 1.0,
        net_sync_us=2.0 + hop_extra / 5,
        link_gbps=_link_gbps(cluster, graph),
        channel_gbps={p: channel * (share if nvlink else max(share, 0.6)) for p, share in _CHANNEL_SHARE.items()},
        link_share={_LL: ll, _LL128: ll128, _SIMPLE: 1.0},
        tree_share=tree,
        nvls_gbps=cluster.link_gbps * _NVLS_SHARE * (1 - 0.56 / graph.per_node) if nvls else 0.0,
        # What leaves a GPU for the ports crosses its PCIe link once.
        net_gbps=min(
            ports * cluster.nic_gbps * port_share * (1.0 if cluster.gpudirect else 0.85),
            graph.per_node * cluster.pcie_gbps * _PCIE_SHARE,
        ),
        net_channel_gbps={p: min(net_one * share, _NET_CHANNEL_CEILING[p]) for p, share in _NET_SHARE.items()},
        net_share=_NET_SHARE,
        proxy_us=proxy,
        crowding=0.01 if cluster.link_class == "shm" else 0.02 if cluster.fabric == "ethernet" else 0.0,
    )


def _link_gbps(cluster: Cluster, graph: Topology) -> float:
    """Return the bandwidth from one GPU to its peers with all channels busy, 1e9 bytes/s."""
    share = _LINK_SHARE[cluster.link_class][graph.generation >= 2]
    gbps = cluster.link_gbps * share
    if cluster.gpu_path == "SYS" and not graph.nvlink:
        gbps *= _SYS_SHARE
    if cluster.link_class == "pcie" and cluster.gpu_path in ("PHB", "NODE", "SYS") and graph.per_node > 2:
        gbps *= (2 / graph.per_node) ** _BRIDGE_POWER
    if cluster.link_class == "nvlink" and cluster.gpus_per_node > 1:
        return max(gbps * (graph.per_node - 1) / (cluster.gpus_per_node - 1), gbps / cluster.gpus_per_node)
    if cluster.link_class == "shm":
        # All GPUs share the host's memory paths; four saturate them (8 x L40S lose more than half each).
        return gbps * min(1.0, 4 / graph.per_node)
    return gbps


_PROTOCOLS = ("ll", "ll128", "simple")

WITHIN: dict[str, float] = {
    **{f"base.{p}": 0.5 for p in _PROTOCOLS},
    **{f"hop.{p}": 0.7 for p in _PROTOCOLS},
    "hop.tree": 0.5,
    "chain": 1.0,
    "sync": 0.8,
    "link": 0.7,
    "link.ll": 0.4,
    "link.ll128": 0.4,
    "link.tree": 0.4,
    "channel": 0.7,
    "channel.ll": 0.5,
    "channel.ll128": 0.5,
    "channel.tree": 0.6,
    "launch": 1.5,
    "nvls": 0.4,
    "nvls_base": 0.5,
    "extra": 3.0,
}
"""Constants of one node -> how far they usually are from ours, as a standard deviation of the logarithm."""

BETWEEN: dict[str, float] = {
    **{f"net_hop.{p}": 0.7 for p in _PROTOCOLS},
    "net_sync": 1.0,
    "net": 0.7,
    "net.ll": 0.4,
    "net.ll128": 0.4,
    "net.tree": 0.6,
    "net_channel": 0.7,
    "net_channel.ll": 0.5,
    "net_channel.ll128": 0.5,
    "proxy": 1.5,
}
"""The same between nodes."""


EXTRA_US = 1.0
"""Unit of the constant `extra`."""


def scale_links(links: LinkModel, factors: Mapping[str, float]) -> LinkModel:
    """Return the links with constants multiplied by their factors; an absent one keeps its value."""
    if not factors:
        return links

    def each(values: Mapping[Protocol, float], name: str, common: float = 1.0) -> dict[Protocol, float]:
        return {p: value * common * factors.get(f"{name}.{p.value}", 1.0) for p, value in values.items()}

    of = factors.get
    return replace(
        links,
        base_us=each(links.base_us, "base"),
        intra_us=each(links.intra_us, "hop"),
        inter_us=each(links.inter_us, "net_hop"),
        sync_us=links.sync_us * of("sync", 1.0),
        net_sync_us=links.net_sync_us * of("net_sync", 1.0),
        link_gbps=links.link_gbps * of("link", 1.0),
        channel_gbps=each(links.channel_gbps, "channel", of("channel", 1.0)),
        link_share=each(links.link_share, "link"),
        tree_share=links.tree_share * of("link.tree", 1.0),
        tree_channel=links.tree_channel * of("channel.tree", 1.0),
        tree_hop_share=links.tree_hop_share * of("hop.tree", 1.0),
        chain_share=links.chain_share * of("chain", 1.0),
        extra_us=links.extra_us + EXTRA_US * of("extra", 0.0),
        nvls_gbps=links.nvls_gbps * of("nvls", 1.0),
        nvls_us=links.nvls_us * of("nvls_base", 1.0),
        net_gbps=links.net_gbps * of("net", 1.0),
        net_channel_gbps=each(links.net_channel_gbps, "net_channel", of("net_channel", 1.0)),
        net_share=each(links.net_share, "net"),
        net_tree_share=links.net_tree_share * of("net.tree", 1.0),
        proxy_us=links.proxy_us * of("proxy", 1.0),
        launch_us=links.launch_us * of("launch", 1.0),
    )

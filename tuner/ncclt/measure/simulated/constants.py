"""The free constants of the simulated hardware: what a calibration may change, and by how much it may want to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ncclt.core.algorithms import Protocol
from ncclt.measure.simulated.physics import Physics

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


def scaled(physics: Physics, factors: Mapping[str, float]) -> Physics:
    """Return the physics with constants multiplied by their factors; an absent one keeps its value."""
    if not factors:
        return physics

    def each(values: Mapping[Protocol, float], name: str, common: float = 1.0) -> dict[Protocol, float]:
        return {p: value * common * factors.get(f"{name}.{p.value}", 1.0) for p, value in values.items()}

    of = factors.get
    return replace(
        physics,
        base_us=each(physics.base_us, "base"),
        intra_us=each(physics.intra_us, "hop"),
        inter_us=each(physics.inter_us, "net_hop"),
        sync_us=physics.sync_us * of("sync", 1.0),
        net_sync_us=physics.net_sync_us * of("net_sync", 1.0),
        link_gbps=physics.link_gbps * of("link", 1.0),
        channel_gbps=each(physics.channel_gbps, "channel", of("channel", 1.0)),
        link_share=each(physics.link_share, "link"),
        tree_share=physics.tree_share * of("link.tree", 1.0),
        tree_channel=physics.tree_channel * of("channel.tree", 1.0),
        tree_hop_share=physics.tree_hop_share * of("hop.tree", 1.0),
        chain_share=physics.chain_share * of("chain", 1.0),
        extra_us=physics.extra_us + EXTRA_US * of("extra", 0.0),
        nvls_gbps=physics.nvls_gbps * of("nvls", 1.0),
        nvls_us=physics.nvls_us * of("nvls_base", 1.0),
        net_gbps=physics.net_gbps * of("net", 1.0),
        net_channel_gbps=each(physics.net_channel_gbps, "net_channel", of("net_channel", 1.0)),
        net_share=each(physics.net_share, "net"),
        net_tree_share=physics.net_tree_share * of("net.tree", 1.0),
        proxy_us=physics.proxy_us * of("proxy", 1.0),
        launch_us=physics.launch_us * of("launch", 1.0),
    )

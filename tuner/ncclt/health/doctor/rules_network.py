"""Rules about the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
from ncclt.health.doctor.matrix import NEAR_NIC
from ncclt.nccl.log.evidence import Evidence

_FAST_FABRICS = ("infiniband", "roce", "efa", "slingshot")
_PLUGIN_ADAPTERS = ("efa", "rdmap", "cxi", "hsn")
"""Prefixes of the names of EFA and Slingshot adapters in Linux."""

_NEAR = ("PIX", "PXB")
_NO_GPUDIRECT_HARDWARE = ("GB10",)
"""Models that cannot do it at all: their memory is the CPU's."""


@rule("NET001")
def _sockets_beside_fast_network(facts: Facts) -> Iterator[Observation]:
    fast = facts.fast_adapters()
    if not fast and facts.cluster and facts.cluster.fabric in _FAST_FABRICS and facts.cluster.nodes > 1:
        named = f"cluster {facts.cluster.name} says {facts.cluster.fabric}"
        fast = (Evidence(source="cluster", text=named),)
    if not fast or (facts.cluster and facts.cluster.fabric == "ethernet"):
        return
    used = _socket_lines(facts)
    switched = _switched_to_sockets(facts)
    if used:
        reason = f": {switched[0].text} asks for it" if switched else ""
        what = f"ranks talk over TCP sockets although there is a faster network{reason}"
        yield Observation(what=what, evidence=(used[0], *switched, *fast))
    elif switched and not facts.log.tells_starts and (facts.cluster is None or facts.cluster.nodes > 1):
        what = f"{switched[0].text} sends everything between nodes over TCP although there is a faster network"
        yield Observation(
            what=what, evidence=(*switched, *fast), fix="unset it, and see whether NCCL finds the network"
        )


def _socket_lines(facts: Facts) -> list[Evidence]:
    """Return lines that show data going over sockets; that they are merely loaded, as on one node, is harmless."""
    found = [c.evidence for s in facts.log.starts for c in s.connections if c.kind == "NET/Socket"]
    several = any((start.nodes or 1) > 1 for start in facts.log.starts)
    if not found and several:
        networks = [p.network for p in facts.log.processes if p.network]
        found = [said.evidence for said in networks if said.value.startswith("Socket")]
    return found


def _switched_to_sockets(facts: Facts) -> list[Evidence]:
    found = []
    named = [adapter.name for adapter in facts.adapters]
    # Where the network has its own plugin, NCCL_IB_DISABLE does not affect it.
    by_plugin = facts.cluster is not None and facts.cluster.fabric in ("efa", "slingshot")
    by_plugin = by_plugin or (bool(named) and all(name.startswith(_PLUGIN_ADAPTERS) for name in named))
    disable, net = facts.value("NCCL_IB_DISABLE"), facts.value("NCCL_NET")
    if disable and disable.value.strip() not in ("", "0") and not by_plugin:
        found.append(replace(disable.evidence, text=f"NCCL_IB_DISABLE={disable.value}"))
    if net and net.value.lower() == "socket":
        found.append(replace(net.evidence, text=f"NCCL_NET={net.value}"))
    return found


@rule("NET002")
def _gpudirect_off(facts: Facts) -> Iterator[Observation]:
    if any(model in name for name in facts.gpu_models for model in _NO_GPUDIRECT_HARDWARE):
        return
    refused = [line for enabled, line in facts.log.gpudirect if not enabled and " for HCA" in line.text]
    connections = [c for s in facts.log.starts for c in s.connections if c.kind.startswith("NET/")]
    staged = [c for c in connections if "Socket" not in c.kind]
    without = [c.evidence for c in staged if not c.kind.endswith("/GDRDMA")]
    near = _near_nics(facts)
    if refused and not (staged and not without):
        yield Observation(
            what="NCCL found the NICs unable to read GPU memory, so all data is copied through the CPU's memory",
            evidence=(refused[0], *without[:1]),
        )
    elif without and near:
        yield Observation(
            what=f"{len(without)} of {len(staged)} network connections go without GPUDirect although a NIC is near",
            evidence=(without[0], near),
        )


def _near_nics(facts: Facts) -> Evidence | None:
    """Return a sign that a NIC is near enough to a GPU for GPUDirect; None = there is none."""
    for matrix in facts.matrices:
        for gpu in matrix.gpus:
            for nic, link in matrix.nic_links(gpu)[:1]:
                if link.path <= NEAR_NIC:
                    return Evidence(source=matrix.source, text=f"GPU{gpu} reaches {nic} by {link.word}")
    for start in facts.log.starts:
        for graph in start.graphs:
            if graph.type_inter in _NEAR and (start.nodes or 1) > 1:
                return graph.evidence
    return None


@rule("NET003")
def _down_adapters(facts: Facts) -> Iterator[Observation]:
    down = [adapter for adapter in facts.adapters if not adapter.active]
    if down and len(down) < len(facts.adapters):
        names = ", ".join(adapter.name for adapter in down)
        yield Observation(
            what=f"the ports of {names} are down, {len(facts.adapters) - len(down)} others are up",
            evidence=(Evidence(source="/sys/class/infiniband", text=f"{names}: state is not ACTIVE"),),
        )


_VIRTUAL = re.compile(
    r"docker|br-|br\d|virbr|lxcbr|lxdbr|lxc|veth|cni|flannel|cali|cilium|kube|nerdctl|podman|tailscale|wg\d|tun\d|tap\d|"
    r"vmnet|vboxnet|zt"
)
"""Beginnings of the names of interfaces that are software: bridges, pairs and tunnels."""


@rule("NET004")
def _virtual_interface(facts: Facts) -> Iterator[Observation]:
    named = facts.value("NCCL_SOCKET_IFNAME")
    if named and not named.value.startswith("^"):
        names = [name for name in named.value.removeprefix("=").split(",") if name]
        if names and all(_VIRTUAL.match(name) for name in names):
            yield Observation(
                what=f"NCCL_SOCKET_IFNAME={named.value} names a virtual interface", evidence=(named.evidence,)
            )
            return
    one_node = {start.nodes for start in facts.log.starts if start.nodes} == {1}
    for role, word in (("Bootstrap", "ranks meet"), ("NET/Socket", "sockets run")):
        lines: dict[str, Evidence] = {}
        for process in facts.log.processes:
            for (where, interface), line in process.sockets.items():
                if where == role and _VIRTUAL.match(interface):
                    lines.setdefault(interface, line)
        if lines:
            yield Observation(
                what=f"{word} over a virtual interface: {', '.join(lines)}",
                evidence=tuple(lines.values()),
                severity=Severity.INFO if one_node else None,
            )


NETWORK_RULES = (
    _sockets_beside_fast_network,
    _gpudirect_off,
    _down_adapters,
    _virtual_interface,
)
"""About the network between nodes."""

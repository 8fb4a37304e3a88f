"""Rules about the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, observe, rule
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
    cluster, fast = facts.cluster, facts.fast_adapters()
    if not fast and cluster and cluster.fabric in _FAST_FABRICS and cluster.nodes > 1:
        fast = (Evidence(source="cluster", text=f"cluster {cluster.name} says {cluster.fabric}"),)
    if not fast or (cluster and cluster.fabric == "ethernet"):
        return
    used, switches = _find_socket_lines(facts), _find_switches_to_sockets(facts)
    if used:
        reason = f": {switches[0].text} asks for it" if switches else ""
        yield observe(
            f"ranks talk over TCP sockets although there is a faster network{reason}", used[0], *switches, *fast
        )
    elif switches and not facts.log.tells_starts and (cluster is None or cluster.nodes > 1):
        problem = f"{switches[0].text} sends everything between nodes over TCP although there is a faster network"
        yield observe(problem, *switches, *fast, fix="unset it, and see whether NCCL finds the network")


def _find_socket_lines(facts: Facts) -> list[Evidence]:
    """Return lines that show data going over sockets; that they are merely loaded, as on one node, is harmless."""
    lines = [connection.evidence for connection in facts.connections if connection.kind == "NET/Socket"]
    if not lines and facts.log.nodes > 1:
        networks = [process.network for process in facts.log.processes if process.network]
        lines = [network.evidence for network in networks if network.value.startswith("Socket")]
    return lines


def _find_switches_to_sockets(facts: Facts) -> list[Evidence]:
    adapters = [adapter.name for adapter in facts.adapters]
    # Where the network has its own plugin, NCCL_IB_DISABLE does not affect it.
    by_plugin = (facts.cluster is not None and facts.cluster.fabric in ("efa", "slingshot")) or (
        bool(adapters) and all(name.startswith(_PLUGIN_ADAPTERS) for name in adapters)
    )
    disable, net = facts.value("NCCL_IB_DISABLE"), facts.value("NCCL_NET")
    switches = [disable] if disable and disable.value.strip() not in ("", "0") and not by_plugin else []
    switches += [net] if net and net.value.lower() == "socket" else []
    return [replace(switch.evidence, text=f"{switch.name}={switch.value}") for switch in switches]


@rule("NET002")
def _gpudirect_off(facts: Facts) -> Iterator[Observation]:
    if any(model in name for name in facts.gpu_models for model in _NO_GPUDIRECT_HARDWARE):
        return
    refused = [line for enabled, line in facts.log.gpudirect if not enabled and " for HCA" in line.text]
    rdma = [c for c in facts.connections if c.kind.startswith("NET/") and "Socket" not in c.kind]
    staged = [connection.evidence for connection in rdma if not connection.kind.endswith("/GDRDMA")]
    if refused and (staged or not rdma):
        problem = "NCCL found the NICs unable to read GPU memory, so all data is copied through the CPU's memory"
        yield observe(problem, refused[0], *staged[:1])
    elif staged and (near := _find_near_nic(facts)):
        problem = f"{len(staged)} of {len(rdma)} network connections go without GPUDirect although a NIC is near"
        yield observe(problem, staged[0], near)


def _find_near_nic(facts: Facts) -> Evidence | None:
    """Return a sign that a NIC is near enough to a GPU for GPUDirect; None = there is none."""
    for matrix in facts.matrices:
        for gpu in matrix.gpus:
            for nic, link in matrix.nic_links(gpu)[:1]:
                if link.path <= NEAR_NIC:
                    return Evidence(source=matrix.source, text=f"GPU{gpu} reaches {nic} by {link.word}")
    return next((graph.evidence for _, graph in facts.graphs(between_nodes=True) if graph.type_inter in _NEAR), None)


@rule("NET003")
def _down_adapters(facts: Facts) -> Iterator[Observation]:
    names = ", ".join(adapter.name for adapter in facts.adapters if not adapter.active)
    active = sum(adapter.active for adapter in facts.adapters)
    if names and active:
        line = Evidence(source="/sys/class/infiniband", text=f"{names}: state is not ACTIVE")
        yield observe(f"the ports of {names} are down, {active} others are up", line)


_VIRTUAL = re.compile(
    r"docker|br-|br\d|virbr|lxcbr|lxdbr|lxc|veth|cni|flannel|cali|cilium|kube|nerdctl|podman|tailscale|wg\d|tun\d|tap\d|"
    r"vmnet|vboxnet|zt"
)
"""Beginnings of the names of interfaces that are software: bridges, pairs and tunnels."""


@rule("NET004")
def _virtual_interface(facts: Facts) -> Iterator[Observation]:
    variable = facts.value("NCCL_SOCKET_IFNAME")
    if variable and not variable.value.startswith("^"):
        names = [name for name in variable.value.removeprefix("=").split(",") if name]
        if names and all(_VIRTUAL.match(name) for name in names):
            yield observe(f"NCCL_SOCKET_IFNAME={variable.value} names a virtual interface", variable.evidence)
            return
    is_one_node = {start.nodes for start in facts.log.starts if start.nodes} == {1}
    for role, activity in (("Bootstrap", "ranks meet"), ("NET/Socket", "sockets run")):
        lines: dict[str, Evidence] = {}
        for process in facts.log.processes:
            for (use, interface), line in process.sockets.items():
                if use == role and _VIRTUAL.match(interface):
                    lines.setdefault(interface, line)
        if lines:
            problem = f"{activity} over a virtual interface: {', '.join(lines)}"
            yield observe(problem, *lines.values(), severity=Severity.INFO if is_one_node else None)

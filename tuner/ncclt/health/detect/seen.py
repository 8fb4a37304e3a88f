"""What each source shows of a cluster's fields: facts in, one row for each field and source out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.core.cluster_file import shown_gbps
from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_models import GPU_MODELS, GpuModel
from ncclt.health.doctor.link import Path
from ncclt.health.doctor.matrix import TopologyMatrix
from ncclt.health.doctor.nccl_topology import NcclTopology
from ncclt.nccl.log.facts import LogFacts

_PCIE_X16_GBPS = {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}
"""PCIe generation -> nominal 1e9 bytes/s of 16 lanes in one direction, as in the shipped clusters."""

_PROVIDERS = {"efa": "efa", "cxi": "slingshot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A value of a cluster's field, and what shows it.

    Attributes:
        rank: 0 = the nearest source; others count only where no nearer one shows the field.
    """

    field: str
    value: Any
    source: str
    rank: int = 0


def seen_gpus(facts: Facts) -> Iterator[Seen]:
    """Yield models, numbers of GPUs, driver and topology."""
    for report in facts.gpu_reports:
        for model in dict.fromkeys(gpu.model for gpu in report.gpus):
            yield Seen(field="gpu", value=_named(model), source=report.source)
        yield Seen(field="gpus_per_node", value=len(report.gpus), source=report.source)
        if report.driver:
            yield Seen(field="driver", value=report.driver, source=report.source)
    for matrix in facts.matrices:
        yield Seen(field="gpus_per_node", value=len(matrix.gpus), source=matrix.source)
        yield Seen(field="topology_hash", value=matrix.topology_hash(), source=matrix.source)
    for topology in facts.topologies:
        yield Seen(field="gpus_per_node", value=len(topology.gpus), source=topology.source, rank=1)
        for capability in sorted({gpu.compute_capability for gpu in topology.gpus} - {0}):
            yield Seen(field="compute_capability", value=capability, source=f"{topology.source}: sm")
    if facts.driver:
        yield Seen(field="driver", value=facts.driver, source="/proc/driver/nvidia/version")
    for model in facts.log.gpu_models:
        yield Seen(field="gpu", value=_named(model), source=_log(facts.log))


def seen_software(facts: Facts) -> Iterator[Seen]:
    """Yield NCCL's version, the CPU, and the size of a logged job."""
    log = facts.log
    for process in log.processes:
        if process.version is not None:
            yield Seen(field="nccl_version", value=process.version.value, source=process.version.evidence.source)
    if log.announced is not None:
        yield Seen(
            field="nccl_version",
            value=str(NcclVersion.parse(log.announced.value)),
            source=log.announced.evidence.source,
        )
    if facts.version is not None:
        yield Seen(field="nccl_version", value=str(facts.version), source="--nccl-version", rank=1)
    if log.cpu:
        yield Seen(field="cpu", value=log.cpu, source=_log(log))
    for topology in facts.topologies:
        if topology.cpu:
            yield Seen(field="cpu", value=topology.cpu, source=topology.source)
    if facts.cpu:
        yield Seen(field="cpu", value=facts.cpu, source="/proc/cpuinfo")
    nodes = max((start.nodes or 0 for start in log.starts), default=0)
    if nodes:
        ranks = max(start.ranks or 0 for start in log.starts if start.nodes == nodes)
        yield Seen(field="nodes", value=nodes, source=f"{_log(log)}: nNodes")
        if ranks:
            yield Seen(field="gpus_per_node", value=max(ranks // nodes, 1), source=f"{_log(log)}: ranks", rank=1)


def seen_links(facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[Seen]:
    """Yield link class and bandwidth out of one GPU, as far as they can be decided.

    Args:
        facts: of a node.
        model: of its GPUs; None = not known, so NVLinks have no bandwidth.
        gpu: name of the model.
    """
    for matrix in facts.matrices:
        yield from _links_of(matrix, facts, model, gpu)
    for topology in facts.topologies:
        yield from _links_of_topology(topology, model)
    log = facts.log
    switched = "NVS" in log.nvlink_ends or any(works for works, _ in log.multicast)
    kinds = log.transports()
    if switched or log.nvlink_ends:
        found = "nvswitch" if switched else "nvlink"
        yield Seen(field="link_class", value=found, source=f"{_log(log)}: {'NVSwitch' if switched else 'NVL'}")
    elif kinds.keys() == {"SHM"}:
        yield Seen(field="link_class", value="shm", source=f"{_log(log)}: via SHM")
    if switched and model and model.nvlinks:
        gbps = model.nvlinks * model.nvlink_gbps
        yield Seen(field="link_gbps", value=gbps, source=f"{model.nvlinks} NVLinks of {gpu} to NVSwitch", rank=1)


def _links_of(matrix: TopologyMatrix, facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[Seen]:
    lanes: dict[int, int] = defaultdict(int)
    peers: dict[int, set[int]] = defaultdict(set)
    for a, b, link in matrix.gpu_pairs():
        for one, other in ((a, b), (b, a)):
            lanes[one] += link.lanes
            if link.path is Path.NVLINK:
                peers[one].add(other)
    source = f"{matrix.source}: {', '.join(_words(matrix)) or 'one GPU'}"
    if not _joined(matrix.gpus, peers):
        gbps, board = _pcie_gbps(facts)
        if gbps:
            yield Seen(field="link_gbps", value=gbps, source=f"{board}, nominal", rank=1)
        kinds = facts.log.transports()
        if len(matrix.gpus) == 1 or any(kind.startswith("P2P") for kind in kinds):
            yield Seen(field="link_class", value="pcie", source=source)
        return
    least = min(lanes.values())
    if model and model.nvlinks:
        # More than a GPU has: all its lanes lead to a switch, which every peer shares.
        used = min(least, model.nvlinks)
        each = f"{used} NVLinks of {model.nvlink_gbps:g} GB/s, as known of {gpu}"
        yield Seen(field="link_gbps", value=used * model.nvlink_gbps, source=f"{matrix.source}: {each}")
        registered = any(state.fabric_state == "Completed" for report in facts.gpu_reports for state in report.gpus)
        if least > model.nvlinks or (registered and least == model.nvlinks):
            how = "" if least > model.nvlinks else ", fabric registered"
            yield Seen(field="link_class", value="nvswitch", source=f"{source}{how}")
        # All lanes of two GPUs may be a bridge or part of a larger NVSwitch node: undecidable, unless by the board.
        elif len(matrix.gpus) > 2 or least < model.nvlinks or model.is_bridged(gpu):
            yield Seen(field="link_class", value="nvlink", source=f"{source}, direct")


def _links_of_topology(topology: NcclTopology, model: GpuModel | None) -> Iterator[Seen]:
    gpu = topology.gpus[0]
    if not gpu.nvlinks:
        full = _PCIE_X16_GBPS.get(gpu.link.generation or 0)
        if full and gpu.link.width:
            source = f"{topology.source}: {gpu.link}, nominal"
            yield Seen(field="link_gbps", value=full * gpu.link.width / 16, source=source, rank=1)
        return
    kind = "nvswitch" if gpu.to_nvswitch else "nvlink"
    yield Seen(field="link_class", value=kind, source=f"{topology.source}: {gpu.nvlinks} NVLinks")
    speeds = {m.nvlink_gbps for m in GPU_MODELS if m.compute_capability == gpu.compute_capability and m.nvlink_gbps}
    each = model.nvlink_gbps if model else speeds.pop() if len(speeds) == 1 else 0.0
    if each:
        source = f"{topology.source}: {gpu.nvlinks} NVLinks of {each:g} GB/s, as known of sm {gpu.compute_capability}"
        yield Seen(field="link_gbps", value=gpu.nvlinks * each, source=source)


def _joined(gpus: Sequence[int], peers: dict[int, set[int]]) -> bool:
    """Return whether NVLinks alone carry a ring: all GPUs are joined, and none is at an end, save of a pair."""
    reached, queue = set(gpus[:1]), list(gpus[:1])
    while queue:
        more = peers[queue.pop()] - reached
        reached |= more
        queue += more
    return len(gpus) > 1 and reached == set(gpus) and min(len(peers[gpu]) for gpu in gpus) >= min(2, len(gpus) - 1)


def _words(matrix: TopologyMatrix) -> list[str]:
    """Return the words between GPUs, the nearest first."""
    links = {link.word: link for _, _, link in matrix.gpu_pairs()}
    return sorted(links, key=lambda word: (links[word].path, word))


def _pcie_gbps(facts: Facts) -> tuple[float | None, str]:
    for report in facts.gpu_reports:
        gpu = report.gpus[0]
        full = _PCIE_X16_GBPS.get(gpu.max_link_gen or 0)
        if full and gpu.max_link_width:
            board = f"{report.source}: PCIe generation {gpu.max_link_gen} x{gpu.max_link_width}"
            return full * gpu.max_link_width / 16, board
    return None, ""


def seen_network(facts: Facts) -> Iterator[Seen]:
    """Yield fabric, number and speed of the network ports, and whether they reach GPU memory."""
    by_source: dict[str, list[Adapter]] = defaultdict(list)
    for adapter in facts.adapters:
        if adapter.active:
            by_source[adapter.source].append(adapter)
    for source, adapters in by_source.items():
        yield from _seen_adapters(source, adapters)
    if by_source and facts.peer_memory:
        yield Seen(field="gpudirect", value=True, source="the module nvidia_peermem is loaded", rank=1)
    for topology in facts.topologies:
        if topology.nics:
            direct = any(nic.gpudirect for nic in topology.nics)
            yield Seen(field="gpudirect", value=direct, source=f"{topology.source}: gdr", rank=1)
    for matrix in facts.matrices:
        if matrix.nics:
            yield Seen(field="nics_per_node", value=len(matrix.nics), source=f"{matrix.source}: columns", rank=2)
    yield from _seen_log(facts.log)


def _seen_adapters(source: str, adapters: list[Adapter]) -> Iterator[Seen]:
    """Yield what the fastest kind of a node's ports shows: slower ones serve storage and administration."""
    kinds: dict[tuple[float, str], list[str]] = defaultdict(list)
    for adapter in adapters:
        kinds[adapter.gbps, adapter.fabric].append(adapter.name)
    (gbps, fabric), *slower = sorted(kinds, key=lambda kind: (kind[0], len(kinds[kind])), reverse=True)
    names = kinds[gbps, fabric]
    shown = f"{source}: {len(names)} x {shown_gbps(gbps)}, {_range(names)}"
    for kind in slower:
        shown += f"; not counted: {len(kinds[kind])} x {shown_gbps(kind[0])}, {_range(kinds[kind])}"
    if fabric:
        yield Seen(field="fabric", value=fabric, source=source)
    yield Seen(field="nics_per_node", value=len(names), source=shown, rank=1)
    if gbps:
        yield Seen(field="nic_gbps", value=gbps, source=source)


def _seen_log(log: LogFacts) -> Iterator[Seen]:
    by_host: dict[str, set[str]] = defaultdict(set)
    layers: set[str] = set()
    for process in log.processes:
        by_host[process.host] |= set(process.adapters)
        layers |= {Adapter(name="", link_layer=layer).fabric for layer in process.adapters.values()}
        if process.provider and (fabric := _PROVIDERS.get(process.provider.value.partition(";")[0])):
            source = f"{process.provider.evidence.source}: provider {process.provider.value}"
            yield Seen(field="fabric", value=fabric, source=source)
        several = any((start.nodes or 1) > 1 for start in log.starts)
        if several and process.network and process.network.value.startswith("Socket"):
            source = f"{process.network.evidence.source}: Using network Socket"
            yield Seen(field="fabric", value="ethernet", source=source)
    if len(layers) == 1 and (fabric := layers.pop()):
        yield Seen(field="fabric", value=fabric, source=f"{_log(log)}: NET/IB")
    for host, names in by_host.items():
        if names:
            source = f"{_log(log)}: {host or '?'} uses {_range(sorted(names))}"
            yield Seen(field="nics_per_node", value=len(names), source=source)
    if log.net_gbps:
        yield Seen(field="nic_gbps", value=log.net_gbps, source=f"{_log(log)}: + NET[{log.net_gbps:g}]")
    networks = [kind for kind in log.transports() if kind.startswith("NET/")]
    if networks:
        direct = any(kind.endswith("/GDRDMA") for kind in networks)
        yield Seen(field="gpudirect", value=direct, source=f"{_log(log)}: via {', '.join(networks)}")
    elif log.gpudirect:
        enabled = any(works for works, _ in log.gpudirect)
        yield Seen(field="gpudirect", value=enabled, source=f"{_log(log)}: GPU Direct RDMA", rank=1)


def _log(log: LogFacts) -> str:
    more = len(log.sources) - 1
    return f"{log.sources[0] if log.sources else 'log'}{f' and {more} more' if more > 0 else ''}"


def _range(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _named(model: str) -> str:
    return model.removeprefix("NVIDIA ").replace(" ", "-")

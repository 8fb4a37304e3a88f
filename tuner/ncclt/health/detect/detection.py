"""Detection of a cluster from facts: fields with their sources, settled where sources agree; nothing is guessed.

Fields that no source shows, or about which sources disagree, are listed and must be given.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import BANDWIDTHS, cluster_toml, format_gbps, parse_gbps
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.errors import InputError, UsageError
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_report import GPU_MODELS, GpuModel, gpu_model
from ncclt.health.doctor.matrix import Path, TopologyMatrix
from ncclt.health.doctor.nccl_topology import NcclTopology
from ncclt.nccl.log.facts import LogFacts

_PCIE_X16_GBPS = {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}
"""PCIe generation -> nominal 1e9 bytes/s of 16 lanes in one direction, as in the shipped clusters."""

_PROVIDERS = {"efa": "efa", "cxi": "slingshot"}


@dataclass(frozen=True, slots=True)
class FieldValue:
    """Value of a cluster's field with its source.

    Attributes:
        value: an empty text counts as not seen.
        rank: 0 = the nearest source; others count only where no nearer one shows the field.
    """

    field: str
    value: Any
    source: str
    rank: int = 0


def read_gpu_fields(facts: Facts) -> Iterator[FieldValue]:
    """Yield models, numbers of GPUs, driver and topology."""
    for report in facts.gpu_reports:
        for model in dict.fromkeys(gpu.model for gpu in report.gpus):
            yield FieldValue("gpu", _name_gpu(model), report.source)
        yield FieldValue("gpus_per_node", len(report.gpus), report.source)
        yield FieldValue("driver", report.driver, report.source)
    for matrix in facts.matrices:
        yield FieldValue("gpus_per_node", len(matrix.gpus), matrix.source)
        yield FieldValue("topology_hash", matrix.topology_hash(), matrix.source)
    for topology in facts.topologies:
        yield FieldValue("gpus_per_node", len(topology.gpus), topology.source, rank=1)
        for capability in sorted({gpu.compute_capability for gpu in topology.gpus} - {0}):
            yield FieldValue("compute_capability", capability, f"{topology.source}: sm")
    yield FieldValue("driver", facts.driver, "/proc/driver/nvidia/version")
    for model in facts.log.gpu_models:
        yield FieldValue("gpu", _name_gpu(model), _name_log(facts.log))


def read_software_fields(facts: Facts) -> Iterator[FieldValue]:
    """Yield NCCL's version, the CPU, and the size of a logged job."""
    log = facts.log
    for process in log.processes:
        if process.version is not None:
            yield FieldValue("nccl_version", process.version.value, process.version.evidence.source)
    if log.announced is not None:
        version = str(NcclVersion.parse(log.announced.value))
        yield FieldValue("nccl_version", version, log.announced.evidence.source)
    yield FieldValue("nccl_version", str(facts.version or ""), "--nccl-version", rank=1)
    yield FieldValue("cpu", log.cpu, _name_log(log))
    for topology in facts.topologies:
        yield FieldValue("cpu", topology.cpu, topology.source)
    yield FieldValue("cpu", facts.cpu, "/proc/cpuinfo")
    if nodes := log.nodes:
        ranks = max(start.ranks or 0 for start in log.starts if start.nodes == nodes)
        yield FieldValue("nodes", nodes, f"{_name_log(log)}: nNodes")
        if ranks:
            yield FieldValue("gpus_per_node", max(ranks // nodes, 1), f"{_name_log(log)}: ranks", rank=1)


def read_link_fields(facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[FieldValue]:
    """Yield link class and bandwidth out of one GPU, as far as they can be decided.

    Args:
        model: of its GPUs; None = not known, so NVLinks have no bandwidth.
    """
    for matrix in facts.matrices:
        yield from _read_matrix_links(matrix, facts, model, gpu)
    for topology in facts.topologies:
        yield from _read_topology_links(topology, model)
    log = facts.log
    is_switched = "NVS" in log.nvlink_ends or any(works for works, _ in log.multicast)
    if is_switched:
        yield FieldValue("link_class", "nvswitch", f"{_name_log(log)}: NVSwitch")
    elif log.nvlink_ends:
        yield FieldValue("link_class", "nvlink", f"{_name_log(log)}: NVL")
    elif log.transports().keys() == {"SHM"}:
        yield FieldValue("link_class", "shm", f"{_name_log(log)}: via SHM")
    if is_switched and model and model.nvlinks:
        source = f"{model.nvlinks} NVLinks of {gpu} to NVSwitch"
        yield FieldValue("link_gbps", model.nvlinks * model.nvlink_gbps, source, rank=1)


def _read_matrix_links(matrix: TopologyMatrix, facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[FieldValue]:
    lanes: Counter[int] = Counter()
    peers: dict[int, set[int]] = defaultdict(set)
    links = {}
    for first, second, link in matrix.gpu_pairs():
        links[link.word] = link
        for end, peer in ((first, second), (second, first)):
            lanes[end] += link.lanes
            if link.path is Path.NVLINK:
                peers[end].add(peer)
    words = sorted(links, key=lambda word: (links[word].path, word))  # the nearest first
    source = f"{matrix.source}: {', '.join(words) or 'one GPU'}"
    if not _is_joined(matrix.gpus, peers):
        yield from _read_pcie_gbps(facts)
        if len(matrix.gpus) == 1 or any(kind.startswith("P2P") for kind in facts.log.transports()):
            yield FieldValue("link_class", "pcie", source)
    elif model and model.nvlinks:
        least = min(lanes.values())
        # More than a GPU has: all its lanes lead to a switch, which every peer shares.
        used = min(least, model.nvlinks)
        figures = f"{used} NVLinks of {model.nvlink_gbps:g} GB/s, as known of {gpu}"
        yield FieldValue("link_gbps", used * model.nvlink_gbps, f"{matrix.source}: {figures}")
        is_registered = any(gpu.fabric_state == "Completed" for report in facts.gpu_reports for gpu in report.gpus)
        if least > model.nvlinks:
            yield FieldValue("link_class", "nvswitch", source)
        elif is_registered and least == model.nvlinks:
            yield FieldValue("link_class", "nvswitch", f"{source}, fabric registered")
        # All lanes of two GPUs may be a bridge or part of a larger NVSwitch node: undecidable, unless by the board.
        elif len(matrix.gpus) > 2 or least < model.nvlinks or model.is_bridged(gpu):
            yield FieldValue("link_class", "nvlink", f"{source}, direct")


def _read_topology_links(topology: NcclTopology, model: GpuModel | None) -> Iterator[FieldValue]:
    gpu = topology.gpus[0]
    if not gpu.nvlinks:
        x16_gbps = _PCIE_X16_GBPS.get(gpu.link.generation or 0)
        if x16_gbps and gpu.link.width:
            source = f"{topology.source}: {gpu.link}, nominal"
            yield FieldValue("link_gbps", x16_gbps * gpu.link.width / 16, source, rank=1)
        return
    kind = "nvswitch" if gpu.to_nvswitch else "nvlink"
    yield FieldValue("link_class", kind, f"{topology.source}: {gpu.nvlinks} NVLinks")
    speeds = {m.nvlink_gbps for m in GPU_MODELS if m.compute_capability == gpu.compute_capability and m.nvlink_gbps}
    nvlink_gbps = model.nvlink_gbps if model else speeds.pop() if len(speeds) == 1 else 0.0
    if nvlink_gbps:
        figures = f"{gpu.nvlinks} NVLinks of {nvlink_gbps:g} GB/s, as known of sm {gpu.compute_capability}"
        yield FieldValue("link_gbps", gpu.nvlinks * nvlink_gbps, f"{topology.source}: {figures}")


def _is_joined(gpus: Sequence[int], peers: Mapping[int, set[int]]) -> bool:
    """Return True if NVLinks alone carry a ring: all GPUs are connected, and none is an end, except of a pair."""
    reached, queue = set(gpus[:1]), list(gpus[:1])
    while queue:
        new = peers[queue.pop()] - reached
        reached |= new
        queue += new
    return len(gpus) > 1 and reached == set(gpus) and min(len(peers[gpu]) for gpu in gpus) >= min(2, len(gpus) - 1)


def _read_pcie_gbps(facts: Facts) -> Iterator[FieldValue]:
    for report in facts.gpu_reports:
        gpu = report.gpus[0]
        x16_gbps = _PCIE_X16_GBPS.get(gpu.max_link_gen or 0)
        if x16_gbps and gpu.max_link_width:
            source = f"{report.source}: PCIe generation {gpu.max_link_gen} x{gpu.max_link_width}, nominal"
            yield FieldValue("link_gbps", x16_gbps * gpu.max_link_width / 16, source, rank=1)
            return


def read_network_fields(facts: Facts) -> Iterator[FieldValue]:
    """Yield fabric, number and speed of the network ports, and whether they reach GPU memory."""
    by_source: dict[str, list[Adapter]] = defaultdict(list)
    for adapter in facts.adapters:
        if adapter.active:
            by_source[adapter.source].append(adapter)
    for source, adapters in by_source.items():
        yield from _read_adapter_fields(source, adapters)
    if by_source and facts.peer_memory:
        yield FieldValue("gpudirect", True, "the module nvidia_peermem is loaded", rank=1)
    for topology in facts.topologies:
        if topology.nics:
            direct = any(nic.gpudirect for nic in topology.nics)
            yield FieldValue("gpudirect", direct, f"{topology.source}: gdr", rank=1)
    for matrix in facts.matrices:
        if matrix.nics:
            yield FieldValue("nics_per_node", len(matrix.nics), f"{matrix.source}: columns", rank=2)
    yield from _read_log_fields(facts.log)


def _read_adapter_fields(source: str, adapters: list[Adapter]) -> Iterator[FieldValue]:
    """Yield the fields of a node's fastest kind of ports: slower ones serve storage and administration."""
    kinds: dict[tuple[float, str], list[str]] = defaultdict(list)
    for adapter in adapters:
        kinds[adapter.gbps, adapter.fabric].append(adapter.name)
    ranked = sorted(kinds, key=lambda kind: (kind[0], len(kinds[kind])), reverse=True)
    shown = [f"{len(kinds[kind])} x {format_gbps(kind[0])}, {_shorten(kinds[kind])}" for kind in ranked]
    (gbps, fabric), *_ = ranked
    yield FieldValue("fabric", fabric, source)
    ports = f"{source}: {'; not counted: '.join(shown)}"
    yield FieldValue("nics_per_node", len(kinds[gbps, fabric]), ports, rank=1)
    if gbps:
        yield FieldValue("nic_gbps", gbps, source)


def _read_log_fields(log: LogFacts) -> Iterator[FieldValue]:
    by_host: dict[str, set[str]] = defaultdict(set)
    layers: set[str] = set()
    has_several_nodes = log.nodes > 1
    for process in log.processes:
        by_host[process.host] |= set(process.adapters)
        layers |= {Adapter(name="", link_layer=layer).fabric for layer in process.adapters.values()}
        if provider := process.provider:
            fabric = _PROVIDERS.get(provider.value.partition(";")[0], "")
            yield FieldValue("fabric", fabric, f"{provider.evidence.source}: provider {provider.value}")
        if has_several_nodes and process.network and process.network.value.startswith("Socket"):
            yield FieldValue("fabric", "ethernet", f"{process.network.evidence.source}: Using network Socket")
    name = _name_log(log)
    if len(layers) == 1:
        yield FieldValue("fabric", layers.pop(), f"{name}: NET/IB")
    for host, adapters in by_host.items():
        if adapters:
            yield FieldValue("nics_per_node", len(adapters), f"{name}: {host or '?'} uses {_shorten(sorted(adapters))}")
    if log.net_gbps:
        yield FieldValue("nic_gbps", log.net_gbps, f"{name}: + NET[{log.net_gbps:g}]")
    networks = [kind for kind in log.transports() if kind.startswith("NET/")]
    if networks:
        direct = any(kind.endswith("/GDRDMA") for kind in networks)
        yield FieldValue("gpudirect", direct, f"{name}: via {', '.join(networks)}")
    elif log.gpudirect:
        direct = any(works for works, _ in log.gpudirect)
        yield FieldValue("gpudirect", direct, f"{name}: GPU Direct RDMA", rank=1)


def _name_log(log: LogFacts) -> str:
    further = len(log.sources) - 1
    return f"{log.sources[0] if log.sources else 'log'}{f' and {further} more' if further > 0 else ''}"


def _shorten(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _name_gpu(model: str) -> str:
    return model.removeprefix("NVIDIA ").replace(" ", "-")


ASKED = {
    "gpus_per_node": "GPUs of one node, for example 8",
    "gpu": "the model as `nvidia-smi -L` prints it, for example H100-80GB-HBM3; other fields follow from it",
    "compute_capability": "80 for A100, 89 for L40S, 90 for H100, 100 for B200: `nvidia-smi --query-gpu=compute_cap`",
    "link_class": "nvswitch, nvlink (direct or a bridge), pcie (NCCL logs `via P2P`), shm (NCCL logs `via SHM`)",
    "link_gbps": "from one GPU to its peers, one direction: '450 GB/s' for H100-SXM, '32 GB/s' for PCIe 4 x16",
    "fabric": "between nodes: infiniband, roce, efa, slingshot, ethernet, or none for a single node",
    "nics_per_node": "network ports of one node that NCCL uses, for example 8",
    "nic_gbps": "of one port, one direction: '400 Gb/s' or '50 GB/s'",
    "gpudirect": "true if NICs read GPU memory (NCCL logs GDRDMA), else false",
    "cpu": "intel, amd or arm",
    "nccl_version": 'that jobs load, for example 2.27.5: python -c "import torch; print(torch.cuda.nccl.version())"',
}
"""Field that must be known -> what to give, with unit and example."""

_OF_NETWORK = ("nics_per_node", "nic_gbps", "gpudirect")
_OF_MODEL = ("compute_capability", "link_class", "link_gbps")
"""Follow from the model of the GPU, the links where there are NVLinks; so they are not requested before it is given."""
_MAY_DIFFER = ("driver", "topology_hash")
"""Left empty where nodes differ, as an empty one matches any."""

_TOLERANCE = 0.1
"""Relative difference of bandwidths that are the same: NCCL rounds what it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Detected fields of a cluster.

    Attributes:
        name: of the cluster.
        fields: field -> value and source, in the order of the cluster's fields.
        missing: fields that must be given.
        contradictions: one sentence for each field about which sources or nodes disagree.
        notes: differences that do not matter for the cluster.
    """

    name: str
    fields: Mapping[str, FieldValue]
    missing: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]

    def cluster(self, command: str) -> Cluster:
        """Return the cluster.

        Raises:
            UsageError: fields are missing or contradictory; it names all of them, and the next command.
            InputError: the values do not fit together.
        """
        if self.missing:
            disputed = "".join(f"\n  sources disagree: {text}" for text in self.contradictions)
            required = "".join(f"\n  {field:<19} {ASKED.get(field, '')}".rstrip() for field in self.missing)
            options = "".join(f" --set {field}=..." for field in self.missing)
            number = len(self.missing)
            raise UsageError(
                f"could not detect {count_noun(number, 'field')} of {self.name}:{disputed}{required}",
                hint=f"give {'them' if number > 1 else 'it'}, or pass more files: {command}{options}",
            )
        by_source: dict[str, list[str]] = {}
        for row in self.fields.values():
            by_source.setdefault(row.source, []).append(row.field)
        cluster = Cluster(
            name=self.name,
            sources=tuple(f"{', '.join(names)}: {source}" for source, names in by_source.items()),
            **{field: row.value for field, row in self.fields.items()},
        )
        require_plausible_links(cluster)
        return cluster

    def toml(self, cluster: Cluster) -> str:
        """Return the cluster as TOML, with the source of each field."""
        return cluster_toml(cluster, {field: row.source for field, row in self.fields.items()})

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": 1,
            "name": self.name,
            "fields": [{"field": s.field, "value": s.value, "source": s.source} for s in self.fields.values()],
            "missing": [{"field": field, "give": ASKED.get(field, "")} for field in self.missing],
            "contradictions": list(self.contradictions),
            "notes": list(self.notes),
        }


def detect(nodes: Sequence[Facts], values: Mapping[str, str], *, name: str = "") -> Detection:
    """Detect the fields of a cluster from facts.

    Args:
        nodes: facts of each node, or of all saved files; the cluster has nodes of one kind.
        values: fields given by the user, as text; they override what was seen.
        name: of the cluster; empty = made of its GPUs.

    Raises:
        UsageError: a given field does not exist, or has an impossible value.
    """
    settled = {field: FieldValue(field, value, "--set") for field, value in _parse_fields(values).items()}
    disputes: dict[str, str] = {}
    parts = (read_gpu_fields, read_software_fields, read_network_fields)
    _settle([row for facts in nodes for part in parts for row in part(facts)], settled, disputes)
    gpu = str(settled["gpu"].value) if "gpu" in settled else ""
    model = gpu_model(gpu.replace("-", " ")) or gpu_model(gpu)
    rows = [row for facts in nodes for row in read_link_fields(facts, model, gpu)]
    if model:
        rows.append(FieldValue("compute_capability", model.compute_capability, f"known of {gpu}"))
    if model and model.arm:
        rows.append(FieldValue("cpu", "arm", f"known of {gpu}"))
    _settle(rows, settled, disputes)
    _settle_network(settled, disputes, nodes)
    notes = [f"{disputes.pop(field)}; it is left empty" for field in _MAY_DIFFER if field in disputes]
    required = [field for field in ASKED if field not in _OF_NETWORK or _has_network(settled)]
    if not gpu:
        has_nvlink = any(matrix.has_nvlink for facts in nodes for matrix in facts.matrices)
        required = [field for field in required if field not in (_OF_MODEL if has_nvlink else _OF_MODEL[:1])]
    if not name:
        gpus = str(settled["gpus_per_node"].value) if "gpus_per_node" in settled else ""
        name = re.sub(r"[^a-z0-9.]+", "-", f"{gpus}x-{gpu}".lower()).strip("-") if gpus and gpu else "my-cluster"
    return Detection(
        name=name,
        fields={field.name: settled[field.name] for field in fields(Cluster) if field.name in settled},
        missing=tuple(dict.fromkeys(field for field in (*required, *disputes) if field not in settled)),
        contradictions=tuple(disputes.values()),
        notes=tuple(notes),
    )


def _settle(rows: Sequence[FieldValue], settled: dict[str, FieldValue], disputes: dict[str, str]) -> None:
    """Add the fields on which the nearest sources agree to `settled`, and others with who says what to `disputes`."""
    rows = [row for row in rows if row.value != ""]
    for field in dict.fromkeys(row.field for row in rows if row.field not in settled):
        of_field = [row for row in rows if row.field == field]
        nearest = min(row.rank for row in of_field)
        sources: dict[Any, list[str]] = {}
        for row in of_field:
            if row.rank == nearest:
                equal = next((value for value in sources if _is_equal(value, row.value)), row.value)
                sources.setdefault(equal, []).append(row.source)
        if len(sources) == 1:
            ((value, names),) = sources.items()
            settled[field] = FieldValue(field, value, _list_sources(names))
        else:
            claims = ", ".join(f"{value} ({_list_sources(names)})" for value, names in sources.items())
            disputes[field] = f"{field} is {claims}"


def require_plausible_links(cluster: Cluster) -> None:
    """Refuse a bandwidth that the GPU's NVLinks cannot have: data sheets count both directions.

    Raises:
        InputError: with the figure that is most likely meant.
    """
    model = gpu_model(cluster.gpu.replace("-", " "))
    maximum_gbps = model.nvlinks * model.nvlink_gbps if model else 0.0
    if cluster.link_class in ("nvlink", "nvswitch") and 0 < maximum_gbps < cluster.link_gbps * (1 - _TOLERANCE):
        raise InputError(
            f"link_gbps = {cluster.link_gbps:g} GB/s: the NVLinks of one {cluster.gpu} carry {maximum_gbps:g} GB/s at "
            "most in one direction",
            hint=f"did you mean {min(cluster.link_gbps / 2, maximum_gbps):g} GB/s? data sheets add up both directions",
        )


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) <= _TOLERANCE * max(first, second)
    return bool(first == second)


def _list_sources(sources: list[str]) -> str:
    shown = list(dict.fromkeys(sources))
    return "; ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")


def _settle_network(settled: dict[str, FieldValue], disputes: dict[str, str], nodes: Sequence[Facts]) -> None:
    """Add the number of nodes, and a network where it can be known that there is none."""
    examined = sum(len(facts.matrices) or len(facts.topologies) for facts in nodes)
    settled.setdefault("nodes", FieldValue("nodes", max(examined, 1), "nodes that were looked at"))
    has_nics = any(facts.adapters or any(matrix.nics for matrix in facts.matrices) for facts in nodes)
    if "fabric" not in {*settled, *disputes} and examined and not has_nics and settled["nodes"].value == 1:
        settled["fabric"] = FieldValue("fabric", "none", "no network adapter beside the GPUs")
    if not _has_network(settled):
        for field, nothing in zip(_OF_NETWORK, (0, 0.0, False), strict=True):
            settled[field] = FieldValue(field, nothing, "no network")
            disputes.pop(field, None)


def _has_network(settled: Mapping[str, FieldValue]) -> bool:
    return "fabric" not in settled or settled["fabric"].value != "none"


def _parse_fields(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values, converted to the types of their fields."""
    kinds = {field.name: str(field.type) for field in fields(Cluster) if field.name not in ("name", "sources")}
    values: dict[str, Any] = {}
    for field, text in texts.items():
        if field not in kinds:
            raise UsageError(f"a cluster has no field {field!r}", hint=f"one of {', '.join(kinds)}")
        try:
            values[field] = parse_gbps(text, field) if field in BANDWIDTHS else _parse_value(kinds[field], text)
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from error
        except ValueError as error:
            raise UsageError(f"{field} cannot be {text!r}", hint=ASKED.get(field, "")) from error
    return values


def _parse_value(kind: str, text: str) -> Any:
    if text in ("", "...") or (kind == "bool" and text.lower() not in ("true", "false")):
        raise ValueError(text)
    return text.lower() == "true" if kind == "bool" else int(text) if kind == "int" else text

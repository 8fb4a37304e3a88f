"""Detection of a cluster from facts: fields with their sources, settled where sources agree; nothing is guessed.

Fields that no source shows, or about which sources disagree, are listed and must be given.
"""

from __future__ import annotations

import re
from collections import defaultdict
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldValue:
    """Value of a cluster's field with its source.

    Attributes:
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
            yield FieldValue(field="gpu", value=_named(model), source=report.source)
        yield FieldValue(field="gpus_per_node", value=len(report.gpus), source=report.source)
        if report.driver:
            yield FieldValue(field="driver", value=report.driver, source=report.source)
    for matrix in facts.matrices:
        yield FieldValue(field="gpus_per_node", value=len(matrix.gpus), source=matrix.source)
        yield FieldValue(field="topology_hash", value=matrix.topology_hash(), source=matrix.source)
    for topology in facts.topologies:
        yield FieldValue(field="gpus_per_node", value=len(topology.gpus), source=topology.source, rank=1)
        for capability in sorted({gpu.compute_capability for gpu in topology.gpus} - {0}):
            yield FieldValue(field="compute_capability", value=capability, source=f"{topology.source}: sm")
    if facts.driver:
        yield FieldValue(field="driver", value=facts.driver, source="/proc/driver/nvidia/version")
    for model in facts.log.gpu_models:
        yield FieldValue(field="gpu", value=_named(model), source=_log(facts.log))


def read_software_fields(facts: Facts) -> Iterator[FieldValue]:
    """Yield NCCL's version, the CPU, and the size of a logged job."""
    log = facts.log
    for process in log.processes:
        if process.version is not None:
            yield FieldValue(field="nccl_version", value=process.version.value, source=process.version.evidence.source)
    if log.announced is not None:
        yield FieldValue(
            field="nccl_version",
            value=str(NcclVersion.parse(log.announced.value)),
            source=log.announced.evidence.source,
        )
    if facts.version is not None:
        yield FieldValue(field="nccl_version", value=str(facts.version), source="--nccl-version", rank=1)
    if log.cpu:
        yield FieldValue(field="cpu", value=log.cpu, source=_log(log))
    for topology in facts.topologies:
        if topology.cpu:
            yield FieldValue(field="cpu", value=topology.cpu, source=topology.source)
    if facts.cpu:
        yield FieldValue(field="cpu", value=facts.cpu, source="/proc/cpuinfo")
    nodes = max((start.nodes or 0 for start in log.starts), default=0)
    if nodes:
        ranks = max(start.ranks or 0 for start in log.starts if start.nodes == nodes)
        yield FieldValue(field="nodes", value=nodes, source=f"{_log(log)}: nNodes")
        if ranks:
            yield FieldValue(field="gpus_per_node", value=max(ranks // nodes, 1), source=f"{_log(log)}: ranks", rank=1)


def read_link_fields(facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[FieldValue]:
    """Yield link class and bandwidth out of one GPU, as far as they can be decided.

    Args:
        model: of its GPUs; None = not known, so NVLinks have no bandwidth.
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
        yield FieldValue(field="link_class", value=found, source=f"{_log(log)}: {'NVSwitch' if switched else 'NVL'}")
    elif kinds.keys() == {"SHM"}:
        yield FieldValue(field="link_class", value="shm", source=f"{_log(log)}: via SHM")
    if switched and model and model.nvlinks:
        gbps = model.nvlinks * model.nvlink_gbps
        yield FieldValue(field="link_gbps", value=gbps, source=f"{model.nvlinks} NVLinks of {gpu} to NVSwitch", rank=1)


def _links_of(matrix: TopologyMatrix, facts: Facts, model: GpuModel | None, gpu: str) -> Iterator[FieldValue]:
    lanes: dict[int, int] = defaultdict(int)
    peers: dict[int, set[int]] = defaultdict(set)
    for a, b, link in matrix.gpu_pairs():
        for one, other in ((a, b), (b, a)):
            lanes[one] += link.lanes
            if link.path is Path.NVLINK:
                peers[one].add(other)
    links = {link.word: link for _, _, link in matrix.gpu_pairs()}
    words = sorted(links, key=lambda word: (links[word].path, word))  # the nearest first
    source = f"{matrix.source}: {', '.join(words) or 'one GPU'}"
    if not _joined(matrix.gpus, peers):
        gbps, board = _pcie_gbps(facts)
        if gbps:
            yield FieldValue(field="link_gbps", value=gbps, source=f"{board}, nominal", rank=1)
        kinds = facts.log.transports()
        if len(matrix.gpus) == 1 or any(kind.startswith("P2P") for kind in kinds):
            yield FieldValue(field="link_class", value="pcie", source=source)
        return
    least = min(lanes.values())
    if model and model.nvlinks:
        # More than a GPU has: all its lanes lead to a switch, which every peer shares.
        used = min(least, model.nvlinks)
        each = f"{used} NVLinks of {model.nvlink_gbps:g} GB/s, as known of {gpu}"
        yield FieldValue(field="link_gbps", value=used * model.nvlink_gbps, source=f"{matrix.source}: {each}")
        registered = any(state.fabric_state == "Completed" for report in facts.gpu_reports for state in report.gpus)
        if least > model.nvlinks or (registered and least == model.nvlinks):
            how = "" if least > model.nvlinks else ", fabric registered"
            yield FieldValue(field="link_class", value="nvswitch", source=f"{source}{how}")
        # All lanes of two GPUs may be a bridge or part of a larger NVSwitch node: undecidable, unless by the board.
        elif len(matrix.gpus) > 2 or least < model.nvlinks or model.is_bridged(gpu):
            yield FieldValue(field="link_class", value="nvlink", source=f"{source}, direct")


def _links_of_topology(topology: NcclTopology, model: GpuModel | None) -> Iterator[FieldValue]:
    gpu = topology.gpus[0]
    if not gpu.nvlinks:
        full = _PCIE_X16_GBPS.get(gpu.link.generation or 0)
        if full and gpu.link.width:
            source = f"{topology.source}: {gpu.link}, nominal"
            yield FieldValue(field="link_gbps", value=full * gpu.link.width / 16, source=source, rank=1)
        return
    kind = "nvswitch" if gpu.to_nvswitch else "nvlink"
    yield FieldValue(field="link_class", value=kind, source=f"{topology.source}: {gpu.nvlinks} NVLinks")
    speeds = {m.nvlink_gbps for m in GPU_MODELS if m.compute_capability == gpu.compute_capability and m.nvlink_gbps}
    each = model.nvlink_gbps if model else speeds.pop() if len(speeds) == 1 else 0.0
    if each:
        source = f"{topology.source}: {gpu.nvlinks} NVLinks of {each:g} GB/s, as known of sm {gpu.compute_capability}"
        yield FieldValue(field="link_gbps", value=gpu.nvlinks * each, source=source)


def _joined(gpus: Sequence[int], peers: dict[int, set[int]]) -> bool:
    """Return True if NVLinks alone carry a ring: all GPUs are connected, and none is an end, except of a pair."""
    reached, queue = set(gpus[:1]), list(gpus[:1])
    while queue:
        more = peers[queue.pop()] - reached
        reached |= more
        queue += more
    return len(gpus) > 1 and reached == set(gpus) and min(len(peers[gpu]) for gpu in gpus) >= min(2, len(gpus) - 1)


def _pcie_gbps(facts: Facts) -> tuple[float | None, str]:
    for report in facts.gpu_reports:
        gpu = report.gpus[0]
        full = _PCIE_X16_GBPS.get(gpu.max_link_gen or 0)
        if full and gpu.max_link_width:
            board = f"{report.source}: PCIe generation {gpu.max_link_gen} x{gpu.max_link_width}"
            return full * gpu.max_link_width / 16, board
    return None, ""


def read_network_fields(facts: Facts) -> Iterator[FieldValue]:
    """Yield fabric, number and speed of the network ports, and whether they reach GPU memory."""
    by_source: dict[str, list[Adapter]] = defaultdict(list)
    for adapter in facts.adapters:
        if adapter.active:
            by_source[adapter.source].append(adapter)
    for source, adapters in by_source.items():
        yield from _read_adapter_fields(source, adapters)
    if by_source and facts.peer_memory:
        yield FieldValue(field="gpudirect", value=True, source="the module nvidia_peermem is loaded", rank=1)
    for topology in facts.topologies:
        if topology.nics:
            direct = any(nic.gpudirect for nic in topology.nics)
            yield FieldValue(field="gpudirect", value=direct, source=f"{topology.source}: gdr", rank=1)
    for matrix in facts.matrices:
        if matrix.nics:
            yield FieldValue(field="nics_per_node", value=len(matrix.nics), source=f"{matrix.source}: columns", rank=2)
    yield from _read_log_fields(facts.log)


def _read_adapter_fields(source: str, adapters: list[Adapter]) -> Iterator[FieldValue]:
    """Yield the fields of a node's fastest kind of ports: slower ones serve storage and administration."""
    kinds: dict[tuple[float, str], list[str]] = defaultdict(list)
    for adapter in adapters:
        kinds[adapter.gbps, adapter.fabric].append(adapter.name)
    (gbps, fabric), *slower = sorted(kinds, key=lambda kind: (kind[0], len(kinds[kind])), reverse=True)
    names = kinds[gbps, fabric]
    shown = f"{source}: {len(names)} x {format_gbps(gbps)}, {_range(names)}"
    for kind in slower:
        shown += f"; not counted: {len(kinds[kind])} x {format_gbps(kind[0])}, {_range(kinds[kind])}"
    if fabric:
        yield FieldValue(field="fabric", value=fabric, source=source)
    yield FieldValue(field="nics_per_node", value=len(names), source=shown, rank=1)
    if gbps:
        yield FieldValue(field="nic_gbps", value=gbps, source=source)


def _read_log_fields(log: LogFacts) -> Iterator[FieldValue]:
    by_host: dict[str, set[str]] = defaultdict(set)
    layers: set[str] = set()
    for process in log.processes:
        by_host[process.host] |= set(process.adapters)
        layers |= {Adapter(name="", link_layer=layer).fabric for layer in process.adapters.values()}
        if process.provider and (fabric := _PROVIDERS.get(process.provider.value.partition(";")[0])):
            source = f"{process.provider.evidence.source}: provider {process.provider.value}"
            yield FieldValue(field="fabric", value=fabric, source=source)
        several = any((start.nodes or 1) > 1 for start in log.starts)
        if several and process.network and process.network.value.startswith("Socket"):
            source = f"{process.network.evidence.source}: Using network Socket"
            yield FieldValue(field="fabric", value="ethernet", source=source)
    if len(layers) == 1 and (fabric := layers.pop()):
        yield FieldValue(field="fabric", value=fabric, source=f"{_log(log)}: NET/IB")
    for host, names in by_host.items():
        if names:
            source = f"{_log(log)}: {host or '?'} uses {_range(sorted(names))}"
            yield FieldValue(field="nics_per_node", value=len(names), source=source)
    if log.net_gbps:
        yield FieldValue(field="nic_gbps", value=log.net_gbps, source=f"{_log(log)}: + NET[{log.net_gbps:g}]")
    networks = [kind for kind in log.transports() if kind.startswith("NET/")]
    if networks:
        direct = any(kind.endswith("/GDRDMA") for kind in networks)
        yield FieldValue(field="gpudirect", value=direct, source=f"{_log(log)}: via {', '.join(networks)}")
    elif log.gpudirect:
        enabled = any(works for works, _ in log.gpudirect)
        yield FieldValue(field="gpudirect", value=enabled, source=f"{_log(log)}: GPU Direct RDMA", rank=1)


def _log(log: LogFacts) -> str:
    more = len(log.sources) - 1
    return f"{log.sources[0] if log.sources else 'log'}{f' and {more} more' if more > 0 else ''}"


def _range(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _named(model: str) -> str:
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
        found: field -> value and source, in the order of the cluster's fields.
        missing: fields that must be given.
        contradictions: one sentence for each field about which sources or nodes disagree.
        notes: differences that do not matter for the cluster.
    """

    name: str
    found: Mapping[str, FieldValue]
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
            asked = "".join(f"\n  {field:<19} {ASKED.get(field, '')}".rstrip() for field in self.missing)
            options = "".join(f" --set {field}=..." for field in self.missing)
            number = len(self.missing)
            raise UsageError(
                f"could not detect {count_noun(number, 'field')} of {self.name}:{disputed}{asked}",
                hint=f"give {'them' if number > 1 else 'it'}, or pass more files: {command}{options}",
            )
        by_source: dict[str, list[str]] = {}
        for seen in self.found.values():
            by_source.setdefault(seen.source, []).append(seen.field)
        made = Cluster(
            name=self.name,
            sources=tuple(f"{', '.join(names)}: {source}" for source, names in by_source.items()),
            **{field: seen.value for field, seen in self.found.items()},
        )
        require_plausible_links(made)
        return made

    def toml(self, cluster: Cluster) -> str:
        """Return the cluster as TOML, with the source of each field."""
        return cluster_toml(cluster, {field: seen.source for field, seen in self.found.items()})

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": 1,
            "name": self.name,
            "fields": [{"field": s.field, "value": s.value, "source": s.source} for s in self.found.values()],
            "missing": [{"field": field, "give": ASKED.get(field, "")} for field in self.missing],
            "contradictions": list(self.contradictions),
            "notes": list(self.notes),
        }


def detect(nodes: Sequence[Facts], given: Mapping[str, str], *, name: str = "") -> Detection:
    """Detect the fields of a cluster from facts.

    Args:
        nodes: facts of each node, or of all saved files; the cluster has nodes of one kind.
        given: fields given by the user, as text; they override what was seen.
        name: of the cluster; empty = made of its GPUs.

    Raises:
        UsageError: a given field does not exist, or has an impossible value.
    """
    typed = {field: FieldValue(field=field, value=value, source="--set") for field, value in _typed(given).items()}
    found: dict[str, FieldValue] = dict(typed)
    disputes: dict[str, str] = {}

    def settle(rows: Sequence[FieldValue]) -> None:
        for field in dict.fromkeys(row.field for row in rows if row.field not in found):
            seen, dispute = _agreed([row for row in rows if row.field == field])
            if seen:
                found[field] = seen
            else:
                disputes[field] = dispute

    settle(
        [
            row
            for facts in nodes
            for part in (read_gpu_fields, read_software_fields, read_network_fields)
            for row in part(facts)
        ]
    )
    if "gpu" in found:
        gpu = str(found["gpu"].value)
        model = gpu_model(gpu.replace("-", " ")) or gpu_model(gpu)
        rows = [row for facts in nodes for row in read_link_fields(facts, model, gpu)]
        if model:
            rows.append(
                FieldValue(field="compute_capability", value=model.compute_capability, source=f"known of {gpu}")
            )
        if model and model.arm:
            rows.append(FieldValue(field="cpu", value="arm", source=f"known of {gpu}"))
        settle(rows)
    else:
        settle([row for facts in nodes for row in read_link_fields(facts, None, "")])
    _settle_network(found, disputes, nodes)
    notes = [f"{disputes.pop(field)}; it is left empty" for field in _MAY_DIFFER if field in disputes]
    needed = [field for field in ASKED if field not in _OF_NETWORK or _is_network(found)]
    if "gpu" not in found:
        wired = any(matrix.has_nvlink for facts in nodes for matrix in facts.matrices)
        needed = [field for field in needed if field not in (_OF_MODEL if wired else _OF_MODEL[:1])]
    missing = [field for field in (*needed, *disputes) if field not in found]
    if not name:
        gpus, gpu = (str(found[field].value) if field in found else "" for field in ("gpus_per_node", "gpu"))
        name = re.sub(r"[^a-z0-9.]+", "-", f"{gpus}x-{gpu}".lower()).strip("-") if gpus and gpu else "my-cluster"
    order = [field.name for field in fields(Cluster) if field.name in found]
    return Detection(
        name=name,
        found={field: found[field] for field in order},
        missing=tuple(dict.fromkeys(missing)),
        contradictions=tuple(disputes.values()),
        notes=tuple(notes),
    )


def require_plausible_links(cluster: Cluster) -> None:
    """Refuse a bandwidth that the GPU's NVLinks cannot have: data sheets count both directions.

    Raises:
        InputError: with the figure that is most likely meant.
    """
    model = gpu_model(cluster.gpu.replace("-", " "))
    most = model.nvlinks * model.nvlink_gbps if model else 0.0
    if cluster.link_class in ("nvlink", "nvswitch") and 0 < most < cluster.link_gbps * (1 - _TOLERANCE):
        raise InputError(
            f"link_gbps = {cluster.link_gbps:g} GB/s: the NVLinks of one {cluster.gpu} carry {most:g} GB/s at most in "
            "one direction",
            hint=f"did you mean {min(cluster.link_gbps / 2, most):g} GB/s? data sheets add up both directions",
        )


def _agreed(rows: list[FieldValue]) -> tuple[FieldValue | None, str]:
    """Return the value on which the nearest sources agree; None and who says what, if they do not."""
    nearest = [row for row in rows if row.rank == min(one.rank for one in rows)]
    sources: dict[Any, list[str]] = {}
    for row in nearest:
        same = next((value for value in sources if _same(value, row.value)), row.value)
        sources.setdefault(same, []).append(row.source)
    if len(sources) == 1:
        ((value, shown),) = sources.items()
        return FieldValue(field=rows[0].field, value=value, source=_some(shown)), ""
    said = ", ".join(f"{value} ({_some(shown)})" for value, shown in sources.items())
    return None, f"{rows[0].field} is {said}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _TOLERANCE * max(one, other)
    return bool(one == other)


def _some(sources: list[str]) -> str:
    shown = list(dict.fromkeys(sources))
    return "; ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")


def _settle_network(found: dict[str, FieldValue], disputes: dict[str, str], nodes: Sequence[Facts]) -> None:
    """Add the number of nodes, and a network where it can be known that there is none."""
    looked = sum(len(facts.matrices) or len(facts.topologies) for facts in nodes)
    found.setdefault("nodes", FieldValue(field="nodes", value=max(looked, 1), source="nodes that were looked at"))
    listed = any(matrix.nics for facts in nodes for matrix in facts.matrices) or any(facts.adapters for facts in nodes)
    if "fabric" not in {*found, *disputes} and looked and not listed and found["nodes"].value == 1:
        found["fabric"] = FieldValue(field="fabric", value="none", source="no network adapter beside the GPUs")
    if not _is_network(found):
        for field, nothing in zip(_OF_NETWORK, (0, 0.0, False), strict=True):
            found[field] = FieldValue(field=field, value=nothing, source="no network")
            disputes.pop(field, None)


def _is_network(found: Mapping[str, FieldValue]) -> bool:
    return "fabric" not in found or found["fabric"].value != "none"


def _typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values, converted to the types of their fields."""
    kinds = {field.name: str(field.type) for field in fields(Cluster) if field.name not in ("name", "sources")}
    typed: dict[str, Any] = {}
    for field, text in given.items():
        if field not in kinds:
            raise UsageError(f"a cluster has no field {field!r}", hint=f"one of {', '.join(kinds)}")
        try:
            typed[field] = parse_gbps(text, field) if field in BANDWIDTHS else _value(kinds[field], text)
        except InputError as error:
            raise UsageError(error.message, hint=error.hint) from error
        except ValueError as error:
            raise UsageError(f"{field} cannot be {text!r}", hint=ASKED.get(field, "")) from error
    return typed


def _value(kind: str, text: str) -> Any:
    if text in ("", "..."):
        raise ValueError(text)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return {"int": int}.get(kind, str)(text)

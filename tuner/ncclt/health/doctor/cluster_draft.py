"""A cluster drafted from facts: what was seen is used; the rest must be given and is never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_models import GpuModel, gpu_model
from ncclt.health.doctor.link import Path

_PCIE_X16_GBPS = {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}
"""PCIe generation -> nominal 1e9 bytes/s of 16 lanes in one direction, as in the shipped clusters."""

_NEEDED = ("gpus_per_node", "gpu", "compute_capability", "link_class", "link_gbps", "fabric", "cpu", "nccl_version")
_PROVIDERS = {"efa": "efa", "cxi": "slingshot"}
_LAYERS = {"infiniband": "infiniband", "ib": "infiniband", "ethernet": "roce", "roce": "roce"}


def draft_cluster(name: str, facts: Facts, given: Mapping[str, str]) -> Cluster:
    """Return the cluster that facts describe.

    Args:
        name: of the cluster.
        facts: of one node or of a job.
        given: fields given by the user, as text; they override the facts.

    Raises:
        UsageError: required fields were neither seen nor given; it names all of them.
        InputError: a given value is invalid.
    """
    seen: dict[str, Any] = {k: v for k, v in _seen(facts, given).items() if v not in (None, "")}
    values = {**seen, **_typed(given)}
    unknown = [field for field in _NEEDED if field not in values]
    if values.get("fabric", "none") != "none":
        unknown += [f for f in ("nics_per_node", "nic_gbps", "gpudirect") if f not in values]
    if unknown:
        options = " ".join(f"--set {field}=..." for field in unknown)
        raise UsageError(
            f"cluster {name} cannot be made from this: {', '.join(unknown)} cannot be seen here",
            hint=f"set them ({options}), or give more sources; `ncclt cluster show leonardo` shows an example",
        )
    sources = [*(m.source for m in facts.matrices), *(r.source for r in facts.gpu_reports), *facts.log.sources]
    return Cluster(name=name, sources=tuple(f"ncclt doctor: {source}" for source in sources), **values)


def _typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values, converted to the types of their fields."""
    kinds = {field.name: str(field.type) for field in fields(Cluster) if field.name not in ("name", "sources")}
    typed: dict[str, Any] = {}
    for field, text in given.items():
        if field not in kinds:
            raise UsageError(f"a cluster has no field {field!r}", hint=f"one of {', '.join(kinds)}")
        try:
            typed[field] = _value(kinds[field], text)
        except ValueError as error:
            raise UsageError(f"{field} cannot be {text!r}", hint=f"it is of type {kinds[field]}") from error
    return typed


def _value(kind: str, text: str) -> Any:
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return {"int": int, "float": float}.get(kind, str)(text)


def _seen(facts: Facts, given: Mapping[str, str]) -> dict[str, Any]:
    matrix = facts.matrices[0] if facts.matrices else None
    # A matrix does not name the model, but the lanes of a known model distinguish a switch from direct links.
    model_name = given.get("gpu") or _one_model(facts)
    model = gpu_model(model_name) if model_name else None
    report_gpus = len(facts.gpu_reports[0].gpus) if facts.gpu_reports else None
    link_class, link_gbps = _links(facts, model)
    return {
        "nodes": max((start.nodes or 0 for start in facts.log.starts), default=0) or 1,
        "gpus_per_node": len(matrix.gpus) if matrix else report_gpus,
        "gpu": model_name.removeprefix("NVIDIA ").replace(" ", "-"),
        "compute_capability": model.compute_capability if model else None,
        "link_class": link_class,
        "link_gbps": link_gbps,
        "cpu": facts.log.cpu or facts.cpu,
        "nccl_version": str(facts.nccl) if facts.nccl else None,
        "topology_hash": matrix.topology_hash() if matrix else None,
        "driver": facts.nvidia_driver,
        **_network(facts),
    }


def _one_model(facts: Facts) -> str:
    names = {gpu.model for report in facts.gpu_reports for gpu in report.gpus} or set(facts.log.gpu_models)
    return names.pop() if len(names) == 1 else ""


def _links(facts: Facts, model: GpuModel | None) -> tuple[str | None, float | None]:
    """Return link class and bandwidth out of one GPU; None where not known."""
    if not facts.matrices:
        return None, None
    links = [link for _, _, link in facts.matrices[0].gpu_pairs()]
    first = facts.matrices[0].gpus[0]
    if links and all(link.path is Path.NVLINK for link in links):
        if model is None or not model.nvlinks:
            return None, None
        lanes = sum(link.lanes for a, b, link in facts.matrices[0].gpu_pairs() if first in (a, b))
        if lanes > model.nvlinks:  # more than a GPU has: its lanes are shared by all peers, through a switch
            return "nvswitch", model.nvlinks * model.nvlink_gbps
        # All lanes of two GPUs may be a bridge or part of a larger NVSwitch node: undecidable.
        direct = len(facts.matrices[0].gpus) > 2 or lanes < model.nvlinks
        return ("nvlink" if direct else None), lanes * model.nvlink_gbps
    kinds = facts.log.transports()
    if "SHM" in kinds and not any(kind.startswith("P2P") for kind in kinds):
        return "shm", _pcie_gbps(facts)
    peer_to_peer = len(facts.matrices[0].gpus) == 1 or any(kind.startswith("P2P") for kind in kinds)
    return ("pcie" if peer_to_peer else None), _pcie_gbps(facts)


def _pcie_gbps(facts: Facts) -> float | None:
    for report in facts.gpu_reports:
        gpu = report.gpus[0]
        full = _PCIE_X16_GBPS.get(gpu.max_link_gen or 0)
        if full and gpu.max_link_width:
            return full * gpu.max_link_width / 16
    return None


def _network(facts: Facts) -> dict[str, Any]:
    """Return what is known of the network; an empty fabric = not known."""
    adapters = [adapter for adapter in facts.adapters if adapter.active]
    logged = max((process.adapters for process in facts.log.processes), key=len, default={})
    listed = len(facts.matrices[0].nics) if facts.matrices else 0
    if not adapters and not logged and not listed and facts.matrices:
        return {"fabric": "none", "nics_per_node": 0, "nic_gbps": 0.0, "gpudirect": False}
    layers = {adapter.link_layer.lower() for adapter in adapters} | {layer.lower() for layer in logged.values()}
    provider = next((p.provider.value.partition(";")[0] for p in facts.log.processes if p.provider), "")
    kinds = facts.log.transports()
    networks = [kind for kind in kinds if kind.startswith("NET/")]
    return {
        "fabric": _PROVIDERS.get(provider) or (_LAYERS.get(layers.pop()) if len(layers) == 1 else None),
        "nics_per_node": len(logged) or len(adapters) or listed or None,
        "nic_gbps": facts.log.net_gbps or max((adapter.gbps for adapter in adapters), default=0.0) or None,
        "gpudirect": any(kind.endswith("/GDRDMA") for kind in networks) if networks else None,
    }

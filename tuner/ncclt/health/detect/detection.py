"""A cluster from what was seen: agreed values are used, the rest is named and must be given, and nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import BANDWIDTHS, cluster_toml, gbps_of
from ncclt.errors import InputError, UsageError
from ncclt.health.detect.seen import Seen, seen_gpus, seen_links, seen_network, seen_software
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_models import gpu_model

ASKED = {
    "gpus_per_node": "GPUs of one node, for example 8",
    "gpu": "the model as `nvidia-smi -L` names it, for example H100-80GB-HBM3; other figures follow from it",
    "compute_capability": "80 for A100, 89 for L40S, 90 for H100, 100 for B200: `nvidia-smi --query-gpu=compute_cap`",
    "link_class": "nvswitch, nvlink (direct or a bridge), pcie (NCCL logs `via P2P`), shm (NCCL logs `via SHM`)",
    "link_gbps": "out of one GPU towards its peers in one direction: '450 GB/s' for H100-SXM, '32 GB/s' for PCIe 4 x16",
    "fabric": "between nodes: infiniband, roce, efa, slingshot, ethernet, or none for a single node",
    "nics_per_node": "network ports of one node that NCCL uses, for example 8",
    "nic_gbps": "of one port in one direction: '400 Gb/s' or '50 GB/s'",
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
    """What was found out about a cluster.

    Attributes:
        name: of the cluster.
        found: field -> value and source, in the order of the cluster's fields.
        missing: fields that must be given.
        contradictions: one sentence for each field about which sources or nodes disagree.
        notes: differences that do not matter for the cluster.
    """

    name: str
    found: Mapping[str, Seen]
    missing: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]

    def cluster(self, command: str) -> Cluster:
        """Return the cluster.

        Args:
            command: to repeat with the missing fields.

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
                f"{number} field{'s' * (number > 1)} of {self.name} cannot be seen here:{disputed}{asked}",
                hint=f"give {'them' if number > 1 else 'it'}, or more sources: {command}{options}",
            )
        made = Cluster(
            name=self.name, sources=self._sources(), **{field: seen.value for field, seen in self.found.items()}
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

    def _sources(self) -> tuple[str, ...]:
        by_source: dict[str, list[str]] = {}
        for seen in self.found.values():
            by_source.setdefault(seen.source, []).append(seen.field)
        return tuple(f"{', '.join(names)}: {source}" for source, names in by_source.items())


def detect(nodes: Sequence[Facts], given: Mapping[str, str], *, name: str = "") -> Detection:
    """Return what facts show of a cluster.

    Args:
        nodes: facts of each node, or of all saved files; the cluster has nodes of one kind.
        given: fields given by the user, as text; they override what was seen.
        name: of the cluster; empty = made of its GPUs.

    Raises:
        UsageError: a given field does not exist, or has an impossible value.
    """
    typed = {field: Seen(field=field, value=value, source="--set") for field, value in _typed(given).items()}
    found: dict[str, Seen] = dict(typed)
    disputes: dict[str, str] = {}

    def settle(rows: Sequence[Seen]) -> None:
        for field in dict.fromkeys(row.field for row in rows if row.field not in found):
            seen, dispute = _agreed([row for row in rows if row.field == field])
            if seen:
                found[field] = seen
            else:
                disputes[field] = dispute

    settle([row for facts in nodes for part in (seen_gpus, seen_software, seen_network) for row in part(facts)])
    if "gpu" in found:
        gpu = str(found["gpu"].value)
        model = gpu_model(gpu.replace("-", " ")) or gpu_model(gpu)
        rows = [row for facts in nodes for row in seen_links(facts, model, gpu)]
        if model:
            rows.append(Seen(field="compute_capability", value=model.compute_capability, source=f"known of {gpu}"))
        if model and model.arm:
            rows.append(Seen(field="cpu", value="arm", source=f"known of {gpu}"))
        settle(rows)
    else:
        settle([row for facts in nodes for row in seen_links(facts, None, "")])
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


def _agreed(rows: list[Seen]) -> tuple[Seen | None, str]:
    """Return the value on which the nearest sources agree; None and who says what, if they do not."""
    nearest = [row for row in rows if row.rank == min(one.rank for one in rows)]
    sources: dict[Any, list[str]] = {}
    for row in nearest:
        same = next((value for value in sources if _same(value, row.value)), row.value)
        sources.setdefault(same, []).append(row.source)
    if len(sources) == 1:
        ((value, shown),) = sources.items()
        return Seen(field=rows[0].field, value=value, source=_some(shown)), ""
    said = ", ".join(f"{value} ({_some(shown)})" for value, shown in sources.items())
    return None, f"{rows[0].field} is {said}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _TOLERANCE * max(one, other)
    return bool(one == other)


def _some(sources: list[str]) -> str:
    shown = list(dict.fromkeys(sources))
    return "; ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")


def _settle_network(found: dict[str, Seen], disputes: dict[str, str], nodes: Sequence[Facts]) -> None:
    """Add the number of nodes, and a network where it can be known that there is none."""
    looked = sum(len(facts.matrices) or len(facts.topologies) for facts in nodes)
    found.setdefault("nodes", Seen(field="nodes", value=max(looked, 1), source="nodes that were looked at"))
    listed = any(matrix.nics for facts in nodes for matrix in facts.matrices) or any(facts.adapters for facts in nodes)
    if "fabric" not in {*found, *disputes} and looked and not listed and found["nodes"].value == 1:
        found["fabric"] = Seen(field="fabric", value="none", source="no network adapter beside the GPUs")
    if not _is_network(found):
        for field, nothing in zip(_OF_NETWORK, (0, 0.0, False), strict=True):
            found[field] = Seen(field=field, value=nothing, source="no network")
            disputes.pop(field, None)


def _is_network(found: Mapping[str, Seen]) -> bool:
    return "fabric" not in found or found["fabric"].value != "none"


def _typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values, converted to the types of their fields."""
    kinds = {field.name: str(field.type) for field in fields(Cluster) if field.name not in ("name", "sources")}
    typed: dict[str, Any] = {}
    for field, text in given.items():
        if field not in kinds:
            raise UsageError(f"a cluster has no field {field!r}", hint=f"one of {', '.join(kinds)}")
        try:
            typed[field] = gbps_of(text, field) if field in BANDWIDTHS else _value(kinds[field], text)
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

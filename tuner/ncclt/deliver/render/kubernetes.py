"""Variables as objects of Kubernetes: a ConfigMap, and the `env` list of a TrainJob or any container."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from ncclt.core.recommendation import Recommendation
from ncclt.deliver.render.delivery import token
from ncclt.deliver.render.shell import Variables

MANAGED_BY = ("app.kubernetes.io/managed-by", "ncclt")
RECOMMENDATION_LABEL = "ncclt-recommendation"
CONTENT_LABEL = "ncclt-content"
"""Holds a hash of the data: a pod template that carries it restarts its pods when the data change."""

_LABEL_LENGTH = 63
"""Longest DNS-1123 label and longest value of a label (Kubernetes, "Object Names and IDs" and "Labels and
Selectors"); a name of several stays far below its 253."""

_HASH_LENGTH = 12


def render_configmap(recommendation: Recommendation, variables: Variables, comments: Iterable[str]) -> str:
    """Return a ConfigMap for `envFrom`, whose name says workload, cluster and size of the job."""
    data = dict(variables)
    content = _digest(json.dumps(data, sort_keys=True))
    lines = [
        *comments,
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {configmap_name(recommendation)}",
        "  labels:",
        f"    {MANAGED_BY[0]}: {MANAGED_BY[1]}",
        f"    {CONTENT_LABEL}: {_scalar(content)}",
        f"    {RECOMMENDATION_LABEL}: {_scalar(_label(recommendation.id))}",
        "data:",
        *(f"  {name}: {_scalar(value)}" for name, value in data.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def render_env_list(variables: Variables, comments: Iterable[str]) -> str:
    """Return the list that goes under `spec.trainer.env` of a TrainJob, or under `env` of any container."""
    lines = [*comments]
    for name, value in variables:
        lines += [f"- name: {name}", f"  value: {_scalar(value)}"]
    return "".join(f"{line}\n" for line in lines)


def configmap_name(recommendation: Recommendation) -> str:
    """Return a DNS-1123 subdomain that differs where workload, cluster or size differ: `ncclt.bert.leonardo.2x4`."""
    valid = recommendation.fingerprint
    said = [recommendation.model, recommendation.cluster]
    size = f"{valid.nodes}x{valid.gpus_per_node}"
    parts = [re.sub(r"[^a-z0-9-]+", "-", text.lower())[:_LABEL_LENGTH].strip("-") or "x" for text in said]
    # What had to be changed or cut could otherwise fall together with another one's name.
    changed = [] if parts == said else [_digest(json.dumps(said))]
    return ".".join(["ncclt", *parts, size, *changed])


def _label(text: str) -> str:
    return token(text)[:_LABEL_LENGTH].strip("._-")


def _scalar(text: str) -> str:
    """Return a YAML string in double quotes: JSON's are YAML's, and no value becomes a number or a boolean."""
    return json.dumps(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]

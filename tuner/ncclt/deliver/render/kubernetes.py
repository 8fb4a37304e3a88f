"""Variables as objects of Kubernetes: a ConfigMap, and the `env` list of a TrainJob or any container."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ncclt.client.answer import object_name, short_hash
from ncclt.core.recommendation import Recommendation
from ncclt.deliver.render.delivery import token
from ncclt.deliver.render.shell import Variables

MANAGED_BY = ("app.kubernetes.io/managed-by", "ncclt")
RECOMMENDATION_LABEL = "ncclt-recommendation"
CONTENT_LABEL = "ncclt-content"
"""Holds a hash of the data: a pod template that carries it restarts its pods when the data change."""

_LABEL_LENGTH = 63
"""Longest value of a label (Kubernetes, "Labels and Selectors")."""


def render_configmap(recommendation: Recommendation, variables: Variables, comments: Iterable[str]) -> str:
    """Return a ConfigMap for `envFrom`, whose name says workload, cluster and size of the job."""
    data, valid = dict(variables), recommendation.fingerprint
    name = object_name(recommendation.model, recommendation.cluster, valid.nodes, valid.gpus_per_node)
    label = token(recommendation.id)[:_LABEL_LENGTH].strip("._-")
    content = short_hash(json.dumps(data, sort_keys=True))
    lines = [
        *comments,
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {name}",
        "  labels:",
        f"    {MANAGED_BY[0]}: {MANAGED_BY[1]}",
        f"    {CONTENT_LABEL}: {_scalar(content)}",
        f"    {RECOMMENDATION_LABEL}: {_scalar(label)}",
        "data:",
        *(f"  {variable}: {_scalar(value)}" for variable, value in data.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def render_env_list(variables: Variables, comments: Iterable[str]) -> str:
    """Return the list that goes under `spec.trainer.env` of a TrainJob, or under `env` of any container."""
    lines = [*comments]
    for name, value in variables:
        lines += [f"- name: {name}", f"  value: {_scalar(value)}"]
    return "".join(f"{line}\n" for line in lines)


def _scalar(text: str) -> str:
    """Return a YAML string in double quotes: JSON's are YAML's, and no value becomes a number or a boolean."""
    return json.dumps(text)

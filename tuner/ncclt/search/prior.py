"""What is expected of a setting before anything was measured: NCCL's own cost model, and how channels scale it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.cost_graph import Graph, graph_of
from ncclt.core.cost_model import nccl_choice
from ncclt.core.legality import Algorithm
from ncclt.core.message import Message
from ncclt.core.setting import Setting

_NVLS = (Algorithm.NVLS, Algorithm.NVLS_TREE)

_SMALL_BYTES = 8
"""A message of this size shows the latency of a pair alone."""

_CLIP = math.log(8)
"""Beyond this ratio to the default the model only says that a setting is hopeless, not how much."""


def expected_log_ratios(
    settings: Sequence[Setting], messages: Sequence[Message], cluster: Cluster
) -> NDArray[np.float64]:
    """Return ln(time / time of the default) as NCCL's cost model has it: settings x messages.

    NCCL's model knows no channels. Here they scale the bandwidth part of the time up to the channels that NCCL would
    run with, and nothing beyond. What NCCL does not offer, or a collective that never passes its tuner, reads as 0:
    nothing is known. Process-wide parameters do not count.

    Args:
        settings: to predict.
        messages: placed on the cluster.
        cluster: sized.
    """
    plain = [Setting(algorithm=s.algorithm, protocol=s.protocol, channels=s.channels) for s in settings]
    rows = {setting: number for number, setting in enumerate(dict.fromkeys(plain))}
    ratios = [[_log_ratio(setting, message, cluster) for message in messages] for setting in rows]
    table = np.clip(np.array(ratios, dtype=np.float64).reshape(len(rows), len(messages)), -_CLIP, _CLIP)
    result: NDArray[np.float64] = table[[rows[setting] for setting in plain]]
    return result


def _log_ratio(setting: Setting, message: Message, cluster: Cluster) -> float:
    own = _choice_us(message, cluster, Setting())
    mine = _choice_us(message, cluster, setting.applied_to(message.collective, version=cluster.version))
    return 0.0 if own is None or mine is None else math.log(mine / own)


def _choice_us(message: Message, cluster: Cluster, setting: Setting) -> float | None:
    """Return the predicted time of a message under a setting, µs; None where the model has no answer."""
    choice = nccl_choice(
        message.collective,
        message.size_bytes,
        cluster,
        message.group_size,
        message.spans_nodes,
        algorithm=setting.algorithm,
        protocol=setting.protocol,
    )
    if choice is None or setting.channels is None:
        return None if choice is None else choice.time_us
    latency = nccl_choice(
        message.collective,
        _SMALL_BYTES,
        cluster,
        message.group_size,
        message.spans_nodes,
        algorithm=choice.algorithm,
        protocol=choice.protocol,
    )
    assert latency is not None, "a pair that carries a message carries a smaller one"
    latency_us = min(latency.time_us, choice.time_us)
    graph = graph_of(cluster, message.group_size, message.spans_nodes)
    share = min(1.0, setting.channels / _own_channels(choice.algorithm, graph))
    return latency_us + (choice.time_us - latency_us) / share


def _own_channels(algorithm: Algorithm, graph: Graph) -> int:
    return max(1, graph.nvls_channels if algorithm in _NVLS else graph.channels)

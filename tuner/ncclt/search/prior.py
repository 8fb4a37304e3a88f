"""Prior mean: the prediction of NCCL's cost model for a setting, scaled by channels.

The model is NCCL's table of the cluster where a log holds it (`predict_choice`), else our estimate of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.printed_costs import PrintedCosts, PrintedTable
from ncclt.core.setting import Setting
from ncclt.nccl.cost_model.model import Choice, TableChoice, channels_taken, find_table, nccl_choice, predict_choice
from ncclt.nccl.cost_model.topology import Topology, build_topology

_NVLS = (Algorithm.NVLS, Algorithm.NVLS_TREE)

_SMALL_BYTES = 8
"""A message of this size shows the latency of a pair alone."""

_CLIP = math.log(8)
"""Beyond this ratio to the default the model says that a setting is hopeless, and not by how much."""

_SATURATION_SHARE = 0.5
"""Share of all channels above which more bring little: with half of them the bandwidth part takes a quarter longer,
with a quarter of them twice as long, with a few in inverse proportion."""

_BANDWIDTH_POWER = 4
"""Power of the share of bandwidth in the time of a message: half of it says little of channels, nine tenths much."""


def expected_log_ratios(
    settings: Sequence[Setting],
    messages: Sequence[Message],
    cluster: Cluster,
    printed_costs: PrintedCosts | None = None,
) -> NDArray[np.float64]:
    """Return ln(time / time of the default) as NCCL's cost model has it: settings x messages.

    NCCL's model has no channels. Here they scale the bandwidth part of the time, up to the communicator's count and
    no further; where they are not forced, NCCL's own count is taken, which is small for small messages. A pair that
    NCCL does not offer, or a collective that never passes its tuner, gives 0: nothing is known. Process-wide
    parameters do not count.

    Args:
        messages: placed on the cluster.
        cluster: sized.
        printed_costs: NCCL's own tables; None, or a communicator that has none among them = our estimate.
    """
    plain = [replace(s, parameters=()) if s.parameters else s for s in settings]
    rows = {setting: number for number, setting in enumerate(dict.fromkeys(plain))}
    models = [_Model(message, cluster, printed_costs) for message in messages]
    ratios = [[model.log_ratio(setting) for model in models] for setting in rows]
    table = np.clip(np.array(ratios, dtype=np.float64).reshape(len(rows), len(messages)), -_CLIP, _CLIP)
    result: NDArray[np.float64] = table[[rows[setting] for setting in plain]]
    return result


def channel_certainty(
    messages: Sequence[Message], cluster: Cluster, printed_costs: PrintedCosts | None = None
) -> NDArray[np.float64]:
    """Return the certainty that fewer channels take longer, 0 to 1 for each message.

    A large message waits for bandwidth, which every channel has a part of. Of a small one, whose time is latency,
    nothing is sure: two nodes of MI355X broadcast 64 KiB in half the time over one channel.

    Args:
        messages: placed on the cluster.
        cluster: sized.
        printed_costs: see `expected_log_ratios`.
    """
    return np.array(
        [_Model(message, cluster, printed_costs).bandwidth_share() ** _BANDWIDTH_POWER for message in messages]
    )


def match_expected_default(
    settings: Sequence[Setting],
    messages: Sequence[Message],
    cluster: Cluster,
    printed_costs: PrintedCosts | None = None,
) -> NDArray[np.bool_]:
    """Find the settings that force the expected NCCL default: settings x messages.

    Such a launch would repeat the default under another name. The pair is that of the cheapest entry of NCCL's cost
    table; channels count as the same where they are not forced or equal NCCL's own count.

    Args:
        messages: placed on the cluster.
        cluster: sized.
        printed_costs: see `expected_log_ratios`.
    """
    own = [_Model(message, cluster, printed_costs).expected_default() for message in messages]
    return np.array([[_is_own(setting, choice) for choice in own] for setting in settings], dtype=np.bool_)


def _is_own(setting: Setting, own: Setting | None) -> bool:
    if own is None or setting.parameters or setting.channels not in (None, own.channels):
        return False
    return setting.algorithm in (None, own.algorithm) and setting.protocol in (None, own.protocol)


class _Model:
    """The cost model of one message."""

    def __init__(self, message: Message, cluster: Cluster, printed_costs: PrintedCosts | None) -> None:
        self._message = message
        self._cluster = cluster
        self._graph = build_topology(cluster, message.group_size, message.spans_nodes)
        self._table = None if printed_costs is None else find_table(printed_costs, message, cluster)

    def log_ratio(self, setting: Setting) -> float:
        reaching = setting.applied_to(self._message.collective, version=self._cluster.version)
        collective, algorithm = self._message.collective, reaching.algorithm
        if self._table is not None:
            if algorithm is not None and self._table.rules_out(collective, algorithm):
                return 0.0
            ratio = self._ratio(reaching, self._table)
            # A protocol that NCCL does not use by itself has no cost in its table; our estimate has one.
            if ratio is not None:
                return ratio
        return self._ratio(reaching, None) or 0.0

    def expected_default(self) -> Setting | None:
        """Return the expected NCCL default, None where nothing is known."""
        predicted = self._predict(self._message.size_bytes, None, None, self._table)
        if predicted is None:
            return None
        return Setting(
            algorithm=predicted.algorithm,
            protocol=predicted.protocol,
            channels=self._channels_of(predicted, self._table),
        )

    def bandwidth_share(self) -> float:
        """Return the share of bandwidth in the time of the NCCL default, 0 where nothing is known."""
        own = self._predict(self._message.size_bytes, None, None, self._table)
        return 0.0 if own is None else 1 - self._latency_us(own, self._table) / own.time_us

    def _latency_us(self, of: TableChoice, table: PrintedTable | None) -> float:
        """Return the part of a predicted time that does not depend on the size, µs."""
        latency = self._predict(_SMALL_BYTES, of.algorithm, of.protocol, table)
        assert latency is not None, "a pair that carries a message carries a smaller one"
        return min(latency.time_us, of.time_us)

    def _ratio(self, setting: Setting, table: PrintedTable | None) -> float | None:
        own, forced = self._time_us(Setting(), table), self._time_us(setting, table)
        return None if own is None or forced is None else math.log(forced / own)

    def _time_us(self, setting: Setting, table: PrintedTable | None) -> float | None:
        """Return the predicted time under a setting, µs; None where the model has no answer."""
        predicted = self._predict(self._message.size_bytes, setting.algorithm, setting.protocol, table)
        if predicted is None:
            return None
        channels = setting.channels or self._channels_of(predicted, table)
        latency_us = self._latency_us(predicted, table)
        graph = _apply_logged_channels(self._graph, table)
        max_channels = graph.nvls_channels if predicted.algorithm in _NVLS else graph.channels
        share = 1.0 if channels is None else min(channels / max(1, max_channels), 1.0)
        slower = math.sqrt((1 + (_SATURATION_SHARE / share) ** 2) / (1 + _SATURATION_SHARE**2))
        return latency_us + (predicted.time_us - latency_us) * slower

    def _channels_of(self, predicted: TableChoice, table: PrintedTable | None) -> int | None:
        """Return the channels that NCCL takes by itself for a pair, None where our estimate lacks the pair."""
        size_bytes, (algorithm, protocol) = self._message.size_bytes, predicted[:2]
        if self._estimate(size_bytes, algorithm, protocol) is None:
            return None
        # From the channel count in the log: our estimate of the communicator may have fewer or more.
        return channels_taken(
            self._message.collective, algorithm, protocol, size_bytes, _apply_logged_channels(self._graph, table)
        )

    def _predict(
        self, size_bytes: int, algorithm: Algorithm | None, protocol: Protocol | None, table: PrintedTable | None
    ) -> TableChoice | None:
        if table is not None:
            collective = self._message.collective
            return predict_choice(table, collective, size_bytes, self._graph, algorithm=algorithm, protocol=protocol)
        choice = self._estimate(size_bytes, algorithm, protocol)
        return None if choice is None else TableChoice(choice.algorithm, choice.protocol, choice.time_us)

    def _estimate(self, size_bytes: int, algorithm: Algorithm | None, protocol: Protocol | None) -> Choice | None:
        return nccl_choice(self._message.collective, size_bytes, self._graph, algorithm=algorithm, protocol=protocol)


def _apply_logged_channels(graph: Topology, table: PrintedTable | None) -> Topology:
    """Return a graph with the channel counts of a log."""
    if table is None:
        return graph
    return replace(
        graph,
        channels=table.channels or graph.channels,
        nvls_channels=table.nvls_channels or graph.nvls_channels,
    )

"""Prior mean: NCCL's cost model of a setting, slowed down by fewer channels if the message is bandwidth-bound.

Uses the cost table from NCCL's log if there is one (`predict_choice`), else our estimate of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ncclt.core.algorithms import Algorithm
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.printed_costs import PrintedCosts, PrintedTable
from ncclt.core.setting import Setting
from ncclt.nccl.cost_model.model import TableChoice, channels_taken, find_table, nccl_choice, predict_choice
from ncclt.nccl.cost_model.topology import build_topology

_NVLS = (Algorithm.NVLS, Algorithm.NVLS_TREE)

_SMALL_BYTES = 8
"""Message size whose predicted time is the latency of a pair."""

_CLIP = math.log(8)
"""Max absolute log ratio to the default: beyond it a setting is hopeless, and the exact ratio means nothing."""

_SATURATION_SHARE = 0.5
"""Share of all channels above which more channels add little bandwidth: half of them take a quarter longer, a quarter
of them twice as long, a few in inverse proportion."""

_BANDWIDTH_POWER = 4
"""Power of the bandwidth share of a message's time in the channel slowdown: small at a share of one half, large at nine
tenths. Two MI355X nodes broadcast 64 KiB in half the time over one channel. Without the slowdown, the regret on grids
after 12 launches is 0.89 instead of 0.67 % (`bench/search.py --without channels`)."""


def expected_log_ratios(
    settings: Sequence[Setting],
    messages: Sequence[Message],
    cluster: Cluster,
    printed_costs: PrintedCosts | None = None,
) -> NDArray[np.float64]:
    """Predict ln(time / time of the default) by NCCL's cost model: settings x messages.

    NCCL's model ignores channels. Ours slows the bandwidth part down by the few default channels of small messages, and
    bandwidth-bound messages by fewer forced channels than the communicator has. The ratio is 0 (unknown) for pairs that
    NCCL does not offer and for collectives that bypass its tuner. It ignores process-wide parameters.

    Args:
        messages: messages placed on the cluster.
        cluster: cluster sized to the job.
        printed_costs: cost tables from NCCL's log; our estimate replaces missing ones.
    """
    models = [_Model(message, cluster, printed_costs) for message in messages]
    plain = {s: replace(s, parameters=()) for s in settings}
    rows = {s: [model.log_ratio(s) for model in models] for s in dict.fromkeys(plain.values())}
    table = np.array([rows[plain[s]] for s in settings], dtype=np.float64).reshape(len(settings), len(messages))
    return np.clip(table, -_CLIP, _CLIP)


def match_expected_default(
    settings: Sequence[Setting],
    messages: Sequence[Message],
    cluster: Cluster,
    printed_costs: PrintedCosts | None = None,
) -> NDArray[np.bool_]:
    """Find the settings that force the expected NCCL default: settings x messages.

    Launching one would repeat the default. Its pair is the cheapest entry of NCCL's cost table, and its channels are
    free or equal to NCCL's count.

    Args:
        messages: messages placed on the cluster.
        cluster: cluster sized to the job.
        printed_costs: see `expected_log_ratios`.
    """
    models = [_Model(message, cluster, printed_costs) for message in messages]
    return np.array([[model.is_default(setting) for model in models] for setting in settings], dtype=np.bool_)


class _Model:
    """Cost model of one message."""

    def __init__(self, message: Message, cluster: Cluster, printed_costs: PrintedCosts | None) -> None:
        self._message, self._version = message, cluster.version
        self._table = None if printed_costs is None else find_table(printed_costs, message, cluster)
        self._graph = build_topology(cluster, message.group_size, message.spans_nodes)
        self._channels, self._nvls_channels = self._graph.channels, self._graph.nvls_channels
        if self._table is not None:  # our estimate of the communicator may have fewer or more
            self._channels = self._table.channels or self._channels
            self._nvls_channels = self._table.nvls_channels or self._nvls_channels
        self._default = self._predict(Setting(), self._table)
        self._certainty = 0.0
        if self._default is not None:
            share = 1 - self._latency_us(self._default, self._table) / self._default.time_us
            self._certainty = share**_BANDWIDTH_POWER

    def log_ratio(self, setting: Setting) -> float:
        collective = self._message.collective
        reaching = setting.applied_to(collective, version=self._version)
        if self._table is not None:
            if reaching.algorithm is not None and self._table.rules_out(collective, reaching.algorithm):
                return 0.0
            ratio = self._ratio(reaching, self._table)
            # A protocol that NCCL does not use by itself has no cost in its table; our estimate has one.
            if ratio is not None:
                return ratio
        return self._ratio(reaching, None) or 0.0

    def is_default(self, setting: Setting) -> bool:
        own = self._default
        if own is None or setting.parameters:
            return False
        return (
            setting.algorithm in (None, own.algorithm)
            and setting.protocol in (None, own.protocol)
            and setting.channels in (None, self._own_channels(own))
        )

    def _own_channels(self, own: TableChoice) -> int | None:
        """Return NCCL's default number of channels; None if our estimate lacks the pair."""
        if self._predict(Setting(algorithm=own.algorithm, protocol=own.protocol), None) is None:
            return None
        graph = replace(self._graph, channels=self._channels, nvls_channels=self._nvls_channels)
        return channels_taken(self._message.collective, own.algorithm, own.protocol, self._message.size_bytes, graph)

    def _ratio(self, setting: Setting, table: PrintedTable | None) -> float | None:
        own, forced = self._predict(Setting(), table), self._predict(setting, table)
        if own is None or forced is None:
            return None
        ratio = math.log(self._time_us(forced, table) / self._time_us(own, table))
        return ratio + self._certainty * math.log(self._slowdown(forced, setting.channels))

    def _time_us(self, predicted: TableChoice, table: PrintedTable | None) -> float:
        """Return the predicted time over NCCL's default channels, which are few for small messages."""
        latency_us = self._latency_us(predicted, table)
        return latency_us + (predicted.time_us - latency_us) * self._slowdown(predicted, self._own_channels(predicted))

    def _latency_us(self, predicted: TableChoice, table: PrintedTable | None) -> float:
        """Return the part of a predicted time that does not depend on the size, µs."""
        pair = Setting(algorithm=predicted.algorithm, protocol=predicted.protocol)
        latency = self._predict(pair, table, _SMALL_BYTES)
        assert latency is not None, "a pair that carries a message carries a smaller one"
        return min(latency.time_us, predicted.time_us)

    def _slowdown(self, predicted: TableChoice, channels: int | None) -> float:
        """Return the slowdown of the bandwidth part over some of the channels; None = all of them."""
        most = self._nvls_channels if predicted.algorithm in _NVLS else self._channels
        share = min((channels or most) / max(1, most), 1.0)
        return math.sqrt((1 + (_SATURATION_SHARE / share) ** 2) / (1 + _SATURATION_SHARE**2))

    def _predict(
        self, setting: Setting, table: PrintedTable | None, size_bytes: int | None = None
    ) -> TableChoice | None:
        """Predict the cheapest pair that a setting allows; None if the model has no answer."""
        size_bytes, collective = size_bytes or self._message.size_bytes, self._message.collective
        algorithm, protocol = setting.algorithm, setting.protocol
        if table is not None:
            return predict_choice(table, collective, size_bytes, self._graph, algorithm=algorithm, protocol=protocol)
        choice = nccl_choice(collective, size_bytes, self._graph, algorithm=algorithm, protocol=protocol)
        return None if choice is None else TableChoice(choice.algorithm, choice.protocol, choice.time_us)

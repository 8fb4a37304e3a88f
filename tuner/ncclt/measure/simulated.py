"""Simulated launches for trying out a study: the times of NCCL's own cost model, with seeded noise.

NCCL picks the fastest setting of its model, so a study of simulated times usually keeps the default, and cannot reveal
a poor one. No accuracy is claimed.

The model has no term for channels, send_recv and all_to_all. Bandwidth is scaled with the number of channels, up to
NCCL's own; both collectives take the latency and the bandwidth of ring/Simple over the same graph.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar

from ncclt.core.algorithms import Algorithm, Protocol, ll128_is_automatic
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting, max_channels
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.nccl.cost_model import tables
from ncclt.nccl.cost_model.model import nccl_choice, predicted_us
from ncclt.nccl.cost_model.topology import Topology, build_topology

_SAMPLES = 5
"""Samples per message and launch: enough for a median that ignores one outlier."""

_LAUNCH_S = 2.0
"""Cost of a launch on a real cluster; reported without waiting."""

_COPY_BYTES_PER_US = 1.6e6
"""A copy within one GPU, at the bandwidth of HBM."""

_LATENCY_BYTES = 8
"""A message of this size shows latency alone."""

_SIGMA = {"ethernet": 0.08, "efa": 0.03, "slingshot": 0.025}
"""Spread of the logarithm of a time over several nodes, by fabric; 0.02 over others, 0.01 within a node."""


class SimulatedRunner:
    """Measures settings by NCCL's cost model of a cluster (see ncclt.core.trial.Runner)."""

    name: ClassVar[str] = "simulate"
    simulated: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, *, seed: int, sigma: float | None = None) -> None:
        """Simulate a cluster; `sigma` replaces the usual spread of the logarithm of a time, 0 = no noise."""
        self.cluster = cluster
        self._seed = seed
        usual = _SIGMA.get(cluster.fabric, 0.02) if cluster.nodes > 1 else 0.01
        self._sigma = usual if sigma is None else sigma

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Simulate one launch without waiting; `wall_s` estimates its duration on a real cluster.

        Raises:
            UsageError: a message has a larger group than the cluster has GPUs.
        """
        return self._launch(lambda _message: setting, setting.digest(), messages, repeat)

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that a whole policy can be simulated."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under what the policy forces on each message; raises as `measure` does."""
        return self._launch(policy.setting_for, policy.digest(), messages, repeat)

    def _launch(
        self, setting_for: Callable[[Message], Setting], digest: str, messages: Sequence[Message], repeat: int
    ) -> TrialResult:
        settings = {message: setting_for(message) for message in messages}
        for message, setting in settings.items():
            if refusal := find_refusal(self.cluster, setting, message):
                return TrialResult(outcome=Outcome.INVALID, detail=refusal)
        measurements = tuple(
            Measurement(
                message=message,
                samples_us=self._draw_samples(
                    model_us(self.cluster, settings[message], message), digest, message, repeat
                ),
                wrong=_count_wrong(self.cluster, settings[message], message),
            )
            for message in messages
        )
        is_wrong = any(measurement.wrong for measurement in measurements)
        return TrialResult(
            outcome=Outcome.WRONG_RESULT if is_wrong else Outcome.OK,
            measurements=measurements,
            detail="LL128 forced where NCCL does not enable it: simulated wrong results" if is_wrong else "",
            wall_s=_LAUNCH_S + sum(sum(measurement.samples_us) for measurement in measurements) / 1e6,
        )

    def _draw_samples(self, time_us: float, digest: str, message: Message, repeat: int) -> tuple[float, ...]:
        """Return noisy samples: a launch as a whole varies by half of what its samples do."""
        launch = random.Random(f"{self._seed}|{digest}|{repeat}").gauss(0.0, self._sigma / 2)
        group = f"{message.group_size}/{message.spans_nodes}"
        key = f"{message.collective}/{message.dtype}/{message.size_bytes}/{group}"
        draw = random.Random(f"{self._seed}|{digest}|{repeat}|{key}")
        return tuple(time_us * math.exp(launch + draw.gauss(0.0, self._sigma)) for _ in range(_SAMPLES))


@lru_cache(maxsize=1 << 16)
def model_us(cluster: Cluster, setting: Setting, message: Message) -> float:
    """Return the time of one call by NCCL's cost model, µs; infinite where NCCL has no algorithm for it.

    Raises:
        UsageError: the group is larger than the cluster.
    """
    graph = build_topology(cluster, message.group_size, message.spans_nodes)
    if graph.ranks == 1:
        return message.size_bytes / _COPY_BYTES_PER_US + 1.0
    if not message.collective.is_tunable:
        return _peer_to_peer_us(message, graph)
    forced = setting.applied_to(message.collective, version=graph.cluster.version)
    choice = nccl_choice(
        message.collective, message.size_bytes, graph, algorithm=forced.algorithm, protocol=forced.protocol
    )
    if choice is None:
        return math.inf
    if setting.channels is None or setting.channels >= choice.channels:
        return choice.time_us
    latency_us = predicted_us(message.collective, choice.algorithm, choice.protocol, _LATENCY_BYTES, graph)
    waiting_us = max(0.0, choice.time_us - latency_us)
    return choice.time_us + waiting_us * (choice.channels / setting.channels - 1)


def _peer_to_peer_us(message: Message, graph: Topology) -> float:
    """Return the time of send_recv or all_to_all, which NCCL's model lacks."""
    ring, simple = tables.LATENCIES_US[Algorithm.RING], tables.PROTOCOL_ORDER.index(Protocol.SIMPLE)
    hop_us = (ring.net if graph.nodes > 1 else ring.nvlink if graph.nvlink else ring.pci)[simple]
    gbps = graph.graph_channels * graph.ring_gbps
    sent_bytes = float(message.size_bytes)
    if message.collective is Collective.ALL_TO_ALL:
        sent_bytes *= (graph.ranks - 1) / graph.ranks
        # The GPUs of a node share its ports.
        gbps /= graph.per_node if graph.nodes > 1 else 1
    return ring.base[simple] + hop_us + sent_bytes / (1000 * gbps)


def find_refusal(cluster: Cluster, setting: Setting, message: Message) -> str:
    """Return the reason against running or simulating a message under the setting; empty where there is none."""
    if setting.parameters:
        names = ", ".join(f"NCCL_{name}" for name, _ in setting.parameters)
        return f"NCCL's cost model has no term for {names}: measure it on the cluster"
    version = cluster.version
    if setting.channels is not None and setting.channels > max_channels(version):
        return f"NCCL {version} has at most {max_channels(version)} channels, not {setting.channels}"
    if math.isinf(model_us(cluster, setting, message)):
        return (
            f"NCCL WARN Error : no algorithm/protocol available for function {message.collective} with "
            f"datatype {message.dtype}. {setting.label} was forced."
        )
    return ""


def _count_wrong(cluster: Cluster, setting: Setting, message: Message) -> int:
    """Return the wrong elements: LL128 tears its lines wherever NCCL does not enable it itself."""
    if setting.applied_to(message.collective, version=cluster.version).protocol is not Protocol.LL128:
        return 0
    part = build_topology(cluster, message.group_size, message.spans_nodes).cluster
    return 0 if ll128_is_automatic(part) else 16

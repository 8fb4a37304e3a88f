"""A fleet with injected faults, for tests and the bench of `ncclt preflight`: its times are invented.

A collective that lays its rings over nodes in the order of the hosts is as fast as the weakest of what it passes: nodes
of the group, the links between one host and the next (and from the last to the first), GPUs on the way.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.health.preflight.expectation import links_gbps

LATENCY_US = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a fleet.

    Attributes:
        hosts: a node (its network), the two ends of a link between nodes, or the node of the GPUs.
        gpus: one GPU, or the two ends of a link between GPUs; empty = the fault is between nodes.
        share: of the bandwidth that remains.
        outcome: `ok`, or how every launch over it fails.
    """

    hosts: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    share: float = 1.0
    outcome: Outcome = Outcome.OK

    def strikes(self, hosts: Sequence[str], gpus: Sequence[int]) -> bool:
        """Return True if a launch on hosts, in order, is affected by it."""
        if len(self.hosts) == 2:
            return _are_neighbours(self.hosts, hosts)
        if self.hosts[0] not in hosts:
            return False
        if not self.gpus:
            return len(hosts) > 1
        return self.gpus[0] in gpus if len(self.gpus) == 1 else _are_neighbours(self.gpus, gpus)


def _are_neighbours(ends: Sequence[object], ring: Sequence[object]) -> bool:
    return any(set(ends) == set(link) for link in zip(ring, [*ring[1:], *ring[:1]], strict=True))


def parse_fault(text: str) -> Fault:
    """Read `n03=0.6` (node), `n03+n07=0.5` (link), `n03:2=0.7` (GPU), `n03:2+5=0.7` (link of GPUs), or `=timeout`."""
    target, value = text.split("=")
    host, _, gpus = target.partition(":")
    outcome = Outcome(value) if value.isalpha() or "_" in value else Outcome.OK
    return Fault(
        hosts=tuple(host.split("+")),
        gpus=tuple(map(int, gpus.split("+"))) if gpus else (),
        share=float(value) if outcome is Outcome.OK else 1.0,
        outcome=outcome,
    )


class Fleet:
    """Nodes that reach what their links promise, apart from faults and noise; `runner` is a preflight's RunnerFor.

    Args:
        cluster: sized to the job.
        sigma: of the noise of a launch, as a share.
    """

    def __init__(self, cluster: Cluster, faults: Sequence[Fault] = (), *, sigma: float = 0.0, seed: int = 0) -> None:
        self.cluster = cluster
        self.faults = faults
        self.sigma = sigma
        self.seed = seed

    def runner(self, hosts: tuple[str, ...], gpus: tuple[int, ...]) -> PartRunner:
        """Return the runner of some nodes, or of some GPUs of one node."""
        return PartRunner(self, hosts, gpus)


class PartRunner:
    """Launches on some nodes or GPUs of a fleet (see ncclt.core.trial.Runner)."""

    name = "fleet"
    simulated = True

    def __init__(self, fleet: Fleet, hosts: tuple[str, ...], gpus: tuple[int, ...]) -> None:
        self.fleet = fleet
        self.hosts = hosts
        self.gpus = gpus or tuple(range(fleet.cluster.gpus_per_node))
        self.cluster = fleet.cluster.sized(nodes=len(hosts), gpus_per_node=len(self.gpus))

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once, in no time; each launch has noise of its own, the same again for the same seed."""
        faults = [fault for fault in self.fleet.faults if fault.strikes(self.hosts, self.gpus)]
        failed = next((fault.outcome for fault in faults if fault.outcome is not Outcome.OK), Outcome.OK)
        if failed in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.INVALID):
            return TrialResult(outcome=failed, detail=f"injected: {failed}")
        share = min((fault.share for fault in faults), default=1.0)
        key = f"{self.fleet.seed}|{self.hosts}|{self.gpus}|{repeat}".encode()
        noise = random.Random(hashlib.sha256(key).digest()).lognormvariate(0.0, self.fleet.sigma)
        measurements = []
        for message in messages:
            ranks = message.group_size
            gbps = links_gbps(self.fleet.cluster, nodes=len(self.hosts), ranks=ranks, size=message.size_bytes) * share
            time_us = LATENCY_US + noise * message.size_bytes / gbps / 1e3 * 2 * (ranks - 1) / ranks
            measurements.append(Measurement(message=message, samples_us=(time_us,)))
        return TrialResult(outcome=failed, measurements=tuple(measurements))

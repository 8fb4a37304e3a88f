"""Faulty nodes, links and GPUs of a simulated cluster, for trying `ncclt preflight` and for its bench.

A collective that lays its rings over nodes in the order of the hosts is as fast as the weakest of what it passes: nodes
of the group, the links between one host and the next (and from the last to the first), GPUs on the way. Channels share
the data evenly, so one slow GPU or port slows the whole group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import UsageError
from ncclt.measure.simulated.noise import Faults
from ncclt.measure.simulated.runner import SimulatedRunner

_SHAPES = ((1, 0), (2, 0), (1, 1), (1, 2))
"""Numbers of hosts and GPUs that name a node, a link, a GPU, a link of GPUs."""

_WORDS = {"crash": Outcome.CRASHED, "hang": Outcome.TIMEOUT, "wrong": Outcome.WRONG_RESULT}


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """Injected fault of a simulated fabric.

    Attributes:
        hosts: a node (its network), the two ends of a link between nodes, or the node of the GPUs.
        gpus: one GPU, or the two ends of a link between GPUs; empty = the fault is between nodes.
        share: of the bandwidth that is left, above 0 to 1.
        outcome: `ok`, or how every launch over it fails.
    """

    hosts: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    share: float = 1.0
    outcome: Outcome = Outcome.OK

    def strikes(self, hosts: Sequence[str], gpus: Sequence[int]) -> bool:
        """Return True if a launch is affected by it.

        Args:
            hosts: of the launch, in order.
        """
        if len(self.hosts) == 2:
            return _adjacent(self.hosts, hosts)
        if self.hosts[0] not in hosts:
            return False
        if not self.gpus:
            return len(hosts) > 1
        return self.gpus[0] in gpus if len(self.gpus) == 1 else _adjacent(self.gpus, gpus)


def _adjacent(ends: Sequence[object], ring: Sequence[object]) -> bool:
    """Return True if two ends are neighbours in a ring."""
    successors = [*ring[1:], *ring[:1]]
    return any({a, b} == set(ends) for a, b in zip(ring, successors, strict=True))


def parse_fault(text: str) -> InjectedFault:
    """Read `n03=0.6` (node), `n03+n07=0.5` (link), `n03:2=0.7` (GPU), `n03:2+5=0.7` (link of GPUs), or `=hang`.

    Raises:
        UsageError: it has another form.
    """
    target, _, value = text.partition("=")
    host, _, gpus = target.partition(":")
    try:
        outcome = _WORDS.get(value.strip(), Outcome.OK)
        share = float(value) if outcome is Outcome.OK else 1.0
        found = InjectedFault(
            hosts=tuple(host.split("+")),
            gpus=tuple(int(gpu) for gpu in gpus.split("+")) if gpus else (),
            share=share,
            outcome=outcome,
        )
    except ValueError:
        found = None
    sound = found is not None and all(found.hosts) and 0 < found.share <= 1
    if found is None or not sound or (len(found.hosts), len(found.gpus)) not in _SHAPES:
        raise UsageError(
            f"{text!r} is not an injected fault",
            hint=f"NODE=SHARE, NODE+NODE=SHARE, NODE:GPU=SHARE or NODE:GPU+GPU=SHARE, with a share above 0 to 1 or "
            f"{', '.join(_WORDS)}",
        )
    return found


def simulated_runners(
    cluster: Cluster,
    hosts: Sequence[str],
    *,
    faults: Sequence[InjectedFault] = (),
    seed: int = 0,
    sigma: float | None = None,
) -> Callable[[tuple[str, ...], tuple[int, ...]], FabricRunner]:
    """Return a function that makes the runner of some nodes, or of some GPUs of one node, of a simulated cluster.

    Args:
        cluster: sized to the job.
        seed: of everything random; each section has noise of its own.
        sigma: of the noise, None = what is usual there.

    Raises:
        UsageError: a fault names a node or GPU that does not exist.
    """
    for fault in faults:
        unknown = [host for host in fault.hosts if host not in hosts]
        beyond = [gpu for gpu in fault.gpus if not 0 <= gpu < cluster.gpus_per_node]
        if unknown or beyond:
            raise UsageError(
                f"there is no {f'node {unknown[0]}' if unknown else f'GPU {beyond[0]}'} to have a fault",
                hint=f"nodes are {', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}, "
                f"GPUs 0 to {cluster.gpus_per_node - 1}",
            )

    def runner_for(part: tuple[str, ...], gpus: tuple[int, ...]) -> FabricRunner:
        used = gpus or tuple(range(cluster.gpus_per_node))
        struck = [fault for fault in faults if fault.strikes(part, used)]
        failing = {fault.outcome for fault in struck}
        key = f"{seed}|{','.join(part)}|{gpus}".encode()
        return FabricRunner(
            cluster.sized(nodes=len(part)),
            seed=int.from_bytes(hashlib.blake2b(key, digest_size=6).digest(), "big"),
            sigma=sigma,
            faults=Faults(
                crash=float(Outcome.CRASHED in failing),
                hang=float(Outcome.TIMEOUT in failing),
                wrong=float(Outcome.WRONG_RESULT in failing),
            ),
            share=min((fault.share for fault in struck), default=1.0),
        )

    return runner_for


class FabricRunner(SimulatedRunner):
    """A simulated runner some of whose bandwidth is missing.

    Args:
        cluster, seed, sigma, faults: as for SimulatedRunner.
        share: of the bandwidth that is left.
    """

    def __init__(self, cluster: Cluster, *, seed: int, sigma: float | None, faults: Faults, share: float) -> None:
        super().__init__(cluster, seed=seed, sigma=sigma, faults=faults)
        self._share = share

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once, in no time; a fault does not change the latency."""
        result = super().measure(setting, messages, repeat=repeat)
        if self._share == 1:
            return result
        slowed = []
        for one in result.measurements:
            whole = self.expected_us(setting, one.message)
            latency = min(whole, self.expected_us(setting, replace(one.message, size_bytes=8)))
            factor = (latency + (whole - latency) / self._share) / whole
            slowed.append(replace(one, samples_us=tuple(sample * factor for sample in one.samples_us)))
        return replace(result, measurements=tuple(slowed))

"""The health of a fabric: what was launched where, the findings about nodes, links and GPUs, and the record of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective, bus_factor
from ncclt.core.trial import Outcome

_FAILED_WORDS = {
    Outcome.WRONG_RESULT: "gives WRONG DATA",
    Outcome.CRASHED: "crashes",
    Outcome.TIMEOUT: "does not finish",
    Outcome.INVALID: "does not start",
    Outcome.SUBSTITUTED: "runs something else",
}
SEVERITY = (Outcome.WRONG_RESULT, Outcome.CRASHED, Outcome.TIMEOUT, Outcome.INVALID, Outcome.SUBSTITUTED, Outcome.OK)
"""The worst first: wrong data ruins a training silently."""


class State(StrEnum):
    """Verdict of a preflight."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNMEASURED = "unmeasured"


class Part(StrEnum):
    """Subject of a finding; `group`: somewhere among these nodes; `fabric`: all of it alike."""

    NODE = "node"
    LINK = "link"
    GPU = "gpu"
    GPU_LINK = "gpu_link"
    GROUP = "group"
    FABRIC = "fabric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Documented):
    """Nodes and GPUs of one launch.

    Attributes:
        hosts: names of the nodes, in the order of the ranks.
        gpus: which GPUs of the one node; empty = all GPUs of all nodes.
    """

    hosts: tuple[str, ...]
    gpus: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Return the section as text: `n00..n07 (8 nodes)`, `n03+n07`, `n03 GPU 0+5`."""
        return hosts_label(self.hosts) + (f" GPU {'+'.join(map(str, self.gpus))}" if self.gpus else "")

    def ranks(self, gpus_per_node: int) -> int:
        """Return the number of ranks of a launch there."""
        return len(self.gpus) or len(self.hosts) * gpus_per_node


def hosts_label(hosts: tuple[str, ...]) -> str:
    """Name some nodes briefly: all of a few, first and last of many."""
    return "+".join(hosts) if len(hosts) <= 3 else f"{hosts[0]}..{hosts[-1]} ({len(hosts)} nodes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading(Documented):
    """One launch of all_reduce on one section.

    Attributes:
        section: where.
        ranks: number of ranks that took part.
        repeat: earlier launches there.
        outcome: `ok`, or how it failed.
        times_us: (size in bytes, time of one call in µs), by size; empty where it failed.
        expected_gbps: bus bandwidth expected there at the largest size, 1e9 bytes/s.
        detail: last lines of output of a launch that failed.
        wall_s: duration of the launch.
    """

    SHAPE: ClassVar = Shape(complete=True, inlined=("section",), computed=(("busbw_gbps", "gbps", "expected_gbps"),))

    section: Section
    ranks: int
    repeat: int
    outcome: Outcome
    times_us: tuple[tuple[int, float], ...] = ()
    expected_gbps: float
    detail: str = ""
    wall_s: float = 0.0

    @property
    def busbw_gbps(self) -> tuple[tuple[int, float], ...]:
        """Return (size in bytes, bus bandwidth in 1e9 bytes/s), by size."""
        factor = bus_factor(Collective.ALL_REDUCE, self.ranks)
        return tuple((size, size / time_us / 1e3 * factor) for size, time_us in self.times_us)

    @property
    def gbps(self) -> float:
        """Return the bus bandwidth at the largest size, 1e9 bytes/s; 0 where the launch failed."""
        return self.busbw_gbps[-1][1] if self.outcome is Outcome.OK and self.times_us else 0.0

    @property
    def share(self) -> float:
        """Return the share of what is expected; 0 where the launch failed."""
        return self.gbps / self.expected_gbps


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFinding(Documented):
    """A part of the fabric that falls short.

    Attributes:
        part: what it is.
        hosts: its node, or the two ends of a link, or all nodes it may be among.
        gpus: of the node, for a GPU or a pair of them.
        outcome: `ok` = slow; else how launches with it fail.
        busbw_gbps: what it reaches, median of its launches; 0 where they fail.
        reference_gbps: what its peers reach, or what is expected where there are no peers.
        launches: number of launches behind it.
        remark: further facts.
    """

    SHAPE: ClassVar = Shape(complete=True, computed=(("share", "share", "launches"), ("sentence", "sentence", "")))

    part: Part
    hosts: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    outcome: Outcome = Outcome.OK
    busbw_gbps: float = 0.0
    reference_gbps: float = 0.0
    launches: int = 0
    remark: str = ""

    @property
    def share(self) -> float:
        """Return the remaining share of the reference, 0 to 1."""
        return self.busbw_gbps / self.reference_gbps if self.reference_gbps else 0.0

    @property
    def sentence(self) -> str:
        """Return the finding as a sentence."""
        hosts = hosts_label(self.hosts)
        gpus = " and ".join(map(str, self.gpus))
        subject = {
            Part.NODE: f"node {hosts}",
            Part.LINK: f"the link {hosts}",
            Part.GPU: f"GPU {gpus} of node {hosts}",
            Part.GPU_LINK: f"the link between GPU {gpus} of node {hosts}",
            Part.GROUP: f"something among {hosts}",
            Part.FABRIC: f"all of {hosts} alike",
        }[self.part]
        reached = f"reaches {self.share * 100:.0f} % of {self.reference_gbps:.3g} GB/s"
        predicate = _FAILED_WORDS.get(self.outcome, reached)
        partners = " with every partner" if self.part in (Part.NODE, Part.GPU) else ""
        return f"{subject} {predicate}{partners}" + (f"; {self.remark}" if self.remark else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """All nodes together at one size; `expected_gbps` is None where nothing says what to expect."""

    size_bytes: int
    time_us: float
    busbw_gbps: float
    expected_gbps: float | None

    @property
    def share(self) -> float | None:
        """Return the share of the expected bandwidth; None where nothing says what to expect."""
        return self.busbw_gbps / self.expected_gbps if self.expected_gbps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSize(Documented):
    """The bus bandwidth that is expected at one size, 1e9 bytes/s."""

    size_bytes: int
    busbw_gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight(Documented):
    """One examination of a fabric.

    Attributes:
        id: identifies it.
        created: ISO time.
        state: the verdict.
        simulated: the times come from a model, as in records of older versions.
        cluster: name of the cluster.
        fingerprint: digest of the cluster's fingerprint, with the size of the job.
        launcher, benchmark: names of what launched, and what ran.
        hosts, gpus_per_node: what was examined.
        source: where the expectation comes from.
        expected: of all nodes together, by size.
        tolerance: share by which all nodes may fall short of it.
        findings: the worst first.
        readings: every launch, in order.
        notes: caveats for the reader.
        wall_s: duration of the preflight.
    """

    SHAPE: ClassVar = Shape(schema=1, complete=True, computed=(("verdict", "verdict", "simulated"),))

    id: str
    created: str
    state: State
    simulated: bool
    cluster: str
    fingerprint: str
    launcher: str
    benchmark: str
    hosts: tuple[str, ...]
    gpus_per_node: int
    source: str
    expected: tuple[ExpectedSize, ...]
    tolerance: float
    findings: tuple[FabricFinding, ...] = ()
    readings: tuple[ProbeReading, ...] = ()
    notes: tuple[str, ...] = ()
    wall_s: float

    @property
    def rows(self) -> tuple[SizeRow, ...]:
        """Return the bandwidth of all nodes together by size: each the median of its launches."""
        times_us: dict[int, list[float]] = {}
        for reading in self.readings:
            if reading.section == Section(hosts=self.hosts) and reading.outcome is Outcome.OK:
                for size, time_us in reading.times_us:
                    times_us.setdefault(size, []).append(time_us)
        factor = bus_factor(Collective.ALL_REDUCE, len(self.hosts) * self.gpus_per_node)
        expected = {size.size_bytes: size.busbw_gbps for size in self.expected}
        return tuple(
            SizeRow(
                size_bytes=size,
                time_us=statistics.median(times),
                busbw_gbps=size / statistics.median(times) / 1e3 * factor,
                expected_gbps=expected.get(size),
            )
            for size, times in sorted(times_us.items())
        )

    @property
    def verdict(self) -> str:
        """Return the outcome as one line."""
        state = "" if self.state is State.UNMEASURED else f"{self.state}: "
        return f"{'SIMULATED: ' if self.simulated else ''}{state}{self.summary}"

    @property
    def summary(self) -> str:
        """Return the outcome without its state."""
        if self.state is State.UNMEASURED:
            return f"could not measure: {self.notes[-1] if self.notes else 'no launch gave a result'}"
        if self.state is State.DEGRADED:
            further = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            return f"{self.findings[0].sentence}{further}"
        largest = self.rows[-1]
        expected_gbps = largest.expected_gbps or largest.busbw_gbps
        return f"{largest.busbw_gbps:.3g} GB/s measured, {expected_gbps:.3g} GB/s expected {self.source}"

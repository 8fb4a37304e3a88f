"""One preflight: its request, its plan, and the checkup of all nodes together, then of slow nodes, links and GPUs."""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from ncclt.core.cluster import Cluster
from ncclt.core.option import Group, Option
from ncclt.core.preflight import SEVERITY, ExpectedSize, FabricFinding, Part, Preflight, ProbeReading, Section, State
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.health.preflight.bisect import LAUNCHES, Bisection, BisectionResult, SlowPart, plan_rounds
from ncclt.health.preflight.expectation import Expectation, latency_note, peer_tolerance
from ncclt.health.preflight.probes import DeadlineExceeded, Probes

SIZES = (1 << 6, 1 << 12, 1 << 18, 1 << 24, 1 << 30)
"""From latency to bandwidth, bytes: powers of 64, so that nccl-tests measures all of them in one command."""

TOLERANCE = 0.15
"""Share by which all nodes may fall short of what their links promise; link figures are no better than that."""

LAUNCH_S = 15.0
"""A launch on real nodes before one was timed: loading CUDA, connecting ranks (an estimate, not tested on a GPU)."""

_PASSES = 4
"""Times that the remaining nodes are measured without those found: more faults than this are not single faults."""

_SAMPLE = 3
"""Pairs that are tried before the halves where all nodes together fail: does anything run here at all?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Depth of a preflight; parts may fall short of their peers by half of the tolerance."""

    tolerance: Annotated[float, Option("Max shortfall, as a share.", group=Group.PROOF)] = TOLERANCE
    quick: Annotated[bool, Option("Measure all nodes together once only.")] = False
    full: Annotated[bool, Option("Measure pairs and single nodes even if all together are fine.")] = False
    all_pairs: Annotated[bool, Option("Measure every pair of nodes instead of bisecting.")] = False

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise UsageError("--quick and --full cannot be combined")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """Nodes to examine and the depth of the examination.

    Attributes:
        cluster: sized to the job.
        hosts: names of its nodes, in the order of the ranks.
        expectation: what is expected of them.
        sizes: bytes to measure on all nodes, ascending; the largest one is judged.
        launcher, benchmark: words of where and what runs.
        depth: of the examination.
    """

    cluster: Cluster
    hosts: tuple[str, ...]
    expectation: Expectation
    sizes: tuple[int, ...] = SIZES
    launcher: str
    benchmark: str
    depth: Depth = Depth()

    def __post_init__(self) -> None:
        if len(set(self.hosts)) != len(self.hosts) or len(self.hosts) != self.cluster.nodes:
            raise UsageError(
                f"the number of hosts ({len(self.hosts)}) differs from the number of nodes ({self.cluster.nodes})",
                hint="name each node once, --nodes of them",
            )
        if self.cluster.world_size < 2:
            raise UsageError("one GPU alone has no fabric to examine", hint="use more nodes or --gpus-per-node")

    @property
    def rounds(self) -> list[list[tuple[str, str]]]:
        """Return the pairs of nodes that are launched whatever is found, disjoint ones together."""
        wanted = self.depth.all_pairs and not self.depth.quick and len(self.hosts) > 2
        return plan_rounds(self.hosts) if wanted else []

    def estimate_launches(self, *, is_healthy: bool) -> int:
        """Estimate the number of launches, where all is well or about where one node is slow."""
        nodes, has_peers = len(self.hosts), self.cluster.gpus_per_node > 1
        # Halving to groups of four links, their pairs, a repeat of suspects, all nodes but those, and a look inside.
        bisecting = 3 * nodes // 2 if nodes <= 8 else 2 * math.ceil(math.log2(nodes / 4)) + 6
        narrowing = (sum(map(len, self.rounds)) or bisecting) + 4 + 2 * has_peers
        alone = nodes if nodes > 1 and has_peers else 0
        if self.depth.full:
            narrowing += alone
        looks_closer = self.depth.full or not (is_healthy or self.depth.quick)
        return (1 if is_healthy else 3) + (narrowing if looks_closer else 0)


class Checkup:
    """One preflight; `run` it once.

    Args:
        probes: makes the launches.

    Attributes:
        findings: in the order in which they were made.
        notes: caveats for the reader.
    """

    def __init__(self, request: PreflightRequest, probes: Probes) -> None:
        self._request = request
        self._cluster = request.cluster
        self._hosts = request.hosts
        self._expectation = request.expectation
        self._probes = probes
        self._least = 1 - request.expectation.tolerance
        self._depth = request.depth
        self._cut = peer_tolerance(request.depth.tolerance)
        self.findings: list[FabricFinding] = []
        self.notes: list[str] = []

    def run(self) -> State:
        """Measure, narrow down, and return the state."""
        try:
            if not self._examine():
                return State.UNMEASURED
        except DeadlineExceeded as over:
            if self._probes.readings:
                self._blame_smallest()
            self.notes.append(str(over))
            if not self._probes.readings:
                return State.UNMEASURED
        self._add_wrong_data()
        return State.DEGRADED if self.findings else State.HEALTHY

    def _examine(self) -> bool:
        """Measure as far as is needed; return whether anything could be measured."""
        everything = Section(hosts=self._hosts)
        first = self._probes.measure([everything], self._request.sizes)[0]
        if first.outcome is Outcome.INVALID:
            self.notes.append(first.detail or "the launch could not be started")
            return False
        if note := latency_note(first, self._expectation):
            self.notes.append(note)
        share = self._settle_share(everything)
        if self._depth.quick:
            if share < self._least:
                self._blame_group(self._hosts, "look closer without --quick")
        elif share == 0 and not self._does_anything_run():
            self.notes.append(first.detail or f"every launch ended so: {first.outcome}")
            return False
        elif share < self._least or self._depth.full:
            if len(self._hosts) > 1:
                self._examine_nodes(share)
            else:
                if self._cluster.gpus_per_node > 2:
                    self.findings += self._find_slow_gpus(self._hosts[0], share, peer="")
                if not self.findings and share < self._least:
                    self._blame_all(self._hosts, "no GPU stands out")
        return True

    def _settle_share(self, section: Section) -> float:
        """Return the median share of a section, launched up to three times if the first launch was too slow."""
        readings = self._probes.of(section) or self._probes.measure([section])
        while len(readings) < LAUNCHES and not _is_decided(readings, self._least):
            readings += self._probes.measure([section])
        if any(reading.outcome is Outcome.WRONG_RESULT for reading in readings):
            return 0.0
        share = statistics.median_low(reading.share for reading in readings)
        if share >= self._least and len(readings) > 1:
            self.notes.append(f"{section.label}: one launch of {len(readings)} was slow, and not again")
        return share

    def _does_anything_run(self) -> bool:
        """Return True if anything runs at all: parts from all over the job are tried; one with wrong data does run."""
        gpus = self._cluster.gpus_per_node
        if len(self._hosts) > 2:
            sections = [Section(hosts=pair) for pair in plan_rounds(self._hosts)[0]]
        elif len(self._hosts) == 2:
            sections = [Section(hosts=(host,)) for host in self._hosts if gpus > 1]
        else:
            sections = [Section(hosts=self._hosts, gpus=(gpu, gpu + 1)) for gpu in range(0, gpus - 1, 2) if gpus > 2]
        runs = (Outcome.OK, Outcome.WRONG_RESULT)
        if any(reading.outcome in runs for reading in self._probes.readings):
            return True
        tried = sections[:: max(1, len(sections) // _SAMPLE)][:_SAMPLE]
        return any(reading.outcome in runs for reading in self._probes.measure(tried))

    # --- nodes ---

    def _examine_nodes(self, share: float) -> None:
        """Find slow nodes and links, look into the nodes, and measure the remaining nodes, until those are fine."""
        hosts = self._hosts
        for turn in range(_PASSES):
            result = self._bisect(hosts, share, all_pairs=self._depth.all_pairs and turn == 0)
            for slow in result.named:
                self.findings += self._explain_slow(slow, result)
            if not result.named:
                self._explain_evenness(hosts, share, result.level)
                break
            # A link cannot be left out, but one of its ends can.
            excluded = {slow.parts[-1] for slow in result.named}
            hosts = tuple(host for host in hosts if host not in excluded)
            if len(hosts) < 2:
                break
            share = self._settle_share(Section(hosts=hosts))
            if share >= self._least:
                without = ", ".join(host for host in self._hosts if host not in hosts)
                self.notes.append(f"without {without} the other {len(hosts)} nodes reach {share * 100:.0f} % together")
                break
        # A link of a node that a later pass has found slow itself is no finding.
        slow_nodes = {host for finding in self.findings if finding.part in _INSIDE_NODE for host in finding.hosts}
        self.findings = [
            finding for finding in self.findings if finding.part is not Part.LINK or not slow_nodes & {*finding.hosts}
        ]
        if self._depth.full:
            blamed = {host for finding in self.findings if finding.part is not Part.FABRIC for host in finding.hosts}
            inside = self._look_inside([host for host in self._hosts if host not in blamed])
            self.findings += itertools.chain(*inside.values())

    def _explain_slow(self, slow: SlowPart, result: BisectionResult) -> list[FabricFinding]:
        """Return the findings about a slow node or link: a node is looked into, as one of its GPUs may be the cause."""
        if len(slow.parts) == 2:
            if len(self._hosts) > 2:
                return [self._name_slow_part(slow, result.level)]
            inside = self._look_inside(self._hosts)
            remark = "two nodes do not tell which end it is"
            if self._cluster.gpus_per_node > 1:
                remark = f"alone both are alike: look at the network between them; {remark}"
            return list(itertools.chain(*inside.values())) or [self._name_slow_part(slow, result.level, remark=remark)]
        host = slow.parts[0]
        peer = next((peer for peer in result.good if peer != host), "")
        advice = "look at its network and its GPU"
        if self._cluster.gpus_per_node > 1:
            if findings := self._look_inside([host, peer] if peer else [host]).get(host):
                return findings
            advice = "alone its GPUs are as fast as others: look at its network"
        remark = f"launched with {', '.join(slow.partners[:4])}; {advice}"
        return [self._name_slow_part(slow, result.level, remark=remark)]

    def _explain_evenness(self, hosts: tuple[str, ...], share: float, level: float) -> None:
        """Report what is wrong where nothing stands out: all parts alike, or only all of them together."""
        if share < self._least <= level:
            pairs = f"pairs reach {level * 100:.0f} % of their expected bandwidth"
            self._blame_group(hosts, f"{pairs}: look at what is shared")
        elif share < self._least:
            self._blame_all(hosts, "no node or link stands out")

    # --- GPUs ---

    def _look_inside(self, hosts: Sequence[str]) -> dict[str, list[FabricFinding]]:
        """Measure nodes alone; return the findings about those that are slower than the others, by node."""
        if self._cluster.gpus_per_node < 2:
            return {}
        sections = {host: Section(hosts=(host,)) for host in hosts}
        self._probes.measure([section for section in sections.values() if not self._probes.of(section)])
        alone = {host: self._probes.of(section)[0] for host, section in sections.items()}
        usual = statistics.median_high(reading.gbps for reading in alone.values()) if len(alone) > 1 else 0.0
        slow: dict[str, float] = {}
        for host, reading in alone.items():
            usual = usual or reading.expected_gbps
            if reading.gbps < (1 - self._cut) * usual:
                again = self._probes.measure([sections[host]] * (LAUNCHES - 1))
                gbps = statistics.median(each.gbps for each in (reading, *again))
                if gbps < (1 - self._cut) * usual:
                    slow[host] = gbps
                else:
                    self.notes.append(f"{host} alone looked slow and was not when launched again")
        peer = next((host for host in hosts if host not in slow), "")
        return {
            host: self._find_slow_gpus(host, gbps / usual, peer=peer)
            or [self._build_finding(Part.NODE, sections[host], gbps, usual, "alone, and no GPU stands out")]
            for host, gbps in slow.items()
        }

    def _find_slow_gpus(self, host: str, share: float, *, peer: str) -> list[FabricFinding]:
        """Narrow a slow node down to its GPUs; each group of them is compared with the same group of a peer.

        Args:
            share: what all its GPUs together reach of what is usual.
            peer: a good node; empty = there is none, and the expectation is used instead.
        """
        names = tuple(str(gpu) for gpu in range(self._cluster.gpus_per_node))
        result = self._bisect(names, share, host=host, peer=peer)
        findings = []
        for slow in result.named:
            if len(slow.parts) == 2 and not peer and self._cluster.link_class in ("pcie", "shm"):
                # The path between two GPUs then depends on their slots; only a peer node shows what is usual.
                self.notes.append(f"{_section(slow.parts, host).label}: slower than other pairs of this node")
                continue
            remark = f"launched with GPU {', '.join(slow.partners[:4])}" if len(slow.parts) == 1 else ""
            findings.append(self._name_slow_part(slow, result.level, host=host, peer=peer, remark=remark))
        return findings

    # --- both ---

    def _bisect(
        self, names: tuple[str, ...], share: float, *, host: str = "", peer: str = "", all_pairs: bool = False
    ) -> BisectionResult:
        """Narrow nodes down, or the GPUs of one node.

        Args:
            names: of the nodes, or numbers of the GPUs.
            share: what they reach together.
            host: of the GPUs; empty = nodes are meant.
            peer: node with whose GPUs they are compared.
        """

        def measure(groups: Sequence[tuple[str, ...]]) -> list[float]:
            readings = self._probes.measure([_section(group, host) for group in groups])
            return [reading.gbps / self._usual_gbps(reading.section, peer) for reading in readings]

        if len(names) == 2:
            launches = len(self._probes.of(_section(names if not host else (), host)))
            pair = SlowPart(parts=names, share=share, pairs=((names[0], names[1]),), launches=launches)
            return BisectionResult(named=(pair,) if host or share < self._least else (), level=1.0)
        known_shares = {
            pair: [reading.gbps / self._usual_gbps(reading.section, peer) for reading in readings]
            for pair in itertools.combinations(names, 2)
            if (readings := self._probes.of(_section(pair, host)))
        }
        result = Bisection(names, share, measure, cut=self._cut, measured=known_shares).run(all_pairs=all_pairs)
        for group in result.acquitted:
            label = f"{host} GPU {'+'.join(group)}" if host else "+".join(group)
            self.notes.append(f"{label} looked slow and was not when launched again")
        return result

    def _usual_gbps(self, section: Section, peer: str) -> float:
        """Return the bandwidth of the same GPUs of a peer, measured once; without a peer the expected one.

        With NVSwitch all pairs are alike, so they serve as each other's reference.
        """
        if not section.gpus or not peer or self._cluster.link_class == "nvswitch":
            return self._expectation.gbps(section)
        same_gpus = Section(hosts=(peer,), gpus=section.gpus)
        reading = (self._probes.of(same_gpus) or self._probes.measure([same_gpus]))[0]
        return reading.gbps or reading.expected_gbps

    def _name_slow_part(
        self, slow: SlowPart, level: float, *, host: str = "", peer: str = "", remark: str = ""
    ) -> FabricFinding:
        """Return a slow part of a bisection as a finding."""
        sections = [_section(pair, host) for pair in slow.pairs]
        if host and not self._probes.of(sections[0]):
            sections = [Section(hosts=(host,))]  # a node of two GPUs is their only pair
        readings = [reading for section in sections for reading in self._probes.of(section)]
        usual = self._usual_gbps(sections[0], peer)
        part = ((Part.NODE, Part.LINK), (Part.GPU, Part.GPU_LINK))[bool(host)][len(slow.parts) - 1]
        section = _section(slow.parts, host)
        return self._build_finding(part, section, slow.share * usual, level * usual, remark, readings, slow.launches)

    def _build_finding(
        self,
        part: Part,
        section: Section,
        gbps: float,
        reference_gbps: float,
        remark: str,
        readings: Sequence[ProbeReading] = (),
        launches: int = 0,
    ) -> FabricFinding:
        """Return a finding about a section; it is a failure if no data arrive, or wrong data.

        Args:
            gbps: bus bandwidth that it reaches.
            reference_gbps: that it should reach.
            readings: that speak against it; empty = those of the section.
            launches: 0 = as many as the readings.
        """
        readings = readings or self._probes.of(section)
        worst = min((reading.outcome for reading in readings), key=SEVERITY.index)
        return FabricFinding(
            part=part,
            hosts=section.hosts,
            gpus=section.gpus,
            outcome=worst if gbps == 0 or worst is Outcome.WRONG_RESULT else Outcome.OK,
            busbw_gbps=gbps,
            reference_gbps=reference_gbps,
            launches=launches or len(readings),
            remark=remark,
        )

    # --- blame ---

    def _blame_all(self, hosts: tuple[str, ...], reason: str) -> None:
        cause = f"the expectation ({self._expectation.source}) is wrong, or a shared cause slows all of them"
        remark = f"{reason}, so {cause}; if this is its usual speed, give it with --expect"
        self._blame_group(hosts, remark, part=Part.FABRIC)

    def _blame_group(self, hosts: tuple[str, ...], remark: str, *, part: Part = Part.GROUP) -> None:
        section = Section(hosts=hosts)
        readings = self._probes.of(section)
        gbps = statistics.median_low(reading.gbps for reading in readings)
        self.findings.append(self._build_finding(part, section, gbps, readings[0].expected_gbps, remark))

    def _blame_smallest(self) -> None:
        """Name the smallest slow group if the time was over before the cause was found."""
        blamed = {host for finding in self.findings for host in finding.hosts}
        slow = [
            reading.section.hosts
            for reading in self._probes.readings
            if reading.share < self._least and not reading.section.gpus and not blamed & set(reading.section.hosts)
        ]
        if slow:
            self._blame_group(min(slow, key=len), "the time was over before it was narrowed down further")

    def _add_wrong_data(self) -> None:
        """Add launches with wrong data that no finding covers: one is too many."""
        wrong = Outcome.WRONG_RESULT
        blamed = {host for finding in self.findings if finding.outcome is wrong for host in finding.hosts}
        spoilt = [reading for reading in self._probes.readings if reading.outcome is wrong]
        for reading in sorted(spoilt, key=lambda reading: reading.ranks):
            section, expected_gbps = reading.section, reading.expected_gbps
            if blamed.isdisjoint(section.hosts):
                blamed.update(section.hosts)
                finding = self._build_finding(Part.GROUP, section, 0.0, expected_gbps, "in one launch", [reading])
                self.findings.append(finding)


_INSIDE_NODE = (Part.NODE, Part.GPU, Part.GPU_LINK)


def _section(names: tuple[str, ...], host: str) -> Section:
    """Return a section of some nodes, or of some GPUs of a host."""
    return Section(hosts=(host,), gpus=tuple(map(int, names))) if host else Section(hosts=names)


def _is_decided(readings: Sequence[ProbeReading], least: float) -> bool:
    """Return True if more launches cannot change on which side of the limit the median of three is."""
    fine = sum(reading.share >= least for reading in readings)
    return fine == 1 if len(readings) == 1 else max(fine, len(readings) - fine) >= 2


def preflight(
    request: PreflightRequest,
    probes: Probes,
    *,
    notes: tuple[str, ...] = (),
    now: Callable[[], str],
    clock: Callable[[], float],
) -> Preflight:
    """Examine a fabric; whatever a launch does is a reading and never raised.

    Args:
        probes: makes the launches and keeps their readings.
        notes: caveats for the reader beforehand.
        now: ISO time.
        clock: seconds.
    """
    began, created = clock(), now()
    checkup = Checkup(request, probes)
    state = checkup.run()
    identity = f"{created}|{request.hosts}|{[reading.times_us for reading in probes.readings]}"
    return Preflight(
        id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        created=created,
        cluster=request.cluster.name,
        fingerprint=request.cluster.fingerprint().digest(),
        launcher=request.launcher,
        benchmark=request.benchmark,
        simulated=False,
        hosts=request.hosts,
        gpus_per_node=request.cluster.gpus_per_node,
        source=request.expectation.source,
        expected=tuple(ExpectedSize(size_bytes=size, busbw_gbps=gbps) for size, gbps in request.expectation.sizes),
        tolerance=request.expectation.tolerance,
        state=state,
        findings=tuple(sorted(checkup.findings, key=lambda finding: (SEVERITY.index(finding.outcome), finding.share))),
        readings=tuple(probes.readings),
        notes=(*notes, *checkup.notes),
        wall_s=clock() - began,
    )

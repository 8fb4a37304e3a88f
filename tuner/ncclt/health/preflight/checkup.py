"""One preflight: its request, its cost, and the checkup of all nodes together, then of slow nodes, links and GPUs."""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import SEVERITY, ExpectedSize, FabricFinding, Part, Preflight, ProbeReading, Section, State
from ncclt.core.trial import NOT_LAUNCHED, Outcome, TimesOrigin
from ncclt.errors import UsageError
from ncclt.health.preflight.bisect import LAUNCHES, Bisection, BisectionResult, Group, SlowPart, rounds
from ncclt.health.preflight.expectation import Expectation, latency_note, peer_tolerance
from ncclt.health.preflight.probes import DeadlineExceeded, Probes

SIZES = (1 << 6, 1 << 12, 1 << 18, 1 << 24, 1 << 30)
"""From latency to bandwidth, bytes: powers of 64, so that nccl-tests measures all of them in one command."""

TOLERANCE = 0.15
"""Share by which all nodes may fall short of what their links promise; link figures are no better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """Nodes to examine and the depth of the examination.

    Attributes:
        cluster: sized to the job.
        hosts: names of its nodes, in the order of the ranks.
        expectation: what is expected of them.
        sizes: bytes to measure on all nodes, ascending; the largest one is judged.
        tolerance: share by which they may fall short of the links, and parts by half of it of their peers.
        launcher, benchmark: words of where and what runs.
        quick: measure all nodes together and no more.
        full: look into pairs and single nodes even if all nodes together are fine.
        all_pairs: measure every pair of nodes instead of bisecting.
        notes: what the reader must know beforehand.
    """

    cluster: Cluster
    hosts: tuple[str, ...]
    expectation: Expectation
    sizes: tuple[int, ...] = SIZES
    tolerance: float = TOLERANCE
    launcher: str
    benchmark: str
    quick: bool = False
    full: bool = False
    all_pairs: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise UsageError("--quick and --full cannot be combined")
        if len(set(self.hosts)) != len(self.hosts) or len(self.hosts) != self.cluster.nodes:
            raise UsageError(
                f"the number of hosts ({len(self.hosts)}) differs from the number of nodes ({self.cluster.nodes})",
                hint="name each node once, --nodes of them",
            )
        if self.cluster.world_size < 2:
            raise UsageError("one GPU alone has no fabric to examine", hint="use more nodes or --gpus-per-node")

    @property
    def simulated(self) -> bool:
        """Return True if a model invents the times."""
        return NOT_LAUNCHED.get(self.launcher) is TimesOrigin.SIMULATED


_NETWORK = "alone its GPUs are as fast as others: look at its network"


class GpuCheckup:
    """Looks into nodes.

    Args:
        probes: makes the launches.
        cut: share by which a part may fall short of its peers.

    Attributes:
        notes: what the reader must know.
    """

    def __init__(self, cluster: Cluster, expectation: Expectation, probes: Probes, *, cut: float) -> None:
        self._cluster = cluster
        self._expectation = expectation
        self._probes = probes
        self._cut = cut
        self.notes: list[str] = []

    def examine(self, host: str, peer: str) -> tuple[list[FabricFinding], str]:
        """Compare a slow node with a good one, each alone, and find its slow GPUs.

        Args:
            peer: a good one; empty = there is none, and the expectation is used instead.

        Returns:
            The findings, and what is known about the node if there are none.
        """
        if self._cluster.gpus_per_node < 2:
            return [], "look at its network and its GPU"
        wanted = [Section(hosts=(one,)) for one in (host, peer) if one]
        readings = self._probes.measure(wanted)
        usual = readings[-1].gbps if peer and readings[-1].gbps else readings[0].expected_gbps
        share = readings[0].gbps / usual
        if share >= 1 - self._cut:
            return [], _NETWORK
        found = self.slow_gpus(host, share, peer=peer if readings[-1].gbps else "")
        return found, f"alone it reaches {share * 100:.0f} % of the others as well, and no GPU stands out"

    def examine_alone(self, hosts: Sequence[str]) -> list[FabricFinding]:
        """Measure each node by itself and look into those that are slower than the others."""
        if self._cluster.gpus_per_node < 2 or not hosts:
            return []
        readings = self._probes.measure([Section(hosts=(host,)) for host in hosts])
        usual = statistics.median(reading.gbps for reading in readings) or readings[0].expected_gbps
        slow = {r.section.hosts[0]: r for r in readings if r.gbps < (1 - self._cut) * usual}
        peer = next((host for host in hosts if host not in slow), "")
        findings: list[FabricFinding] = []
        for host, first in slow.items():
            again = [first, *self._probes.measure([first.section] * 2)]
            gbps = statistics.median(reading.gbps for reading in again)
            if gbps >= (1 - self._cut) * usual:
                self.notes.append(f"{host} alone looked slow and was not when launched again")
                continue
            findings += self.slow_gpus(host, gbps / usual, peer=peer) or [
                build_finding(
                    SlowPart(parts=(host,), share=gbps / usual, partners=(), launches=len(again)),
                    1.0,
                    again,
                    Section(hosts=(host,)),
                    remark="alone, and no GPU stands out",
                )
            ]
        return findings

    def remark_of_two(self, hosts: Sequence[str]) -> str:
        """Launch each of the only two nodes alone and return a remark about the slow one."""
        if self._cluster.gpus_per_node < 2:
            return "with two nodes nothing tells which end it is"
        readings = self._probes.measure([Section(hosts=(host,)) for host in hosts])
        best = max(reading.gbps for reading in readings)
        slow = [r.section.hosts[0] for r in readings if r.gbps < (1 - self._cut) * best]
        if slow:
            return f"{slow[0]} is slow alone as well: look at its GPUs"
        return "alone both are alike: look at the network between them; two nodes do not tell which end it is"

    def slow_gpus(self, host: str, share: float, *, peer: str) -> list[FabricFinding]:
        """Narrow a slow node down to its GPUs; each group of them is compared with the same group of a peer.

        Args:
            share: what all its GPUs together reach of what is usual.
            peer: as for `examine`.
        """
        found = self._bisect(host, share, peer)
        findings = []
        for named in found.named:
            gpus = _gpus(named.parts)
            partners = _gpus(named.partners) if len(gpus) == 1 else gpus[1:]
            sections = [Section(hosts=(host,), gpus=tuple(sorted((gpus[0], partner)))) for partner in partners]
            readings = [reading for section in sections for reading in self._probes.of(section)]
            usual = self._usual_gbps(peer, sections[0])
            if len(gpus) == 2 and not peer and self._cluster.link_class in ("pcie", "shm"):
                # The path between two GPUs then depends on their slots; only a peer node shows what is usual.
                self.notes.append(f"{sections[0].label}: slower than other pairs of this node")
                continue
            remark = f"launched with GPU {', '.join(named.partners[:4])}" if len(gpus) == 1 else ""
            slow = Section(hosts=(host,), gpus=gpus)
            findings.append(build_finding(named, found.level, readings, slow, remark=remark, usual=usual))
        for group in found.acquitted:
            self.notes.append(f"{host} GPU {'+'.join(group)} looked slow and was not when launched again")
        return findings

    def _bisect(self, host: str, share: float, peer: str) -> BisectionResult:
        names = tuple(str(gpu) for gpu in range(self._cluster.gpus_per_node))
        if len(names) == 2:
            return BisectionResult(named=(SlowPart(parts=names, share=share, partners=names, launches=1),), level=1.0)

        def measure(groups: Sequence[Group]) -> list[float]:
            sections = [Section(hosts=(host,), gpus=_gpus(group)) for group in groups]
            readings = self._probes.measure(sections)
            return [
                reading.gbps / self._usual_gbps(peer, section)
                for section, reading in zip(sections, readings, strict=True)
            ]

        return Bisection(names, share, measure, cut=self._cut).run()

    def _usual_gbps(self, peer: str, section: Section) -> float:
        """Return the bandwidth of the same GPUs of a peer, measured once; without a peer the expected one.

        With NVSwitch all pairs are alike, so they serve as each other's reference.
        """
        if not peer or self._cluster.link_class == "nvswitch":
            return self._expectation.gbps(section)
        there = Section(hosts=(peer,), gpus=section.gpus)
        known = self._probes.of(there) or self._probes.measure([there])
        return known[0].gbps or known[0].expected_gbps


def _gpus(group: Group) -> tuple[int, ...]:
    return tuple(int(gpu) for gpu in group)


def build_finding(
    named: SlowPart,
    level: float,
    readings: Sequence[ProbeReading],
    section: Section,
    *,
    remark: str = "",
    usual: float = 0.0,
) -> FabricFinding:
    """Return a slow part as a finding.

    Args:
        named: the slow part and its share.
        level: share that its peers reach.
        section: the node or link, or the GPUs of a node.
        usual: bus bandwidth that the shares refer to, 1e9 bytes/s; 0 = what was expected of the readings.
    """
    scale = usual or (readings[0].expected_gbps if readings else 1.0)
    outcomes = [reading.outcome for reading in readings]
    worst = min(outcomes, key=SEVERITY.index, default=Outcome.OK)
    failed = named.share == 0 or worst is Outcome.WRONG_RESULT
    ends = section.gpus or section.hosts
    one, link = (Part.GPU, Part.GPU_LINK) if section.gpus else (Part.NODE, Part.LINK)
    return FabricFinding(
        part=link if len(ends) == 2 else one,
        hosts=section.hosts,
        gpus=section.gpus,
        outcome=worst if failed else Outcome.OK,
        busbw_gbps=named.share * scale,
        reference_gbps=level * scale,
        launches=named.launches,
        remark=remark,
    )


_PASSES = 4
"""Times that the remaining nodes are measured without those found: more faults than this are not single faults."""

_SAMPLE = 3
"""Pairs that are tried before the halves where all nodes together fail: does anything run here at all?"""

_USUAL = "; if this is its usual speed, give it with --expect"


class Checkup:
    """One preflight; `run` it once.

    Args:
        probes: makes the launches.

    Attributes:
        findings: in the order in which they were made.
        notes: what the reader must know.
    """

    def __init__(self, request: PreflightRequest, probes: Probes) -> None:
        self._request = request
        self._cluster = request.cluster
        self._hosts = request.hosts
        self._expectation = request.expectation
        self._probes = probes
        self._least = 1 - request.expectation.tolerance
        self._cut = peer_tolerance(request.tolerance)
        self._gpus = GpuCheckup(request.cluster, request.expectation, probes, cut=self._cut)
        self.findings: list[FabricFinding] = []
        self.notes: list[str] = []

    def run(self) -> State:
        """Measure, narrow down, and return the state."""
        try:
            if not self._examine():
                return State.UNMEASURED
        except DeadlineExceeded as over:
            if not self._probes.readings:
                self.notes.append(str(over))
                return State.UNMEASURED
            self._blame_smallest()
            self.notes.append(str(over))
        self.notes += self._gpus.notes
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
        share = self._settled_share(everything)
        if self._request.quick:
            if share < self._least:
                self._blame_group(self._hosts, "look closer without --quick")
        elif share == 0 and not self._anything_runs():
            self.notes.append(first.detail or f"every launch ended so: {first.outcome}")
            return False
        elif share < self._least or self._request.full:
            if len(self._hosts) > 1:
                self._examine_nodes(share)
            else:
                found = self._gpus.slow_gpus(self._hosts[0], share, peer="") if self._cluster.gpus_per_node > 2 else []
                self.findings += found
                if not found and share < self._least:
                    self._blame_all(self._hosts, "no GPU stands out")
        return True

    def _settled_share(self, section: Section) -> float:
        """Return the median share of a section, launched up to three times if the first launch was too slow."""
        readings = self._probes.of(section)
        while not readings or (len(readings) < LAUNCHES and not _decided(readings, self._least)):
            self._probes.measure([section])
            readings = self._probes.of(section)
        if any(reading.outcome is Outcome.WRONG_RESULT for reading in readings):
            return 0.0
        share = statistics.median_low(reading.share for reading in readings)
        if share >= self._least and len(readings) > 1:
            self.notes.append(f"{section.label}: one launch of {len(readings)} was slow, and not again")
        return share

    def _anything_runs(self) -> bool:
        """Return True if anything runs at all: pairs from all over the job are tried; one with wrong data does run."""
        if any(reading.outcome in (Outcome.OK, Outcome.WRONG_RESULT) for reading in self._probes.readings):
            return True
        hosts = self._hosts
        if len(hosts) > 2:
            pairs = rounds(hosts, most=1)[0]
            sections = [Section(hosts=pair) for pair in pairs[:: max(1, len(pairs) // _SAMPLE)][:_SAMPLE]]
        elif len(hosts) == 2:
            sections = [Section(hosts=(host,)) for host in hosts] if self._cluster.gpus_per_node > 1 else []
        else:
            gpus = range(self._cluster.gpus_per_node)
            sections = [Section(hosts=hosts, gpus=(gpu, gpu + 1)) for gpu in gpus[:-1:2]] if len(gpus) > 2 else []
        return any(r.outcome in (Outcome.OK, Outcome.WRONG_RESULT) for r in self._probes.measure(sections))

    # --- nodes ---

    def _examine_nodes(self, share: float) -> None:
        """Find slow nodes and links, look into the nodes, and measure the remaining nodes, until those are fine."""
        rest = self._hosts
        for number in range(_PASSES):
            found = self._bisect(rest, share, first=number == 0)
            for named in found.named:
                self._add(named, found)
            self.notes += [
                f"{'+'.join(group)} looked slow and was not when launched again" for group in found.acquitted
            ]
            if not found.named:
                self._explain(rest, share, found)
                break
            # A link cannot be left out, but one of its ends can.
            rest = tuple(host for host in rest if all(host != named.parts[-1] for named in found.named))
            if len(rest) < 2:
                break
            share = self._settled_share(Section(hosts=rest))
            if share >= self._least:
                without = ", ".join(host for host in self._hosts if host not in rest)
                self.notes.append(f"without {without} the other {len(rest)} nodes reach {share * 100:.0f} % together")
                break
        # A link of a node that a later pass has found slow itself is no finding.
        nodes = {finding.hosts[0] for finding in self.findings if finding.part in (Part.NODE, Part.GPU, Part.GPU_LINK)}
        self.findings = [one for one in self.findings if one.part is not Part.LINK or not nodes & set(one.hosts)]
        if self._request.full:
            blamed = {host for finding in self.findings for host in finding.hosts if finding.part is not Part.FABRIC}
            self.findings += self._gpus.examine_alone([host for host in self._hosts if host not in blamed])

    def _bisect(self, hosts: tuple[str, ...], share: float, *, first: bool) -> BisectionResult:
        if len(hosts) == 2:
            pair = SlowPart(
                parts=hosts, share=share, partners=hosts, launches=len(self._probes.of(Section(hosts=hosts)))
            )
            return BisectionResult(named=(pair,) if share < self._least else (), level=1.0)

        def measure(groups: Sequence[Group]) -> list[float]:
            return [reading.share for reading in self._probes.measure([Section(hosts=group) for group in groups])]

        known = {
            pair: shares
            for pair in itertools.combinations(hosts, 2)
            if (shares := [r.share for r in self._probes.of(Section(hosts=pair))])
        }
        bisection = Bisection(hosts, share, measure, cut=self._cut, known=known)
        played = rounds(hosts) if first and self._request.all_pairs and len(hosts) > 2 else None
        return bisection.run() if played is None else bisection.run_rounds(played)

    def _add(self, named: SlowPart, found: BisectionResult) -> None:
        """Keep a slow node or link; a node is looked into, because one of its GPUs may be the cause."""
        order = self._hosts.index
        partners = named.parts[1:] if len(named.parts) == 2 else named.partners
        sections = [Section(hosts=tuple(sorted((named.parts[0], partner), key=order))) for partner in partners]
        readings = [reading for section in sections for reading in self._probes.of(section)]
        if len(named.parts) == 2:
            remark = "" if len(self._hosts) > 2 else self._gpus.remark_of_two(self._hosts)
            self.findings.append(build_finding(named, found.level, readings, Section(hosts=named.parts), remark=remark))
            return
        host = named.parts[0]
        inside, remark = self._gpus.examine(host, next((one for one in found.good if one != host), ""))
        self.findings += inside or [
            build_finding(
                named,
                found.level,
                readings,
                Section(hosts=(host,)),
                remark=f"launched with {', '.join(named.partners[:4])}; {remark}",
            )
        ]

    def _explain(self, hosts: tuple[str, ...], share: float, found: BisectionResult) -> None:
        """Report what is wrong where nothing stands out: all parts alike, or only all of them together."""
        if share >= self._least:
            return
        if found.level >= self._least:
            halves = " and ".join(f"{half * 100:.0f} %" for half in found.halves)
            apart = f" and the two halves {halves}" if halves else ""
            self._blame_group(
                hosts,
                f"pairs reach {found.level * 100:.0f} % of their expected bandwidth{apart}: look at what is shared",
            )
        else:
            self._blame_all(hosts, "no node or link stands out")

    # --- blame ---

    def _blame_all(self, hosts: tuple[str, ...], reason: str) -> None:
        source = self._expectation.source
        remark = f"{reason}, so the expectation ({source}) is wrong or something common to all is slow{_USUAL}"
        self._blame_group(hosts, remark, part=Part.FABRIC)

    def _blame_group(self, hosts: tuple[str, ...], remark: str, *, part: Part = Part.GROUP) -> None:
        readings = self._probes.of(Section(hosts=hosts))
        worst = min((reading.outcome for reading in readings), key=SEVERITY.index)
        failed = statistics.median_low(one.share for one in readings) == 0 or worst is Outcome.WRONG_RESULT
        self.findings.append(
            FabricFinding(
                part=part,
                hosts=hosts,
                outcome=worst if failed else Outcome.OK,
                busbw_gbps=statistics.median_low(reading.gbps for reading in readings),
                reference_gbps=readings[0].expected_gbps,
                launches=len(readings),
                remark=remark,
            )
        )

    def _blame_smallest(self) -> None:
        """Name the smallest slow group if the time was over before the cause was found."""
        blamed = {host for finding in self.findings for host in finding.hosts}
        slow = [
            reading.section
            for reading in self._probes.readings
            if reading.share < self._least and not reading.section.gpus and not blamed & set(reading.section.hosts)
        ]
        if slow:
            smallest = min(slow, key=lambda section: len(section.hosts))
            self._blame_group(smallest.hosts, "the time was over before it was narrowed down further")

    def _add_wrong_data(self) -> None:
        """Add launches with wrong data that no finding covers: one is too many."""
        wrong = Outcome.WRONG_RESULT
        blamed = {host for finding in self.findings if finding.outcome is wrong for host in finding.hosts}
        spoilt = [reading for reading in self._probes.readings if reading.outcome is wrong]
        for reading in sorted(spoilt, key=lambda one: one.ranks):
            section = reading.section
            if not set(section.hosts) & blamed:
                blamed |= set(section.hosts)
                self.findings.append(
                    FabricFinding(
                        part=Part.GROUP,
                        hosts=section.hosts,
                        gpus=section.gpus,
                        outcome=wrong,
                        reference_gbps=reading.expected_gbps,
                        launches=1,
                        remark="in one launch",
                    )
                )


def _decided(readings: Sequence[ProbeReading], least: float) -> bool:
    """Return True if more launches cannot change on which side of the limit the median of three is."""
    fine = sum(reading.share >= least for reading in readings)
    return fine == 1 if len(readings) == 1 else max(fine, len(readings) - fine) >= 2


_LAUNCH_S = 15.0
"""A launch on real nodes before one was timed: loading CUDA, connecting ranks (an estimate, not tested on a GPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCost:
    """Number of launches of a preflight.

    Attributes:
        healthy: where all is well.
        one_fault: about as many where one node is slow.
        launch_s: estimate of one, s.
        rounds: pairs of nodes that are launched whatever is found, disjoint ones together; only with `all_pairs`.
    """

    healthy: int
    one_fault: int
    launch_s: float
    rounds: tuple[tuple[tuple[str, str], ...], ...] = ()


def cost(request: PreflightRequest) -> PreflightCost:
    """Estimate what a preflight will cost; nothing is launched."""
    nodes = len(request.hosts)
    played = rounds(request.hosts) if request.all_pairs and nodes > 2 else None
    pairs = sum(map(len, played)) if played is not None else None
    # Three launches of all nodes, halving to groups of four, their partners, a repeat, and a look inside.
    adaptive = 3 * nodes // 2 if nodes <= 8 else 2 * math.ceil(math.log2(nodes / 4)) + 6
    inside = 2 if request.cluster.gpus_per_node > 1 else 0
    narrowing = 0 if request.quick else (adaptive if pairs is None else pairs) + 4 + inside
    alone = nodes if nodes > 1 and request.cluster.gpus_per_node > 1 else 0
    return PreflightCost(
        healthy=1 + (narrowing + alone if request.full else 0),
        one_fault=3 + narrowing + (alone if request.full else 0),
        launch_s=0.0 if request.simulated else _LAUNCH_S,
        rounds=tuple(tuple(pairs) for pairs in played or ()) if not request.quick else (),
    )


def preflight(
    request: PreflightRequest, probes: Probes, *, now: Callable[[], str], clock: Callable[[], float]
) -> Preflight:
    """Examine a fabric; whatever a launch does is a reading and never raised.

    Args:
        probes: makes the launches and keeps their readings.
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
        simulated=request.simulated,
        hosts=request.hosts,
        gpus_per_node=request.cluster.gpus_per_node,
        source=request.expectation.source,
        expected=tuple(ExpectedSize(size_bytes=size, busbw_gbps=gbps) for size, gbps in request.expectation.sizes),
        tolerance=request.expectation.tolerance,
        state=state,
        findings=tuple(sorted(checkup.findings, key=lambda one: (SEVERITY.index(one.outcome), one.share))),
        readings=tuple(probes.readings),
        notes=(*request.notes, *checkup.notes),
        wall_s=clock() - began,
    )

"""A look inside a node: which of its GPUs, or of the links between them, is slow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ncclt.core.cluster import Cluster
from ncclt.core.preflight import SEVERITY, FabricFinding, Part, ProbeReading, Section
from ncclt.core.trial import Outcome
from ncclt.health.preflight.expectation import Expectation
from ncclt.health.preflight.localise import Group, Localised, Localiser, NamedPart
from ncclt.health.preflight.probes import Probes

_NETWORK = "alone its GPUs are as fast as others: look at its network"


class GpuCheckup:
    """Looks into nodes.

    Args:
        cluster: the kind of node.
        expectation: what is expected of them.
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
            host: the slow one.
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
                finding_of(
                    NamedPart(parts=(host,), share=gbps / usual, partners=(), launches=len(again)),
                    1.0,
                    again,
                    part=Part.NODE,
                    hosts=(host,),
                    remark="alone, and no GPU stands out",
                )
            ]
        return findings

    def remark_of_two(self, hosts: Sequence[str]) -> str:
        """Return what single launches of the only two nodes show about which of them is slow."""
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
            host: the slow node.
            share: what all its GPUs together reach of what is usual.
            peer: as for `examine`.
        """
        found = self._localised(host, share, peer)
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
            part, remark = Part.GPU_LINK, ""
            if len(gpus) == 1:
                part, remark = Part.GPU, f"launched with GPU {', '.join(named.partners[:4])}"
            findings.append(
                finding_of(
                    named, found.level, readings, part=part, hosts=(host,), gpus=gpus, remark=remark, usual=usual
                )
            )
        for group in found.acquitted:
            self.notes.append(f"{host} GPU {'+'.join(group)} looked slow and was not when launched again")
        return findings

    def _localised(self, host: str, share: float, peer: str) -> Localised:
        names = tuple(str(gpu) for gpu in range(self._cluster.gpus_per_node))
        if len(names) == 2:
            return Localised(named=(NamedPart(parts=names, share=share, partners=names, launches=1),), level=1.0)

        def measure(groups: Sequence[Group]) -> list[float]:
            sections = [Section(hosts=(host,), gpus=_gpus(group)) for group in groups]
            readings = self._probes.measure(sections)
            return [
                reading.gbps / self._usual_gbps(peer, section)
                for section, reading in zip(sections, readings, strict=True)
            ]

        return Localiser(names, share, measure, cut=self._cut).run()

    def _usual_gbps(self, peer: str, section: Section) -> float:
        """Return what the same GPUs of a peer reach, measured once; without a peer what is expected of them.

        With NVSwitch all pairs are alike, so they serve as each other's reference.
        """
        if not peer or self._cluster.link_class == "nvswitch":
            return self._expectation.gbps(section)
        there = Section(hosts=(peer,), gpus=section.gpus)
        known = self._probes.of(there) or self._probes.measure([there])
        return known[0].gbps or known[0].expected_gbps


def _gpus(group: Group) -> tuple[int, ...]:
    return tuple(int(gpu) for gpu in group)


def finding_of(
    named: NamedPart,
    level: float,
    readings: Sequence[ProbeReading],
    *,
    part: Part,
    hosts: tuple[str, ...],
    gpus: tuple[int, ...] = (),
    remark: str = "",
    usual: float = 0.0,
) -> FabricFinding:
    """Return a slow part as a finding.

    Args:
        named: the slow part and its share.
        level: share that its peers reach.
        readings: that it is based on.
        part, hosts, gpus, remark: of the finding.
        usual: bus bandwidth that the shares refer to, 1e9 bytes/s; 0 = what was expected of the readings.
    """
    scale = usual or (readings[0].expected_gbps if readings else 1.0)
    outcomes = [reading.outcome for reading in readings]
    worst = min(outcomes, key=SEVERITY.index, default=Outcome.OK)
    failed = named.share == 0 or worst is Outcome.WRONG_RESULT
    return FabricFinding(
        part=part,
        hosts=hosts,
        gpus=gpus,
        outcome=worst if failed else Outcome.OK,
        busbw_gbps=named.share * scale,
        reference_gbps=level * scale,
        launches=named.launches,
        remark=remark,
    )

"""One preflight as it goes: all nodes together, then down to the slow ones, then what is left without them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from ncclt.core.preflight import SEVERITY, FabricFinding, Part, ProbeReading, Section, State
from ncclt.core.trial import Outcome
from ncclt.health.preflight.checkup_gpus import GpuCheckup, finding_of
from ncclt.health.preflight.elimination import pair_rounds, rounds
from ncclt.health.preflight.expectation import latency_note, peer_tolerance
from ncclt.health.preflight.localise import LAUNCHES, Group, Localised, Localiser, NamedPart
from ncclt.health.preflight.probes import Probes, TimeIsOverError
from ncclt.health.preflight.request import PreflightRequest

_PASSES = 4
"""Times that the remaining nodes are measured without those found: more faults than this are not single faults."""

_SAMPLE = 3
"""Pairs that are tried before the halves where all nodes together fail: does anything run here at all?"""

_USUAL = "; if this is its usual speed, say so with --expect"


class Checkup:
    """One preflight; `run` it once.

    Args:
        request: what to examine, and how thoroughly.
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
        except TimeIsOverError as over:
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
                self._examine_one_node(share)
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
        """Return whether anything runs at all: pairs from all over the job are tried; one with wrong data does run."""
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
            found = self._localised(rest, share, first=number == 0)
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
        self._forgive_links()
        if self._request.full:
            blamed = {host for finding in self.findings for host in finding.hosts if finding.part is not Part.FABRIC}
            self.findings += self._gpus.examine_alone([host for host in self._hosts if host not in blamed])

    def _forgive_links(self) -> None:
        """Drop links of a node that a later pass has found slow itself."""
        nodes = {finding.hosts[0] for finding in self.findings if finding.part in (Part.NODE, Part.GPU, Part.GPU_LINK)}
        self.findings = [one for one in self.findings if one.part is not Part.LINK or not nodes & set(one.hosts)]

    def _localised(self, hosts: tuple[str, ...], share: float, *, first: bool) -> Localised:
        if len(hosts) == 2:
            pair = NamedPart(
                parts=hosts, share=share, partners=hosts, launches=len(self._probes.of(Section(hosts=hosts)))
            )
            return Localised(named=(pair,) if share < self._least else (), level=1.0)

        def measure(groups: Sequence[Group]) -> list[float]:
            return [reading.share for reading in self._probes.measure([Section(hosts=group) for group in groups])]

        known = {
            pair: shares
            for pair in itertools.combinations(hosts, 2)
            if (shares := [r.share for r in self._probes.of(Section(hosts=pair))])
        }
        localiser = Localiser(hosts, share, measure, cut=self._cut, known=known)
        played = pair_rounds(self._request.plan, hosts) if first else None
        return localiser.run() if played is None else localiser.run_rounds(played)

    def _add(self, named: NamedPart, found: Localised) -> None:
        """Keep a slow node or link; a node is looked into, because one of its GPUs may be the cause."""
        order = self._hosts.index
        partners = named.parts[1:] if len(named.parts) == 2 else named.partners
        sections = [Section(hosts=tuple(sorted((named.parts[0], partner), key=order))) for partner in partners]
        readings = [reading for section in sections for reading in self._probes.of(section)]
        if len(named.parts) == 2:
            remark = "" if len(self._hosts) > 2 else self._gpus.remark_of_two(self._hosts)
            self.findings.append(
                finding_of(named, found.level, readings, part=Part.LINK, hosts=named.parts, remark=remark)
            )
            return
        host = named.parts[0]
        inside, remark = self._gpus.examine(host, next((one for one in found.good if one != host), ""))
        self.findings += inside or [
            finding_of(
                named,
                found.level,
                readings,
                part=Part.NODE,
                hosts=(host,),
                remark=f"launched with {', '.join(named.partners[:4])}; {remark}",
            )
        ]

    def _explain(self, hosts: tuple[str, ...], share: float, found: Localised) -> None:
        """Report what is wrong where nothing stands out: all parts alike, or only all of them together."""
        if share >= self._least:
            return
        if found.level >= self._least:
            halves = " and ".join(f"{half * 100:.0f} %" for half in found.halves)
            apart = f" and the two halves {halves}" if halves else ""
            self._blame_group(
                hosts,
                f"pairs reach {found.level * 100:.0f} % of what is expected of them{apart}: look at what is shared",
            )
        else:
            self._blame_all(hosts, "no node or link stands out")

    def _examine_one_node(self, share: float) -> None:
        found = self._gpus.slow_gpus(self._hosts[0], share, peer="") if self._cluster.gpus_per_node > 2 else []
        self.findings += found
        if not found and share < self._least:
            self._blame_all(self._hosts, "no GPU stands out")

    # --- blame ---

    def _blame_all(self, hosts: tuple[str, ...], reason: str) -> None:
        source = self._expectation.source
        remark = f"{reason}, so what is expected ({source}) is wrong or something common to all is{_USUAL}"
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
    """Return whether more launches cannot change on which side of the limit the median of three is."""
    fine = sum(reading.share >= least for reading in readings)
    return fine == 1 if len(readings) == 1 else max(fine, len(readings) - fine) >= 2

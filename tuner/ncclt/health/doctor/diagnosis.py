"""All rules of the doctor, the parts of a set-up that were examined, and the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor import rules_gpus, rules_log, rules_network, rules_rccl, rules_topology, rules_variables
from ncclt.health.doctor.facts import LOG_VARIABLES, Facts
from ncclt.health.doctor.finding import RULE_TEXTS, DoctorRule, Finding, Severity
from ncclt.health.doctor.published import PublishedComparison, compare_with_published
from ncclt.health.doctor.settings import SetVariable, find_settings
from ncclt.health.doctor.variables import shown_value

_SHOWN = 3
"""Logs named in one message."""

_LOG = "run a job with " + " ".join(f"{name}={value}" for name, value in LOG_VARIABLES.items() if value)
_START = "run your job by `ncclt doctor -- COMMAND`, or add --launcher torchrun --gpus-per-node N,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination(Documented):
    """One part of a set-up.

    Attributes:
        part: driver, GPUs, links, NICs, transports or plugins, or nodes of which only some were examined.
        by: the sources that show it; empty = it was not examined.
        why: it was not examined.
        how: to examine it.
    """

    SHAPE: ClassVar = Shape()

    part: str
    by: tuple[str, ...] = ()
    why: str = ""
    how: str = ""


def examine_parts(facts: Facts) -> Iterator[Examination]:
    """Yield every part that matters here: one GPU has no links and no transports, one node needs no NICs.

    Nodes without a report of their own count as equal in the rules, and as not examined in the verdict.
    """
    log, reports = facts.log, facts.gpu_reports
    nodes = log.nodes
    yield from _examine_hardware(facts)
    if facts.other_backends:
        return  # without NCCL there is nothing to examine of it
    shown = ", ".join(log.sources[:_SHOWN]) + (", ..." if len(log.sources) > _SHOWN else "")
    why = "" if log.tells_starts else f"no line of a start in {shown}" if log.sources else "no log of NCCL"
    how = f"{_START} or {_LOG}" if facts.here and not facts.job else _LOG
    if log.ranks != 1:
        sources = log.sources if log.transports() else ()
        yield _build_part("transports", sources, why or f"no connection in {shown}", how)
    names_plugins = any(process.plugins or process.network for process in log.processes)
    yield _build_part("plugins", log.sources if names_plugins else (), why or f"no plugin or network in {shown}", how)
    if 0 < len(reports) < nodes:
        how = "run `ncclt doctor` on every node, or give `nvidia-smi -q -x` of each with --from"
        yield _build_part("other nodes", (), f"nvidia-smi of {len(reports)} of {nodes} nodes", how)
    hosts = {process.host for process in log.processes if process.host}
    if 0 < len(hosts) < nodes:
        how = "run it in a folder that all nodes share" if facts.job else "give the logs of all nodes"
        yield _build_part("logs of other nodes", (), f"those of {len(hosts)} of {nodes} nodes are here", how)


def _examine_hardware(facts: Facts) -> Iterator[Examination]:
    """Yield driver, GPUs, links and NICs."""
    log, reports, topologies = facts.log, facts.gpu_reports, facts.topologies
    how = "run it on a GPU node, save its output and pass it with --from"
    no_report = facts.smi_problem or "no `nvidia-smi -q -x`"
    drivers = [report.source for report in reports if report.driver]
    drivers += ["/proc/driver/nvidia/version"] if facts.driver else []
    drivers += [process.name for process in log.processes if process.driver]
    yield _build_part("driver", drivers, no_report, how)
    yield _build_part("GPUs", (report.source for report in reports), no_report, how)
    counts = [len(report.gpus) for report in reports] + [len(matrix.gpus) for matrix in facts.matrices]
    counts += [len(topology.gpus) for topology in topologies]
    if log.ranks > 1 or max(counts, default=0) != 1:
        links = [matrix.source for matrix in facts.matrices] + [topology.source for topology in topologies]
        links += [link.evidence.source for link in log.links if link.end in ("GPU", "NVS")]
        yield _build_part("links", links, facts.smi_problem or "no `nvidia-smi topo -m`", how)
    if {start.nodes for start in log.starts if start.nodes} != {1}:
        nics = [adapter.source for adapter in facts.adapters] + [matrix.source for matrix in facts.matrices]
        nics += [process.network.evidence.source for process in log.processes if process.network]
        nics += ["/sys/class/infiniband"] if facts.here else []
        yield _build_part("NICs", nics, "no `ibstat`", "save `ibstat` of a node")


def _build_part(part: str, sources: Iterable[str], why: str, how: str) -> Examination:
    by = tuple(dict.fromkeys(sources))
    return Examination(part=part, by=by) if by else Examination(part=part, why=why, how=how)


_MODULES = (rules_network, rules_topology, rules_log, rules_variables, rules_rccl, rules_gpus)
_BY_ID = {rule.id: rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, DoctorRule)}

RULES = tuple(_BY_ID[id] for id in RULE_TEXTS)
"""Every rule, in the order of rules.toml."""

SCHEMA = 1
"""Version of the document that `ncclt doctor --json` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Facts of a set-up with the findings about it.

    Attributes:
        facts: what was found out.
        findings: the worst first.
    """

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def settings(self) -> tuple[SetVariable, ...]:
        """Return the NCCL variables that are set, and who set them; values of plugins' own variables are masked."""
        return tuple(replace(row, value=shown_value(row.name, row.value)) for row in find_settings(self.facts))

    @property
    def published(self) -> tuple[PublishedComparison, ...]:
        """Return the comparison with the settings published for this machine; empty = none published, or none known."""
        return compare_with_published(self.facts, find_settings(self.facts))

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """Return the findings on which nothing should be measured."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def examined(self) -> tuple[Examination, ...]:
        """Return every part of the set-up, examined or not."""
        return tuple(examine_parts(self.facts))

    @property
    def unexamined(self) -> tuple[Examination, ...]:
        """Return the parts that were not examined."""
        return tuple(part for part in self.examined if not part.by)

    @property
    def gaps(self) -> tuple[tuple[str, str, str], ...]:
        """Return (parts, why, how) of what was not examined, parts of one reason together."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for part in self.unexamined:
            by_reason.setdefault((part.why, part.how), []).append(part.part)
        return tuple((_list_words(parts), why, how) for (why, how), parts in by_reason.items())

    @property
    def verdict(self) -> str:
        """Return `broken` (an error), `degraded` (a warning), `incomplete` (a part was not examined) or `healthy`."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return "broken"
        if Severity.WARNING in severities:
            return "degraded"
        is_incomplete = self.facts.missing or self.unexamined or self.facts.other_backends
        return "incomplete" if is_incomplete else "healthy"

    @property
    def summary(self) -> str:
        """Return the verdict as one sentence, with what was and what was not examined."""
        counts = [(sum(f.severity is severity for f in self.findings), severity.value) for severity in Severity]
        counted = ", ".join(f"{n} {word}{'s' if n > 1 and word != 'info' else ''}" for n, word in counts if n)
        counted = f" ({counted})" if counted else ""
        if self.verdict == "healthy":
            return f"healthy{counted}: {_list_words([part.part for part in self.examined])} examined"
        gaps = [f"{parts} {'was' if parts == 'driver' else 'were'} not examined ({why})" for parts, why, _ in self.gaps]
        if not gaps and self.facts.missing:
            gaps = ["some sources could not be used"]
        job = self.facts.job
        heads = [f"job {job.ending}"] if job and job.has_failed else []
        heads += [f"no NCCL in this job: {job.seen}"] if job and self.facts.other_backends else []
        if self.verdict == "incomplete" and not heads:
            return f"No problems found{counted}, but {'; '.join(gaps)}"
        return "; ".join([*heads, *([f"{self.verdict}{counted}"] if counted or not heads else []), *gaps])

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "summary": self.summary,
            "examined": [part.to_document() for part in self.examined],
            "findings": [finding.to_document() for finding in self.findings],
            "missing": list(self.facts.missing),
            "settings": [setting.to_document() for setting in self.settings],
            "published": [comparison.to_document() for comparison in self.published],
            "job": self.facts.job.to_document() if self.facts.job else None,
            "facts": self.facts.to_document(),
        }


def _list_words(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def diagnose(facts: Facts) -> Diagnosis:
    """Apply every rule."""
    findings = [finding for rule in RULES for finding in rule.findings(facts)]
    return Diagnosis(facts=facts, findings=tuple(sorted(findings, key=lambda finding: finding.severity.order)))

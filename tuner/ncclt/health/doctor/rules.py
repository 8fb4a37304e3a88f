"""All rules, and the diagnosis that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ncclt.health.doctor.examination import Examination, examine_parts
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import DoctorRule, Finding, Severity
from ncclt.health.doctor.rules_conf import CONF_RULES
from ncclt.health.doctor.rules_gpus import GPU_RULES
from ncclt.health.doctor.rules_network import NETWORK_RULES
from ncclt.health.doctor.rules_plugins import PLUGIN_RULES
from ncclt.health.doctor.rules_ranks import RANK_RULES
from ncclt.health.doctor.rules_release import RELEASE_RULES
from ncclt.health.doctor.rules_topology import TOPOLOGY_RULES
from ncclt.health.doctor.rules_variables import VARIABLE_RULES

RULES: tuple[DoctorRule, ...] = (
    *NETWORK_RULES,
    *TOPOLOGY_RULES,
    *RANK_RULES,
    *PLUGIN_RULES,
    *VARIABLE_RULES,
    *CONF_RULES,
    *RELEASE_RULES,
    *GPU_RULES,
)
"""Every rule, in the order in which `ncclt doctor --rules` shows them."""

SCHEMA = 1
"""Version of the document that `ncclt doctor --json` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found out about a set-up, and what is wrong with it.

    Attributes:
        facts: what was found out.
        findings: the worst first.
    """

    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """Return the findings on which nothing should be measured."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def examined(self) -> tuple[Examination, ...]:
        """Return every part of the set-up, examined or not."""
        return examine_parts(self.facts)

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
        return tuple((_listed(parts), why, how) for (why, how), parts in by_reason.items())

    @property
    def verdict(self) -> str:
        """Return `broken` (an error), `degraded` (a warning), `incomplete` (a part was not examined) or `healthy`."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return "broken"
        if Severity.WARNING in severities:
            return "degraded"
        return "incomplete" if self.facts.missing or self.unexamined else "healthy"

    @property
    def summary(self) -> str:
        """Return the verdict as one sentence, with what was and what was not examined."""
        counts = [(sum(f.severity is severity for f in self.findings), severity.value) for severity in Severity]
        counted = ", ".join(f"{n} {word}{'s' if n > 1 and word != 'info' else ''}" for n, word in counts if n)
        found = f" ({counted})" if counted else ""
        if self.verdict == "healthy":
            return f"healthy{found}: {_listed([part.part for part in self.examined])} examined"
        gaps = [f"{parts} {'was' if parts == 'driver' else 'were'} not examined ({why})" for parts, why, _ in self.gaps]
        if not gaps and self.facts.missing:
            gaps = ["some sources could not be used"]
        if self.verdict == "incomplete":
            return f"No problems found{found}, but {'; '.join(gaps)}"
        return "; ".join([f"{self.verdict}{found}", *gaps])

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "summary": self.summary,
            "examined": [part.to_document() for part in self.examined],
            "findings": [finding.to_document() for finding in self.findings],
            "missing": list(self.facts.missing),
            "facts": self.facts.to_document(),
        }


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def diagnose(facts: Facts) -> Diagnosis:
    """Apply every rule."""
    found = [finding for rule in RULES for finding in rule.findings(facts)]
    return Diagnosis(facts=facts, findings=tuple(sorted(found, key=lambda finding: finding.severity.order)))

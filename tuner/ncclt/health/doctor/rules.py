"""All rules, and the diagnosis that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import DoctorRule, Finding, Severity
from ncclt.health.doctor.rules_conf import CONF_RULES
from ncclt.health.doctor.rules_gpus import GPU_RULES
from ncclt.health.doctor.rules_network import NETWORK_RULES
from ncclt.health.doctor.rules_ranks import RANK_RULES
from ncclt.health.doctor.rules_release import RELEASE_RULES
from ncclt.health.doctor.rules_topology import TOPOLOGY_RULES
from ncclt.health.doctor.rules_variables import VARIABLE_RULES

RULES: tuple[DoctorRule, ...] = (
    *NETWORK_RULES,
    *TOPOLOGY_RULES,
    *RANK_RULES,
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
    def verdict(self) -> str:
        """Return `broken` (an error), `degraded` (a warning), `incomplete` (a source is missing) or `healthy`."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return "broken"
        if Severity.WARNING in severities:
            return "degraded"
        return "incomplete" if self.facts.missing else "healthy"

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "findings": [finding.to_document() for finding in self.findings],
            "missing": list(self.facts.missing),
            "facts": self.facts.to_document(),
        }


def diagnose(facts: Facts) -> Diagnosis:
    """Apply every rule."""
    found = [finding for rule in RULES for finding in rule.findings(facts)]
    return Diagnosis(facts=facts, findings=tuple(sorted(found, key=lambda finding: finding.severity.order)))

"""Rules of the doctor and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor.facts import Facts
from ncclt.nccl.log.evidence import Evidence

_SHOWN = 5
"""Lines of evidence kept per finding."""


class Severity(StrEnum):
    """Severity of a finding.

    Attributes:
        ERROR: data may be corrupted, or the set-up is broken: measurements on it are worthless.
        WARNING: it costs speed, or has surprising effects.
        INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def order(self) -> int:
        """Return 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One time that a rule applies.

    Attributes:
        what: one sentence without its end.
        evidence: lines that show it.
        fix: what to do here, if more specific than the rule's own advice.
        severity: here, if it is not the rule's.
    """

    what: str
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    severity: Severity | None = None


Check = Callable[[Facts], Iterable[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRule(Documented):
    """One thing that can be wrong.

    Attributes:
        id: stable, for users and scripts.
        severity: of its findings, where an observation does not say otherwise.
        title: what is wrong, in a few words.
        check: yields each time that it is.
        why: it matters, one sentence.
        fix: what to do.
        source: where this is known from.
    """

    SHAPE: ClassVar = Shape(hidden=("check",))

    id: str
    severity: Severity
    title: str
    check: Check
    why: str
    fix: str
    source: str

    def findings(self, facts: Facts) -> list[Finding]:
        """Return the findings of this rule, each with the rule's explanation."""
        return [
            Finding(
                id=self.id,
                severity=seen.severity or self.severity,
                what=seen.what,
                evidence=seen.evidence[:_SHOWN],
                why=self.why,
                fix=seen.fix or self.fix,
                source=self.source,
            )
            for seen in self.check(facts)
        ]


def rule(*, id: str, severity: Severity, title: str, why: str, fix: str, source: str) -> Callable[[Check], DoctorRule]:
    """Make a rule of the check below it; the arguments are the attributes of `DoctorRule`."""
    return lambda check: DoctorRule(id=id, severity=severity, title=title, check=check, why=why, fix=fix, source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Documented):
    """One thing that is wrong here; the fields are those of `DoctorRule` and `Observation`."""

    id: str
    severity: Severity
    what: str
    evidence: tuple[Evidence, ...]
    why: str
    fix: str
    source: str

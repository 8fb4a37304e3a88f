"""Rules of the doctor and their findings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any, ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.health.doctor.facts import Facts
from ncclt.nccl.log.evidence import Evidence

_SHOWN = 5
"""Lines of evidence kept per finding."""


class Severity(StrEnum):
    """Severity of a finding, the worst first.

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


def observe(problem: str, *evidence: Evidence, fix: str = "", severity: Severity | None = None) -> Observation:
    """Return an observation with the lines that show it."""
    return Observation(what=problem, evidence=evidence, fix=fix, severity=severity)


Check = Callable[[Facts], Iterable[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRule(Documented):
    """One thing that can be wrong; its texts are in rules.toml.

    Attributes:
        id: stable, for users and scripts.
        severity: of its findings, where an observation does not say otherwise.
        title: what is wrong, in a few words.
        why: it matters, one sentence.
        fix: what to do.
        source: where this is known from.
        check: yields each time that it is.
    """

    SHAPE: ClassVar = Shape(hidden=("check",))

    id: str
    severity: Severity
    title: str
    why: str
    fix: str
    source: str
    check: Check

    def findings(self, facts: Facts) -> list[Finding]:
        """Return the findings of this rule, each with the rule's explanation."""
        return [
            Finding(
                id=self.id,
                severity=observation.severity or self.severity,
                what=observation.what,
                evidence=observation.evidence[:_SHOWN],
                why=self.why,
                fix=observation.fix or self.fix,
                source=self.source,
            )
            for observation in self.check(facts)
        ]


def read_table(name: str) -> dict[str, Any]:
    """Return a table of this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


RULE_TEXTS: dict[str, dict[str, Any]] = read_table("rules.toml")
"""Id -> the texts of a rule."""


def rule(id: str) -> Callable[[Check], DoctorRule]:
    """Make a rule of the check below it."""
    texts = RULE_TEXTS[id]
    return lambda check: DoctorRule(id=id, check=check, **{**texts, "severity": Severity(texts["severity"])})


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

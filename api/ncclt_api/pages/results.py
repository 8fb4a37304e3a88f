"""A published revision as tables show it: the verdict of the form in which jobs use it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncclt.core.recommendation import Decision, Recommendation, Verdict
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.render.delivery import choose_form
from ncclt_api.pages.wording import format_speedup

ORIGIN_ORDER = {origin: position for position, origin in enumerate(TimesOrigin)}
"""Origin -> its rank: measured times first."""

REGRESSION = 0.03
"""Share by which the default's own time may grow from one NCCL to the next before it is marked: above the noise of two
studies on different days (an estimate)."""

_SHADES = (1.02, 1.05, 1.1, 1.2)
"""Speed-ups at which the colour of a cell of the map gets stronger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Revision with the verdict of the form in which it is used.

    Attributes:
        recommendation: the revision.
        verdict: of the tuner table, or of the plain variables where jobs get those.
    """

    recommendation: Recommendation
    verdict: Verdict

    @property
    def status(self) -> str:
        """Return `stale`, or the decision: the class of its badge."""
        return "stale" if self.recommendation.stale else self.verdict.decision.value

    @property
    def label(self) -> str:
        """Return the text of its badge: `demonstration` for a gain on recorded or simulated times."""
        return "stale" if self.recommendation.stale else self.recommendation.verdict_word(self.verdict)

    @property
    def is_tuned(self) -> bool:
        """True for a validated gain that is not stale."""
        return self.status == Decision.TUNED.value

    @property
    def needs_table(self) -> bool:
        """True where only the tuner table delivers it, and plain variables keep the NCCL default."""
        plain = self.recommendation.variables
        has_variables = plain is not None and plain.verdict.decision is Decision.TUNED
        return self.verdict.decision is Decision.TUNED and not has_variables

    @property
    def speedup(self) -> float | None:
        """Return the speed-up; None where the search found no candidate to validate."""
        return self.verdict.speedup if self.verdict.blocks else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return its 95 % interval; None where too little was measured for one."""
        return self.verdict.interval if self.verdict.blocks and math.isfinite(self.verdict.interval[1]) else None

    @property
    def former(self) -> str:
        """Return its verdict before it became stale, in one word: the speed-up of a gain."""
        decision = self.verdict.decision
        return format_speedup(self.speedup) if decision is Decision.TUNED else decision.partition("-")[0]

    @property
    def default_us(self) -> float | None:
        """Return the communication time per step of the NCCL default, µs; None where it was not measured."""
        return self.verdict.default_us or None

    @property
    def policy_us(self) -> float | None:
        """Return that of the policy, µs, in the ratio of the speed-up; None where nothing was validated."""
        return self.verdict.paired_policy_us if self.verdict.blocks else None


def build_result(revision: Recommendation) -> Result:
    """Return a revision with the verdict of the form in which it is used."""
    plain = revision.variables
    if plain is None or plain.verdict.decision is not Decision.TUNED:
        return Result(recommendation=revision, verdict=revision.table.verdict)
    return Result(recommendation=revision, verdict=choose_form(revision).proven.verdict)


def is_for_other_version(revision: Recommendation, nccl_version: str) -> bool:
    """Return True for a gain that was tuned for another NCCL version than the cluster's; empty = not known."""
    return bool(nccl_version) and build_result(revision).is_tuned and revision.fingerprint.nccl_version != nccl_version


def shade(result: Result) -> int:
    """Return the strength of the colour of a result on the map, 0 to 4."""
    return sum(result.speedup >= least for least in _SHADES) if result.is_tuned and result.speedup else 0

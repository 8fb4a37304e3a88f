"""A published revision as tables show it: the verdict of the form in which jobs use it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncclt.core.recommendation import Decision, Recommendation, Verdict
from ncclt.deliver.render.delivery import choose_form
from ncclt_api.pages.wording import format_speedup


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


def build_result(found: Recommendation) -> Result:
    """Return a revision with the verdict of the form in which it is used."""
    plain = found.variables
    if plain is None or plain.verdict.decision is not Decision.TUNED:
        return Result(recommendation=found, verdict=found.table.verdict)
    return Result(recommendation=found, verdict=choose_form(found).proven.verdict)

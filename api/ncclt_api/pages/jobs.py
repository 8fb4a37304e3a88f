"""What real jobs reported about a recommendation: step times, and whether it took effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ncclt.core.attestation import Attestation, Effect
from ncclt.core.verification import Side, Verification
from ncclt_api.pages.wording import format_age

EFFECT_WORDS: dict[Effect, tuple[str, str]] = {
    Effect.TOOK_EFFECT: ("tuned", "took effect"),
    Effect.PARTLY: ("simulated", "partly"),
    Effect.NOT_AT_ALL: ("failed", "not at all"),
    Effect.UNKNOWN: ("open", "not known"),
}
"""Colour and word of the badge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRow:
    """One comparison of step times.

    Attributes:
        verification: the record.
        base_us, tuned_us: median step time of each side, µs; None where no launch gave one.
        age: since it was made.
    """

    verification: Verification
    base_us: float | None
    tuned_us: float | None
    age: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationLine:
    """One job's attestation.

    Attributes:
        attestation: the record.
        mood, word: the badge.
        age: since it was made.
    """

    attestation: Attestation
    mood: str
    word: str
    age: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """All reports of jobs, newest first."""

    verifications: tuple[VerificationRow, ...] = ()
    attestations: tuple[AttestationLine, ...] = ()


NO_JOBS = Jobs()


def jobs_of(verifications: Iterable[Verification], attestations: Iterable[Attestation], *, now: datetime) -> Jobs:
    """Return the content of the page."""
    return Jobs(
        verifications=tuple(
            VerificationRow(
                verification=one,
                base_us=one.percentiles(Side.BASE).get(50),
                tuned_us=one.percentiles(Side.TUNED).get(50),
                age=format_age(one.created, now),
            )
            for one in verifications
        ),
        attestations=tuple(
            AttestationLine(
                attestation=one,
                mood=EFFECT_WORDS[one.effect][0],
                word=EFFECT_WORDS[one.effect][1],
                age=format_age(one.created, now),
            )
            for one in attestations
        ),
    )

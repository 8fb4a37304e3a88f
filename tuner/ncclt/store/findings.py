"""What was found out about recommendations and clusters: checks, attestations, verifications, preflights."""

from __future__ import annotations

from collections.abc import Collection

from ncclt.core.attestation import Attestation
from ncclt.core.preflight import Preflight
from ncclt.core.recheck import Check
from ncclt.core.verification import Verification
from ncclt.store import attestations, checks, preflights, recommendations, verifications
from ncclt.store.database import Database
from ncclt.store.failures import repeatable


class Findings:
    """The part of a store that keeps findings; see `Store`."""

    _database: Database
    is_patient: bool

    # --- checks ---

    @repeatable
    def add_check(self, check: Check) -> None:
        """Keep what a check of a recommendation found; it decides from now on whether it is served.

        Raises:
            NotFoundError: there is no such recommendation.
            StoreError: another check of this id is already stored.
        """
        with self._database.writing(conflict=f"the check {check.id} is already stored") as connection:
            recommendations.get_recommendation(connection, check.recommendation)
            checks.add_check(connection, check)

    @repeatable
    def checks(self, recommendation: str) -> tuple[Check, ...]:
        """Return the checks of a recommendation by its id, newest first."""
        with self._database.reading() as connection:
            return checks.find_checks(connection, recommendation=recommendation)

    # --- attestations ---

    @repeatable
    def add_attestation(self, attestation: Attestation) -> bool:
        """Keep whether a recommendation took effect in a job; tell whether that finding is new.

        Raises:
            NotFoundError: there is no such recommendation.
        """
        with self._database.alone() as connection:
            recommendations.get_recommendation(connection, attestation.recommendation)
            return attestations.add_attestation(connection, attestation)

    @repeatable
    def attestations(self, of: Collection[str], *, limit: int = 20) -> tuple[Attestation, ...]:
        """Return the newest attestations of some recommendations, by their ids, newest first."""
        with self._database.reading() as connection:
            return attestations.find_attestations(connection, of, limit=limit)

    @repeatable
    def effects(self, of: Collection[str]) -> dict[str, str]:
        """Return what the newest attestation of each recommendation says, by id; none where there is none."""
        with self._database.reading() as connection:
            return attestations.newest_effects(connection, of)

    # --- preflights ---

    @repeatable
    def add_preflight(self, preflight: Preflight) -> None:
        """Keep what a preflight found; StoreError if another one of this id is already stored."""
        with self._database.writing(conflict=f"the preflight {preflight.id} is already stored") as connection:
            preflights.add_preflight(connection, preflight)

    @repeatable
    def preflights(self, *, cluster: str | None = None, limit: int = 20) -> tuple[Preflight, ...]:
        """Return the newest preflights, the newest first, of one cluster or of all."""
        with self._database.reading() as connection:
            return preflights.find_preflights(connection, cluster=cluster, limit=limit)

    # --- verifications ---

    @repeatable
    def add_verification(self, verification: Verification) -> None:
        """Keep what the step times of a real training say.

        Raises:
            StoreError: another one of this id is already stored.
        """
        conflict = f"the verification {verification.id} is already stored"
        with self._database.writing(conflict=conflict) as connection:
            verifications.add_verification(connection, verification)

    @repeatable
    def verifications(
        self,
        *,
        cluster: str | None = None,
        model: str | None = None,
        recommendation: str | None = None,
        limit: int | None = None,
    ) -> tuple[Verification, ...]:
        """Return verifications, newest first.

        Args:
            cluster, model: names; None = any.
            recommendation: id of the one that was verified; None = any.
            limit: how many at most; None = all.
        """
        with self._database.reading() as connection:
            return verifications.find_verifications(
                connection, cluster=cluster, model=model, recommendation=recommendation, limit=limit
            )
